// Lines, points and bars over two axes. Hover or arrow keys for values, the legend toggles series,
// buttons turn axes logarithmic, a box drawn with the mouse (or + and −) zooms, 0 goes back.

import { element, shape } from "./dom.js";
import { PlotDrawing, keyMarks } from "./chart_marks.js";
import { rangeOf, scaleFor, shortNumber } from "./scales.js";

const NARROW = 480;
// So many halvings or doublings; beyond that no axis has a tick.
const DEEPEST = 6;
let chartCount = 0;

/** Draw a plot into a container; `plot` is what `charts.py` encodes. */
export function drawChart(container, plot) {
  new PlotView(container, plot).draw();
}

class PlotView extends PlotDrawing {
  constructor(container, plot) {
    super();
    this.plot = plot;
    this.hidden = new Set();
    this.log = { x: plot.x.log, y: plot.y.log };
    this.view = null;
    this.depth = 0;
    this.at = null;
    this.clip = `clip-${(chartCount += 1)}`;
    this.picture = element("div", { class: "chart-picture" });
    this.told = element("p", { class: "chart-told", "aria-live": "polite" });
    container.append(this.toolbar(), this.picture, this.told, this.legend());
    new ResizeObserver(() => this.resized()).observe(this.picture);
  }

  button(label, title, act) {
    return element("button", { type: "button", title, onclick: act }, label);
  }

  toolbar() {
    const bar = element("div", { class: "chart-tools", role: "group" });
    bar.setAttribute("aria-label", `Axes and zoom of ${this.plot.title}`);
    for (const side of ["x", "y"]) {
      if (!this.canBeLog(side)) continue;
      const toggle = this.button(`log ${side}`, `Logarithmic ${side} axis`, () => {
        this.log[side] = !this.log[side];
        this.view = null;
        toggle.setAttribute("aria-pressed", this.log[side]);
        this.draw();
      });
      toggle.setAttribute("aria-pressed", this.log[side]);
      bar.append(toggle);
    }
    bar.append(
      this.button("+", "Zoom in", () => this.zoom(0.5)),
      this.button("−", "Zoom out", () => this.zoom(2)),
      this.button("reset", "Show everything", () => this.reset()),
    );
    return bar;
  }

  canBeLog(side) {
    const { names } = this.plot[side];
    if (names && names.length) return false;
    return this.plot.series.every((one) => one[side].every((value) => value === null || value > 0));
  }

  legend() {
    const list = element("div", { class: "chart-legend", role: "group", "aria-label": "Series" });
    const seen = new Set();
    for (const one of this.plot.series) {
      if (seen.has(one.name)) continue;
      seen.add(one.name);
      const key = shape("svg", { class: "chart-key", viewBox: "0 0 24 12", "aria-hidden": true });
      key.append(...keyMarks(one));
      const toggle = this.button("", `Show or hide ${one.name}`, () => {
        if (!this.hidden.delete(one.name)) this.hidden.add(one.name);
        toggle.setAttribute("aria-pressed", !this.hidden.has(one.name));
        this.draw();
      });
      toggle.setAttribute("aria-pressed", true);
      toggle.append(key, one.name);
      list.append(toggle);
    }
    return list;
  }

  shown() {
    return this.plot.series.filter((one) => !this.hidden.has(one.name));
  }

  /** The range of an axis: what is zoomed to, or all that is shown. */
  range(side) {
    if (this.view) return this.view[side];
    const { names } = this.plot[side];
    if (names && names.length) return [-0.6, names.length - 0.4];
    const values = this.shown().flatMap((one) =>
      side === "x" ? one.x : [...one.y, ...(one.low ?? []), ...(one.high ?? [])],
    );
    const bars = this.shown().some((one) => one.mark === "bars");
    if (side === "y" && bars) values.push(0);
    for (const line of this.plot.lines) {
      if (line.vertical === (side === "x")) values.push(line.at);
    }
    return rangeOf(values, this.log[side]);
  }

  resized() {
    const width = Math.round(this.picture.clientWidth);
    if (width > 0 && width !== this.width) this.draw();
  }

  draw() {
    this.width = Math.max(Math.round(this.picture.clientWidth), 240);
    const names = this.plot.x.names ?? [];
    const slanted = names.length > 0 && names.some((name) => name.length * 6 * names.length >
      this.width - 80);
    const longest = Math.max(0, ...names.map((name) => name.length));
    const below = slanted ? Math.min(22 + 4.4 * longest, 150) : 40;
    this.height = (this.width < NARROW ? 240 : 300) + (slanted ? below - 40 : 0);
    this.area = { left: 64, right: this.width - 12, top: 10, bottom: this.height - below };
    const { left, right, top, bottom } = this.area;
    this.x = scaleFor(this.range("x"), [left, right], this.log.x);
    this.y = scaleFor(this.range("y"), [bottom, top], this.log.y);
    const inside = shape("g", { "clip-path": `url(#${this.clip})` });
    inside.append(...this.plot.lines.map((line, i) => this.reference(line, i)));
    this.shown().forEach((one) => inside.append(this.marks(one)));
    this.ring = shape("circle", { class: "ring", r: 6, visibility: "hidden" });
    this.box = shape("rect", { class: "zoom-box", visibility: "hidden" });
    inside.append(this.ring, this.box);
    const svg = shape(
      "svg",
      {
        class: "plot",
        width: this.width,
        height: this.height,
        viewBox: `0 0 ${this.width} ${this.height}`,
        role: "img",
        tabindex: 0,
        "aria-label": `${this.plot.alt} Arrow keys read the values.`,
        onpointermove: (event) => this.pointed(event),
        onpointerdown: (event) => this.pressed(event),
        onpointerup: (event) => this.released(event),
        onpointerleave: () => this.left(),
        ondblclick: () => this.reset(),
        onkeydown: (event) => this.key(event),
      },
      shape("clipPath", { id: this.clip }, this.rectangle()),
      this.axes(slanted),
      inside,
    );
    const focused = this.picture.contains(document.activeElement);
    this.picture.replaceChildren(svg);
    if (focused) svg.focus({ preventScroll: true });
    this.lineLabels();
    if (this.at) this.mark(this.at);
  }

