// A table of signs: a click on a cell, or the arrow keys, show what it stands for.

import { element } from "./dom.js";

/** Draw what `charts.py` encodes as "grid". */
export function drawGrid(container, spec) {
  const text = element("p", { class: "signs-text", "aria-live": "polite" }, "Click a cell.");
  const across = spec.columns.length;
  const meanings = Object.fromEntries(spec.legend.map(([sign, , meaning]) => [sign, meaning]));
  const pair = (place) => {
    const [row, column] = [spec.rows[Math.floor(place / across)], spec.columns[place % across]];
    return `${row} → ${column}: ${meanings[spec.cells[place][0]]}.`;
  };
  const buttons = spec.cells.map(([sign, colour], place) => element("button", {
    type: "button", class: `c${colour}`, tabindex: -1, "aria-pressed": "false",
    "aria-label": pair(place),
  }, sign));
  const choose = (place) => {
    for (const button of buttons) {
      button.tabIndex = -1;
      button.setAttribute("aria-pressed", "false");
    }
    buttons[place].tabIndex = 0;
    buttons[place].setAttribute("aria-pressed", "true");
    const sentences = spec.cells[place][2].map((number) => spec.sentences[number]);
    text.textContent = [pair(place), ...sentences].join(" ");
  };
  const head = element("tr", {}, element("td"),
    ...spec.columns.map((name) => element("th", { scope: "col" }, name)));
  const rows = spec.rows.map((name, row) => element("tr", {},
    element("th", { scope: "row" }, name),
    ...buttons.slice(row * across, (row + 1) * across).map((node) => element("td", {}, node))));
  const table = element("table", { class: "signs", "aria-label": spec.alt },
    element("thead", {}, head), element("tbody", {}, ...rows));
  table.addEventListener("click", (event) => {
    const place = buttons.indexOf(event.target);
    if (place >= 0) choose(place);
  });
  table.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across };
    const place = buttons.indexOf(event.target) + steps[event.key];
    if (!(event.key in steps) || !buttons[place]) return;
    event.preventDefault();
    choose(place);
    buttons[place].focus();
  });
  if (buttons.length) buttons[0].tabIndex = 0;
  const legend = element("ul", { class: "signs-legend" }, ...spec.legend.map(
    ([sign, colour, meaning]) => element("li", {},
      element("span", { class: `c${colour}`, "aria-hidden": true }, sign), meaning)));
  container.append(legend, element("div", { class: "signs-box" }, table), text);
}
