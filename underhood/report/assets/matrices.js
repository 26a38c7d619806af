// Block pictures: blue positive, red negative, nothing at zero. Roles stand at the sides. Hover or
// arrow keys read the entries; a film has a slider over its frames.

import { element } from "./dom.js";
import { shortNumber } from "./scales.js";

const LARGEST_PICTURE = 300;

/** Draw what `charts.py` encodes as "matrices". */
export function drawMatrices(container, spec) {
  const reach = spec.together ? greatestOf(spec.panels) : null;
  const told = element("p", { class: "chart-told", "aria-live": "polite" });
  const cell = cellFor(spec.panels);
  const pictures = spec.panels.map((panel) => new Picture(panel, reach, cell));
  const across = spec.panels.slice(0, spec.across);
  const grid = panelGrid(pictures, spec.alt, told, across.length);
  if (spec.panels.length > 20) grid.classList.add("many");
  container.append(grid, told);
}

/** Draw what `charts.py` encodes as "film". */
export function drawFilm(container, spec) {
  const reach = greatestOf(spec.frames.flatMap((frame) => frame.slice(1, 3)));
  const told = element("p", { class: "chart-told", "aria-live": "polite" });
  const cell = cellFor(spec.frames[0]);
  const pictures = spec.frames[0].map(
    (panel, place) => new Picture(panel, place ? reach : null, cell),
  );
  const last = spec.frames.length - 1;
  const name = element("output", { class: "film-name" });
  const slider = element("input", {
    type: "range", min: 0, max: last, value: last, "aria-label": spec.title,
    oninput: () => show(Number(slider.value)),
  });
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "play";
  };
  const play = element("button", { type: "button", onclick: () => {
    if (timer) return stop();
    if (Number(slider.value) === last) show(0);
    play.textContent = "pause";
    timer = setInterval(() => {
      const next = Number(slider.value) + 1;
      if (next > last) stop();
      else show(next);
    }, 450);
    return undefined;
  } }, "play");
  const show = (frame) => {
    slider.value = frame;
    name.textContent = spec.names[frame];
    slider.setAttribute("aria-valuetext", spec.names[frame]);
    spec.frames[frame].forEach((panel, place) => pictures[place].change(panel));
  };
  const bar = element("div", { class: "film-bar" }, play, slider, name);
  container.append(bar, panelGrid(pictures, spec.alt, told, pictures.length), told);
  show(last);
}

function greatestOf(panels) {
  let reach = 0;
  for (const panel of panels) {
    for (const value of panel.values) if (Math.abs(value) > reach) reach = Math.abs(value);
  }
  return reach || 1;
}

/** One size of entry for all panels, so that their rows and columns line up. */
function cellFor(panels) {
  const longest = Math.max(1, ...panels.flatMap((panel) => panel.shape));
  return Math.max(1, Math.min(24, Math.floor(LARGEST_PICTURE / longest)));
}

/** Panels as one stop of the keyboard: arrows move from entry to entry and on into neighbours. */
function panelGrid(pictures, alt, told, across) {
  const grid = element("div", {
    class: "panels", tabindex: 0, role: "img",
    "aria-label": `${alt} Arrow keys read the entries.`,
  }, ...pictures.map((one) => one.node));
  grid.style.setProperty("--across", across);
  let at = null;
  const tell = (place, row, column) => {
    if (at) pictures[at.place].cursor(null);
    at = { place, row, column };
    pictures[place].cursor(at);
    told.textContent = pictures[place].describe(row, column);
  };
  pictures.forEach((one, place) => {
    one.canvas.addEventListener("pointermove", (event) => tell(place, ...one.cellAt(event)));
  });
  grid.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in steps)) return;
    event.preventDefault();
    if (!at) return void tell(0, 0, 0);
    let { place, row, column } = at;
    const [down, right] = steps[event.key];
    row += down;
    column += right;
    const [rows, columns] = pictures[place].panel.shape;
    if (column >= columns && place + 1 < pictures.length) [place, column] = [place + 1, 0];
    else if (column < 0 && place > 0) {
      place -= 1;
      column = pictures[place].panel.shape[1] - 1;
    }
    const shape = pictures[place].panel.shape;
    row = Math.min(Math.max(row, 0), Math.min(rows, shape[0]) - 1);
    column = Math.min(Math.max(column, 0), shape[1] - 1);
    tell(place, row, column);
  });
  return grid;
}

