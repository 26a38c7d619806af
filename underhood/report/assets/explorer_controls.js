// The row of controls above the explorer, and the stepper below its weights.
import { countTo } from "./linalg.js";
import { FORMS } from "./constructions.js";
import { PRESETS } from "./explorer_presets.js";
import { xButton, xElement, xField, xSelect } from "./explorer_parts.js";

const numbersFrom = (low, high) => countTo(high + 1, low).map((n) => [String(n), String(n)]);

// `change(name, value)` is told of every choice; `show(settings)` writes the present ones back.
export function controlRow(change) {
  const controls = {
    d: xSelect(numbersFrom(1, 6)),
    T: xSelect(numbersFrom(1, 24)),
    preset: xSelect([...Object.entries(PRESETS), ["edited", "edited"]]),
    rankV: xSelect(numbersFrom(0, 6)),
    rankK: xSelect(numbersFrom(0, 6)),
    dx: xSelect(numbersFrom(1, 5)),
    seed: xElement("input", { type: "text", inputmode: "numeric", size: "5", autocomplete: "off" }),
    form: xSelect(Object.entries(FORMS).map(([form, { title }]) => [form, title])),
  };
  const titles = {
    d: "d", T: "tokens T", preset: "weights", rankV: "rank W_V", rankK: "rank W_K",
    dx: "d_x (d_y = d − d_x)", seed: "seed", form: "form",
  };
  const fields = {};
  for (const [name, control] of Object.entries(controls)) {
    fields[name] = xField(titles[name], control);
    control.name = `x-${name}`;
    control.addEventListener("change", () => change(name, control.value));
  }
  const draw = xButton("New draw", () => change("seed", null));
  const element = xElement("fieldset", { class: "x-row x-controls" }, [
    xElement("legend", { class: "x-hidden" }, "What to build"),
    ...["d", "T", "preset", "rankV", "rankK", "dx", "seed"].map((name) => fields[name]),
    draw, fields.form,
  ]);
  function show(settings) {
    for (const [name, control] of Object.entries(controls)) {
      if (control.tagName === "SELECT") {
        const most = { rankV: settings.d, rankK: settings.d, dx: settings.d - 1 }[name];
        for (const option of control.options) {
          option.hidden = option.disabled = most !== undefined && Number(option.value) > most;
        }
      }
      control.value = String(settings[name]);
    }
    const edited = [...controls.preset.options].at(-1);
    edited.hidden = edited.disabled = settings.preset !== "edited";
    fields.rankV.hidden = fields.rankK.hidden = settings.preset !== "deficient";
    fields.dx.hidden = settings.preset !== "gd";
  }
  return { element, show };
}

// First, previous, play, next, last and a slider; arrows, Home and End work on all of them.
export function stepperRow(go) {
  let [t, T, timer] = [0, 1, null];
  const slider = xElement("input", { type: "range", min: "1", step: "1", class: "x-slider" });
  const text = xElement("span", { class: "x-token", "aria-live": "polite" });
  const to = (step) => go(Math.min(Math.max(step, 0), T - 1));
  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    text.setAttribute("aria-live", "polite");
  }
  function toggle() {
    if (timer !== null) return pause();
    if (t === T - 1) to(0);
    play.textContent = "Pause";
    // A reader of the screen would otherwise be interrupted by every token.
    text.setAttribute("aria-live", "off");
    timer = setInterval(() => (t < T - 1 ? to(t + 1) : pause()), 900);
    return null;
  }
  const play = xButton("Play", toggle);
  // What moves by itself is not offered to those who asked for less motion.
  play.hidden = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  const by = (step) => () => { pause(); to(step()); };
  const group = { class: "x-row x-stepper", role: "group", "aria-label": "Steps" };
  const element = xElement("div", group, [
    xButton("First", by(() => 0)), xButton("Previous", by(() => t - 1)), play,
    xButton("Next", by(() => t + 1)), xButton("Last", by(() => T - 1)),
    xElement("label", { class: "x-sliding" }, [text, slider]),
  ]);
  slider.addEventListener("input", () => by(() => Number(slider.value) - 1)());
  const keys = {
    ArrowLeft: () => t - 1, ArrowDown: () => t - 1, ArrowRight: () => t + 1, ArrowUp: () => t + 1,
    Home: () => 0, End: () => T - 1,
  };
  element.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    by(keys[event.key])();
  });
  function show(step, length) {
    [t, T] = [step, length];
    slider.max = String(T);
    slider.value = String(t + 1);
    text.textContent = `token ${t + 1} of ${T}`;
    slider.setAttribute("aria-valuetext", text.textContent);
  }
  return { element, show, pause };
}