  // What the reader points at.

  place(event) {
    const frame = this.picture.firstChild.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  }

  pointed(event) {
    const [x, y] = this.place(event);
    if (this.start) {
      const [fromX, fromY] = this.start;
      for (const [name, value] of Object.entries({
        x: Math.min(x, fromX), y: Math.min(y, fromY),
        width: Math.abs(x - fromX), height: Math.abs(y - fromY), visibility: "visible",
      })) this.box.setAttribute(name, value);
      return;
    }
    let best = null;
    let nearest = 30 * 30;
    this.shown().forEach((one, place) => {
      for (const [px, py, i] of this.points(one)) {
        const away = (px - x) ** 2 + (py - y) ** 2;
        if (away < nearest) {
          nearest = away;
          best = { place, i };
        }
      }
    });
    if (best) this.mark(best);
    else this.unmark();
  }

  pressed(event) {
    if (event.pointerType === "mouse" && event.button === 0) this.start = this.place(event);
  }

  released(event) {
    if (!this.start) return;
    const [fromX, fromY] = this.start;
    const [x, y] = this.place(event);
    this.start = null;
    this.box.setAttribute("visibility", "hidden");
    if (Math.abs(x - fromX) < 8 || Math.abs(y - fromY) < 8) return;
    const ordered = (a, b) => (a < b ? [a, b] : [b, a]);
    this.view = {
      x: ordered(this.x.invert(fromX), this.x.invert(x)),
      y: ordered(this.y.invert(fromY), this.y.invert(y)),
    };
    this.draw();
  }

  left() {
    this.start = null;
    this.box.setAttribute("visibility", "hidden");
    if (this.picture.firstChild !== document.activeElement) this.unmark();
  }

  mark(at) {
    const one = this.shown()[at.place];
    if (!one) return this.unmark();
    this.at = at;
    const x = one.x[at.i];
    const y = one.y[at.i];
    this.ring.setAttribute("cx", this.x(x));
    this.ring.setAttribute("cy", this.y(y));
    this.ring.setAttribute("visibility", "visible");
    const names = this.plot.x.names ?? [];
    const where = names.length ? names[x] : `${this.plot.x.label} ${shortNumber(x)}`;
    const range = one.low
      ? ` (${shortNumber(one.low[at.i])} to ${shortNumber(one.high[at.i])})`
      : "";
    const text = `${one.name}: ${shortNumber(y)}${range} at ${where}`;
    this.told.textContent = one.texts?.[at.i] ?? text;
    return undefined;
  }

  unmark() {
    this.at = null;
    this.ring.setAttribute("visibility", "hidden");
    this.told.textContent = "";
  }

  // Zoom and keys.

  zoom(factor) {
    const depth = this.depth + (factor < 1 ? 1 : -1);
    if (Math.abs(depth) > DEEPEST) return;
    this.depth = depth;
    const next = {};
    for (const side of ["x", "y"]) {
      const warp = this.log[side] ? Math.log : (value) => value;
      const [low, high] = this.range(side).map(warp);
      const marked = this.at ? this.shown()[this.at.place]?.[side][this.at.i] : null;
      const centre = marked === null || marked === undefined ? (low + high) / 2 : warp(marked);
      const half = ((high - low) * factor) / 2;
      const ends = [centre - half, centre + half];
      next[side] = this.log[side] ? ends.map(Math.exp) : ends;
    }
    this.view = next;
    this.draw();
  }

  reset() {
    this.depth = 0;
    this.view = null;
    this.draw();
  }

  key(event) {
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key in steps) this.walk(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else return;
    event.preventDefault();
  }

  walk(series, point) {
    const shown = this.shown();
    if (!shown.length) return;
    const now = this.at ?? { place: 0, i: -1 };
    const place = (now.place + series + shown.length) % shown.length;
    const points = this.points(shown[place]);
    if (!points.length) {
      this.mark({ place, i: 0 });
      return;
    }
    let at = points.findIndex(([, , i]) => i >= now.i);
    if (at < 0) at = points.length - 1;
    if (point && now.i >= 0) at = Math.min(Math.max(at + point, 0), points.length - 1);
    this.mark({ place, i: points[at][2] });
  }
}
