// The construction explorer: attention, the network that computes it, and both at every token.
import { fullSvd, largestEntry, countTo } from "./linalg.js";
import { FORMS, attentionRanks, buildConstruction, genericCounts } from "./constructions.js";
import { plainNumbers, simulateBoth } from "./simulate.js";
import { drawAttention, drawInputs, stepSize } from "./explorer_presets.js";
import { xEditGrid, xElement, xMatrixTable, xShort } from "./explorer_parts.js";
import { stepPicture } from "./explorer_picture.js";
import { countsCharts, countsTable } from "./explorer_counts.js";
import { copyPanel, pythonScript } from "./explorer_copy.js";
import { controlRow, stepperRow } from "./explorer_controls.js";

const LARGEST_WEIGHT = 1000;
const EXPLORER_START = {
  d: 3, T: 8, preset: "random", rankV: 2, rankK: 2, dx: 2, seed: 1, form: "minimal",
};

export function explorer(root) {
  const settings = { ...EXPLORER_START };
  // The preset behind edited weights, which a new draw goes back to.
  let drawn = settings.preset;
  let model = null;
  let token = 0;
  let grids = {};
  let picture = null;

  const message = xElement("p", { class: "x-message", role: "status" });
  const say = (text) => { message.textContent = text; };
  const weights = xElement("div", { class: "x-row x-weights" });
  const about = xElement("div", { class: "x-about" });
  const printed = xElement("p", { class: "x-printed" });
  const refusal = xElement("p", { class: "x-refusal", role: "status" });
  const stage = xElement("div", { class: "x-stage" });
  const sizes = xElement("div", { class: "x-sizes" });
  const matrices = xElement("div", { class: "x-row x-matrices" });
  const opened = xElement("details", { class: "x-details" }, [
    xElement("summary", {}, "The network's matrices"), matrices,
  ]);
  const controls = controlRow(choose);
  const stepper = stepperRow(goTo);
  const copying = copyPanel(
    () => ({ python: pythonScript(model), json: JSON.stringify(state(), null, 1) }), say);

  function choose(name, value) {
    say("");
    const named = ["preset", "form"].includes(name);
    const wanted = { ...settings, [name]: named ? value : Number(value) };
    if (name === "seed") {
      if (value === null) wanted.seed = (settings.seed + 1) % 1e6;
      else if (!/^\d{1,6}$/.test(value.trim())) {
        say(`The seed is a whole number from 0 to 999999, not "${value}"; kept ${settings.seed}.`);
        return controls.show(settings);
      }
    }
    const preset = wanted.preset === "edited" ? drawn : wanted.preset;
    if (wanted.d < 2 && preset === "gd") {
      say("Gradient descent needs d of 2 or more: a token is [x; y].");
      return controls.show(settings);
    }
    Object.assign(settings, wanted);
    for (const rank of ["rankV", "rankK"]) settings[rank] = Math.min(settings[rank], settings.d);
    settings.dx = Math.max(1, Math.min(settings.dx, settings.d - 1));
    const redraws = !["T", "form"].includes(name);
    if (redraws && settings.preset === "edited") settings.preset = drawn;
    if (settings.preset !== "edited") drawn = settings.preset;
    return update(settings.preset === "edited" ? model.attention : drawAttention(settings));
  }

  function edit(name, i, j, text) {
    const old = model.attention[name];
    const kept = old.data[i * old.columns + j];
    const number = text.trim() === "" ? NaN : Number(text.trim().replace("−", "-"));
    if (!(Math.abs(number) <= LARGEST_WEIGHT)) {
      say(`${name}[${i},${j}]: "${text}" is not a number from −${LARGEST_WEIGHT} to `
        + `${LARGEST_WEIGHT}; kept ${kept}.`);
      return showWeights();
    }
    say("");
    if (number === kept) return showWeights();
    const changed = { ...old, data: old.data.slice() };
    changed.data[i * old.columns + j] = number;
    settings.preset = "edited";
    return update({ ...model.attention, [name]: changed });
  }

  // Everything that follows from the settings and the weights.
  function update(attention) {
    stepper.pause();
    const regression = drawn === "gd";
    const { inputs, target } = drawInputs(settings, regression);
    const construction = buildConstruction(attention, settings.form);
    const simulation = simulateBoth(attention, construction, inputs);
    const counts = Object.fromEntries(Object.keys(FORMS).map((form) =>
      [form, buildConstruction(attention, form).counts || null]));
    const inputNames = countTo(settings.d).map((i) =>
      (regression && i >= settings.dx ? `y[${i - settings.dx}]` : `x[${i}]`));
    model = { settings, attention, inputs, target, construction, simulation, counts, inputNames };
    controls.show(settings);
    showWeights();
    about.replaceChildren(...aboutLines(model).map((line) => xElement("p", {}, line)));
    printed.textContent = `d = ${settings.d}, T = ${settings.T}, weights ${settings.preset}, `
      + `seed ${settings.seed}, form ${settings.form}.`;
    refusal.textContent = construction.refusal || "";
    refusal.hidden = !construction.refusal;
    picture = stepPicture(model);
    stage.replaceChildren(picture.element);
    sizes.replaceChildren(countsTable(settings.d, counts), countsCharts(settings.d));
    showMatrices();
    copying.show(pythonScript(model));
    goTo(Math.min(token, settings.T - 1));
  }

  function goTo(t) {
    token = t;
    stepper.show(t, settings.T);
    picture.show(t);
  }

  // Grids are made anew only when sizes change, so that typing keeps its place.
  function showWeights() {
    const { attention } = model;
    const fits = Object.entries(attention).every(([name, W]) =>
      grids[name] && grids[name].rows === W.rows && grids[name].columns === W.columns);
    if (!fits) {
      grids = Object.fromEntries(Object.entries(attention).map(([name, W]) =>
        [name, xEditGrid(name, W.rows, W.columns, (i, j, text) => edit(name, i, j, text))]));
      weights.replaceChildren(...Object.values(grids).map((grid) => grid.element));
    }
    const scale = largestEntry(Object.values(attention).map((W) => largestEntry(W.data)));
    for (const [name, W] of Object.entries(attention)) grids[name].show(W, scale);
  }

  function showMatrices() {
    opened.hidden = Boolean(model.construction.refusal);
    matrices.replaceChildren();
    if (opened.hidden || !opened.open) return;
    for (const [name, W] of Object.entries(model.construction.layer)) {
      const { rows, columns, data } = W.data ? W : { rows: W.length, columns: 1, data: W };
      const label = `${name} ${W.data ? `${rows}×${columns}` : rows}`;
      const table = xMatrixTable(label, rows, columns, largestEntry(data));
      table.show((i, j) => data[i * columns + j]);
      matrices.append(table.element);
    }
  }
  opened.addEventListener("toggle", showMatrices);

  function state() {
    const { attention, inputs, target, construction, simulation, counts } = model;
    const { layer = null, roles = [], layout = null } = construction;
    const generic = Object.fromEntries(Object.keys(FORMS).map((form) =>
      [form, countTo(9, 1).map((d) => ({ d, ...genericCounts(form, d) }))]));
    return plainNumbers({
      ...settings, token, attention, inputs, target, python: FORMS[settings.form].python,
      refusal: construction.refusal, network: layer, roles, layout, ...simulation,
      counts: construction.counts || null, countsByForm: counts, genericCounts: generic,
    });
  }

  root.replaceChildren(xElement("div", { class: "x-explorer" }, [
    controls.element, printed, message,
    xElement("h3", {}, "Attention: v = W_V x, k = W_K x, q = W_Q x, yₜ = (Σ v kᵀ) qₜ, "
      + "the sum over tokens up to t"),
    weights,
    xElement("h3", {}, "The network that computes it"),
    about, refusal, stepper.element, stage, opened, copying.element,
    xElement("h3", {}, "Sizes"), sizes,
  ]));
  root.explorer = { state };
  update(drawAttention(settings));
}

