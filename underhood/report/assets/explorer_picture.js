// One step of the network from left to right: input, input gate, hidden state, output gate, output.
import { countTo, largestEntry } from "./linalg.js";
import { xElement, xMatrixTable, xNumberTable, xScientific, xShort } from "./explorer_parts.js";

// Built once per network; `show(t)` fills in step t. model: attention, construction, simulation,
// inputNames.
export function stepPicture(model) {
  const { construction } = model;
  const panels = construction.refusal
    ? [attentionInput(model), attentionMemory(model), attentionOutput(model)]
    : [inputPanel(model), gateInPanel(model), memoryPanel(model), gateOutPanel(model),
      outputPanel(model)];
  const made = panels.map((panel) => panel.element);
  // In a small network output gate and output share a column, so that all fits on one row.
  if (made.length > 3 && model.inputNames.length < 4) {
    made.push(xElement("div", { class: "x-stack" }, made.splice(3)));
  }
  const element = xElement("div", { class: "x-picture" }, made);
  return { element, show: (t) => panels.forEach((panel) => panel.show(t)) };
}

function picturePanel(title, tables, note = () => "", kind = "") {
  const line = xElement("p", { class: "x-note" });
  const element = xElement("div", { class: "x-panel" }, [
    xElement("h4", {}, title),
    xElement("div", { class: `x-tables ${kind}` }, tables.map(([table]) => table.element)),
    line,
  ]);
  function show(t) {
    for (const [table, entry] of tables) table.show((i, j) => entry(t, i, j));
    line.textContent = note(t);
  }
  return { element, show };
}

// The largest number over the whole sequence, so that colours can be compared between steps.
function scaleOver(model, pick) {
  return largestEntry(model.simulation.steps.map((step) => largestEntry(pick(step))));
}

function vectorColumns(model, columns, names, caption, corner) {
  const { steps } = model.simulation;
  const table = xNumberTable({
    caption,
    corner,
    rows: names,
    columns: columns.map(([name]) => name),
    scales: columns.map(([, pick, format]) => (format ? 0 : scaleOver(model, pick))),
    formats: columns.map(([, , format]) => format),
  });
  return [table, (t, i, j) => columns[j][1](steps[t])[i]];
}

function matrixOf(model, caption, pick, copyOf) {
  const { rows, columns } = pick(model.simulation.steps[0]);
  const table = xMatrixTable(caption, rows, columns, scaleOver(model, (s) => pick(s).data), copyOf);
  return [table, (t, i, j) => pick(model.simulation.steps[t]).data[i * columns + j]];
}

function inputPanel(model) {
  const side = Boolean(model.construction.layer.W_side);
  const names = side ? model.inputNames : [...model.inputNames, "1"];
  const name = side ? "x" : "[x; 1]";
  return picturePanel("Input", [
    vectorColumns(model, [[name, (s) => s.network.input]], names, "token xₜ"),
  ]);
}

function gateInPanel(model) {
  const { roles, layer } = model.construction;
  const x = layer.W_side ? "x" : "x̃";
  const columns = [
    [`W_in_m ${x}`, (s) => s.network.gateInM],
    [`W_in_x ${x}`, (s) => s.network.gateInX],
    ["product", (s) => s.network.written],
    ["λ", () => layer.decay, xShort],
    ["hₜ", (s) => s.network.hidden],
  ];
  const names = roles.map((role) => role.label);
  const table = vectorColumns(model, columns, names, "hₜ = λ hₜ₋₁ + product", "neuron");
  return picturePanel("Input gate", [table]);
}