/** One matrix on a canvas, one device pixel or more per entry, sharp at any size. */
class Picture {
  constructor(panel, reach, cell) {
    this.panel = panel;
    this.reach = reach;
    this.cell = cell;
    this.canvas = element("canvas", {});
    const [rows, columns] = panel.shape;
    this.canvas.style.aspectRatio = `${columns} / ${rows}`;
    this.canvas.style.width = `${columns * cell}px`;
    this.node = element("div", { class: "panel" },
      element("span", { class: "panel-title" }, panel.title),
      groupLabels(panel.rows, "rows"), this.canvas, groupLabels(panel.columns, "columns"));
    for (const query of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(query).addEventListener("change", () => this.draw());
    }
    document.addEventListener("themechange", () => this.draw());
    this.draw();
  }

  change(panel) {
    this.panel = panel;
    this.draw();
  }

  cursor(at) {
    this.at = at;
    this.draw();
  }

  draw() {
    const [rows, columns] = this.panel.shape;
    const scale = this.cell * 2;
    this.canvas.width = columns * scale;
    this.canvas.height = rows * scale;
    const pen = this.canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const colours = ["--positive", "--negative"].map((name) => style.getPropertyValue(name));
    const reach = this.reach ?? greatestOf([this.panel]);
    for (let i = 0; i < rows; i += 1) {
      for (let j = 0; j < columns; j += 1) {
        const value = this.panel.values[i * columns + j];
        if (!value) continue;
        pen.globalAlpha = Math.min(Math.abs(value) / reach, 1);
        pen.fillStyle = value > 0 ? colours[0] : colours[1];
        pen.fillRect(j * scale, i * scale, scale, scale);
      }
    }
    pen.globalAlpha = 1;
    pen.fillStyle = style.getPropertyValue("--ink");
    const thin = Math.max(2, Math.round(scale / 12));
    for (const end of ends(this.panel.rows)) pen.fillRect(0, end * scale, columns * scale, thin);
    for (const end of ends(this.panel.columns)) pen.fillRect(end * scale, 0, thin, rows * scale);
    if (this.at) {
      pen.strokeStyle = style.getPropertyValue("--focus");
      pen.lineWidth = Math.max(3, thin);
      pen.strokeRect(this.at.column * scale, this.at.row * scale, scale, scale);
    }
  }

  cellAt(event) {
    const frame = this.canvas.getBoundingClientRect();
    const [rows, columns] = this.panel.shape;
    const inside = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
    return [
      inside((event.clientY - frame.top) / frame.height, rows),
      inside((event.clientX - frame.left) / frame.width, columns),
    ];
  }

  describe(row, column) {
    const value = this.panel.values[row * this.panel.shape[1] + column];
    const where = [groupAt(this.panel.rows, row), groupAt(this.panel.columns, column)];
    const roles = where.some(Boolean) ? ` (${where.filter(Boolean).join(", ")})` : "";
    const title = this.panel.title ? `${this.panel.title} ` : "";
    return `${title}[${row + 1}, ${column + 1}]${roles}: ${shortNumber(value)}`;
  }
}

/** Where groups end, but for the last. */
function ends(groups) {
  let sum = 0;
  return groups.slice(0, -1).map(([, count]) => (sum += count));
}

function groupAt(groups, place) {
  let sum = 0;
  for (const [name, count] of groups) {
    if (place < sum + count) return `${name} ${place - sum + 1}`;
    sum += count;
  }
  return "";
}

/** Names along a side, each as long as its group. */
function groupLabels(groups, side) {
  const labels = element("span", { class: `panel-${side}`, "aria-hidden": true });
  for (const [name, count] of groups) {
    const label = element("span", {}, name);
    label.style.flexGrow = count;
    labels.append(label);
  }
  return labels;
}