const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

// The equation, the size, and what to know about the weights.
function aboutLines({ settings, attention, construction, target }) {
  const { r_V, r_M } = attentionRanks(attention);
  const ranks = `The rank of W_V is ${r_V}, that of M = W_KᵀW_Q is ${r_M}.`;
  const parts = [];
  if (construction.refusal) parts.push(ranks);
  else {
    const { neurons, gates, parameters } = construction.counts;
    const { target: kind, form } = FORMS[settings.form].python;
    parts.push(settings.form === "side"
      ? "hₜ = λ⊙hₜ₋₁ + (W_in_m xₜ)⊙(W_in_x xₜ), yₜ = D((W_side xₜ)⊙hₜ)"
      : "hₜ = λ⊙hₜ₋₁ + (W_in_m x̃ₜ)⊙(W_in_x x̃ₜ), yₜ = D((W_out_m hₜ)⊙(W_out_x hₜ)), x̃ = [x; 1]");
    const size = [counted(neurons, "neuron"), counted(gates, "gate output"),
      counted(parameters, "parameter")].join(", ");
    parts.push(`${size}: `
      + `uh.compile(attention, target="${kind}", form="${form}"). ${ranks}`);
  }
  if (settings.form === "compact" && !construction.refusal) {
    const { s } = fullSvd(attention.W_V.rows === settings.d && r_V === settings.d
      ? attention.W_V : attention.W_K);
    parts.push(`The matrix it inverts has condition number ${xShort(s[0] / s.at(-1))}.`);
  }
  if (target) {
    const step = settings.preset === "gd"
      ? ` Attention answers by one step of gradient descent of size ${xShort(stepSize(settings))}.`
      : "";
    parts.push("Tokens are pairs [x; W*x]; the last is the query [x; 0], to be answered by W*x = "
      + `[${target.map(xShort).join(", ")}].${step}`);
  }
  return parts;
}