function memoryPanel(model) {
  const { form, layout, roles } = model.construction;
  const copyOf = (i, j) =>
    (i > j && i < layout.symmetric && j < layout.symmetric ? `kv[${j},${i}]` : null);
  const tables = [
    matrixOf(model, "memory neurons", (s) => s.network.memory, copyOf),
    matrixOf(model, "attention: Σ v kᵀ", (s) => s.attention.keyValues),
  ];
  if (form !== "full") {
    tables.push(
      matrixOf(model, "W_V S M, neurons", (s) => s.network.readBack),
      matrixOf(model, "W_V S M, attention", (s) => s.attention.readBack),
    );
  }
  const read = "W_V S M, S = Σ x xᵀ, is read back from them, and is (Σ v kᵀ) W_Q in attention.";
  const copies = layout.symmetric > 1 ? " Hatched entries are copies by symmetry." : "";
  const less = " A diagonal neuron of the symmetric part holds its entry less the rest of its row.";
  const explanations = {
    full: "The neurons are the entries of Σ v kᵀ.",
    compact: `The neurons hold B S Bᵀ, B the invertible one of W_V and W_K.${copies} ${read}`,
    minimal: `The neurons hold S in bases of W_V's rows and M's columns.${copies} ${read}`,
    side: `Shown is S in bases of W_V's rows and M's columns.${copies}`
      + `${layout.symmetric > 1 ? less : ""} ${read}`,
  };
  const first = layout.E.columns;
  const queries = roles.slice(first).map((role) => role.label);
  const asked = (s) => s.network.hidden.subarray(first);
  if (queries.length) tables.push(queryRow(model, queries, asked));
  return picturePanel("Hidden state", tables, (t) => {
    const step = model.simulation.steps[t];
    const apart = form === "full" ? step.keyValueDifference : step.memoryDifference;
    const most = largestEntry(apart.data);
    const compared = most ? `differ by at most ${xScientific(most)} here` : "are equal here";
    return `${explanations[form]} Network and attention ${compared}.`;
  }, "x-paired");
}

function queryRow(model, columns, pick) {
  const scales = columns.map(() => scaleOver(model, pick));
  const table = xNumberTable({ caption: "query neurons", rows: ["q"], columns, scales });
  return [table, (t, _, j) => pick(model.simulation.steps[t])[j]];
}

function gateOutPanel(model) {
  const { layer } = model.construction;
  const columns = [
    [layer.W_side ? "W_side x" : "W_out_m h", (s) => s.network.gateOutM],
    [layer.W_side ? "h" : "W_out_x h", (s) => s.network.gateOutX],
    ["product", (s) => s.network.gated],
  ];
  const names = countTo(layer.D.columns).map((p) =>
    (layer.W_side ? model.construction.roles[p].label : `g[${p}]`));
  return picturePanel(layer.W_side ? "Side gate" : "Output gate", [
    vectorColumns(model, columns, names, "query factor × memory factor", "gate"),
  ]);
}

function outputPanel(model) {
  const columns = [
    ["network", (s) => s.network.output],
    ["attention", (s) => s.attention.output],
    ["difference", (s) => s.difference, xScientific],
  ];
  const { largest } = model.simulation;
  const names = countTo(model.construction.layer.D.rows).map((i) => `y[${i}]`);
  const table = vectorColumns(model, columns, names, "yₜ = D product");
  return picturePanel("Output", [table], (t) => {
    const here = largestEntry(model.simulation.steps[t].difference);
    return `Largest |difference|: ${xScientific(here)} here, ${xScientific(largest.difference)} `
      + `over the sequence, where the largest |y| is ${xShort(largest.output)}.`;
  });
}

// What is left to see where there is no network: attention by itself.
function attentionInput(model) {
  const { steps } = model.simulation;
  const columns = [["x", (s) => model.inputs[steps.indexOf(s)]]];
  return picturePanel("Input", [vectorColumns(model, columns, model.inputNames, "token xₜ")]);
}

function attentionMemory(model) {
  return picturePanel("Attention's state", [
    matrixOf(model, "Σ v kᵀ", (s) => s.attention.keyValues),
  ]);
}

function attentionOutput(model) {
  const names = countTo(model.attention.W_V.rows).map((i) => `y[${i}]`);
  const columns = [["attention", (s) => s.attention.output]];
  return picturePanel("Attention's output", [
    vectorColumns(model, columns, names, "yₜ = (Σ v kᵀ) qₜ"),
  ]);
}
