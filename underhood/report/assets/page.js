// Starts the page: draws every chart from the data beside it, the explorer, and the two switches.

import { element } from "./dom.js";
import { drawChart } from "./charts.js";
import { drawFilm, drawMatrices } from "./matrices.js";
import { drawGrid } from "./grid.js";
import { explorer } from "./explorer.js";

const DRAWERS = { plot: drawChart, matrices: drawMatrices, film: drawFilm, grid: drawGrid };

/** Put lists that several charts share into their places. */
function fillIn(part, shared) {
  for (const [name, value] of Object.entries(part)) {
    if (value === null || typeof value !== "object" || typeof value[0] === "number") continue;
    if ("shared" in value) part[name] = shared[value.shared];
    else fillIn(value, shared);
  }
}

/** Return what `packed_json` of page.py packed: JSON, compressed, in base64. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

async function drawEverything() {
  const { charts, shared } = await unpacked(document.getElementById("charts").textContent);
  fillIn(charts, shared);
  for (const place of document.querySelectorAll("[data-chart]")) {
    const spec = charts[Number(place.dataset.chart)];
    DRAWERS[spec.kind](place, spec);
  }
}

/** Light, dark, or as the system says. */
function themeSwitch() {
  const button = document.getElementById("theme");
  const next = { auto: "light", light: "dark", dark: "auto" };
  button.hidden = false;
  button.addEventListener("click", () => {
    const theme = next[document.documentElement.dataset.theme];
    document.documentElement.dataset.theme = theme;
    button.textContent = `colours: ${theme}`;
    document.dispatchEvent(new Event("themechange"));
  });
}

/** Buttons that leave only the claims with one verdict in the table. */
function verdictFilter() {
  const rows = [...document.querySelectorAll("#verdicts tbody tr")];
  const words = [...new Set(rows.map((row) => row.dataset.words))];
  const bar = document.getElementById("verdict-filter");
  const show = (verdict) => {
    for (const row of rows) row.hidden = verdict !== "all" && row.dataset.words !== verdict;
    for (const button of bar.children) {
      button.setAttribute("aria-pressed", button.dataset.verdict === verdict);
    }
  };
  for (const verdict of ["all", ...words]) {
    const count = verdict === "all" ? rows.length
      : rows.filter((row) => row.dataset.words === verdict).length;
    const button = element("button", { type: "button", onclick: () => show(verdict) },
      `${verdict} ${count}`);
    button.dataset.verdict = verdict;
    bar.append(button);
  }
  show("all");
}

/** On paper nothing can be opened, so numbers and their rules are. */
function openForPrint() {
  const closed = () => [...document.querySelectorAll("details.numbers:not([open])")];
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = closed();
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
}

themeSwitch();
openForPrint();
verdictFilter();
await drawEverything();
explorer(document.getElementById("explorer-root"));
document.documentElement.dataset.ready = "yes";
