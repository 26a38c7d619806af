// Lines, points and bars over two axes. Hover or arrow keys for values, the legend toggles series,
// buttons turn axes logarithmic, a box drawn with the mouse (or + and −) zooms, 0 goes back.

import { element, shape } from "./dom.js";
import { rangeOf, scaleFor, shortNumber, ticksFor } from "./scales.js";

const NARROW = 480;
let chartCount = 0;

/** Draw a plot into a container; `plot` is what `charts.py` encodes. */
export function drawChart(container, plot) {
  new PlotView(container, plot).draw();
}

class PlotView {
  constructor(container, plot) {
    this.plot = plot;
    this.hidden = new Set();
    this.log = { x: plot.x.log, y: plot.y.log };
    this.view = null;
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

  rectangle() {
    const { left, right, top, bottom } = this.area;
    return shape("rect", { x: left, y: top - 4, width: right - left + 6,
      height: bottom - top + 8 });
  }

  axes(slanted) {
    const { left, right, top, bottom } = this.area;
    const group = shape("g", { class: "axes" });
    const names = this.plot.x.names ?? [];
    const across = names.length
      ? names.map((_, place) => place)
      : ticksFor(this.range("x"), this.log.x, Math.floor((right - left) / 80));
    for (const value of across) {
      const at = this.x(value);
      if (at < left - 1 || at > right + 1) continue;
      group.append(shape("line", { class: "grid", x1: at, x2: at, y1: top, y2: bottom }));
      const turn = slanted ? { transform: `rotate(-35 ${at} ${bottom + 12})` } : {};
      const anchor = slanted ? "end" : "middle";
      const label = names.length ? names[value] : shortNumber(value);
      group.append(
        shape("text", { x: at, y: bottom + 15, "text-anchor": anchor, ...turn }, label),
      );
    }
    for (const value of ticksFor(this.range("y"), this.log.y, Math.floor((bottom - top) / 40))) {
      const at = this.y(value);
      group.append(shape("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }));
      const label = shortNumber(value);
      group.append(shape("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, label));
    }
    group.append(
      shape("path", { class: "frame", d: `M${left} ${top}V${bottom}H${right}` }),
      shape("text", { class: "axis-name", x: (left + right) / 2, y: this.height - 4,
        "text-anchor": "middle" }, this.plot.x.label),
      shape("text", { class: "axis-name", "text-anchor": "middle",
        transform: `translate(11 ${(top + bottom) / 2}) rotate(-90)` }, this.plot.y.label),
    );
    return group;
  }

  reference(line, place) {
    const { left, right, top, bottom } = this.area;
    const dashes = ["6 4", "2 3", "8 3 2 3"][place % 3];
    const at = line.vertical ? this.x(line.at) : this.y(line.at);
    const ends = line.vertical
      ? { x1: at, x2: at, y1: top, y2: bottom }
      : { x1: left, x2: right, y1: at, y2: at };
    const what = `${line.label}: ${shortNumber(line.at)}`;
    return shape("line", { class: "reference", "stroke-dasharray": dashes, ...ends },
      shape("title", {}, what));
  }

  /** Names of reference lines, above everything, staggered so that neighbours do not meet. */
  lineLabels() {
    const svg = this.picture.firstChild;
    this.plot.lines.forEach((line, place) => {
      const what = `${line.label}: ${shortNumber(line.at)}`;
      const { left, right, top, bottom } = this.area;
      const at = line.vertical ? this.x(line.at) : this.y(line.at);
      if (line.vertical ? at < left || at > right : at < top || at > bottom) return;
      const toLeft = line.vertical && at > (left + right) / 2;
      const spot = line.vertical
        ? { x: at + (toLeft ? -4 : 4), y: top + 10 + 13 * place,
            "text-anchor": toLeft ? "end" : "start" }
        : { x: right - 4, y: at - 4, "text-anchor": "end" };
      svg.append(shape("text", { class: "reference-name", ...spot }, what));
    });
  }

  marks(one) {
    const group = shape("g", { class: `series c${one.colour}${one.faint ? " faint" : ""}` });
    group.dataset.name = one.name;
    const points = this.points(one);
    if (one.low && one.high) group.append(this.band(one, points));
    if (one.mark === "bars") {
      const wide = Math.max(Math.abs(this.x(1) - this.x(0)) * 0.7, 2);
      const zero = Math.min(this.y(this.log.y ? this.range("y")[0] : 0), this.area.bottom);
      for (const [x, y] of points) {
        group.append(shape("rect", { class: "bar", x: x - wide / 2, y: Math.min(y, zero),
          width: wide, height: Math.max(Math.abs(zero - y), 0.5) }));
      }
      return group;
    }
    if (one.mark !== "points") {
      const d = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`);
      const dash = one.dashed ? "5 3" : null;
      group.append(shape("path", { class: "line", d: d.join(""), "stroke-dasharray": dash }));
    }
    if (one.mark !== "line") {
      for (const [x, y] of points) {
        const kind = one.dashed ? "dot hollow" : "dot";
        group.append(shape("circle", { class: kind, cx: x, cy: y, r: one.faint ? 2.5 : 3 }));
      }
    }
    return group;
  }

  /** The points of a series that can be drawn: [pixel, pixel, index]. */
  points(one) {
    const found = [];
    for (let i = 0; i < one.x.length; i += 1) {
      const drawable = this.drawable(one.x[i], "x") && this.drawable(one.y[i], "y");
      if (drawable) found.push([this.x(one.x[i]), this.y(one.y[i]), i]);
    }
    return found;
  }

  drawable(value, side) {
    return value !== null && Number.isFinite(value) && !(this.log[side] && value <= 0);
  }

  band(one, points) {
    const edge = (values, i, other) => this.y(this.drawable(values[i], "y") ? values[i] : other);
    if (one.mark === "points") {
      const bars = points.map(([x, , i]) =>
        `M${x} ${edge(one.low, i, one.y[i])}V${edge(one.high, i, one.y[i])}`);
      return shape("path", { class: "spread", d: bars.join("") });
    }
    const over = points.map(([x, , i]) => `${x.toFixed(1)} ${edge(one.high, i, one.y[i])}`);
    const under = points.map(([x, , i]) => `${x.toFixed(1)} ${edge(one.low, i, one.y[i])}`);
    const d = over.length ? `M${over.join("L")}L${under.reverse().join("L")}Z` : "";
    return shape("path", { class: "band", d });
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
    this.told.textContent = `${one.name}: ${shortNumber(y)}${range} at ${where}`;
    return undefined;
  }

  unmark() {
    this.at = null;
    this.ring.setAttribute("visibility", "hidden");
    this.told.textContent = "";
  }

  // Zoom and keys.

  zoom(factor) {
    const next = {};
    for (const side of ["x", "y"]) {
      const [low, high] = this.range(side).map(this.log[side] ? Math.log : (value) => value);
      const marked = this.at ? this.shown()[this.at.place]?.[side][this.at.i] : null;
      const warp = this.log[side] ? Math.log : (value) => value;
      const centre = marked === null || marked === undefined ? (low + high) / 2 : warp(marked);
      const half = ((high - low) * factor) / 2;
      const ends = [centre - half, centre + half];
      next[side] = this.log[side] ? ends.map(Math.exp) : ends;
    }
    this.view = next;
    this.draw();
  }

  reset() {
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

/** A line, a dot or a bar for the legend. */
function keyMarks(one) {
  const group = shape("g", { class: `series c${one.colour}` });
  if (one.mark === "bars") {
    group.append(shape("rect", { class: "bar", x: 6, y: 2, width: 12, height: 9 }));
    return [group];
  }
  if (one.mark !== "points") {
    const dash = one.dashed ? "5 3" : null;
    group.append(shape("path", { class: "line", d: "M1 6H23", "stroke-dasharray": dash }));
  }
  if (one.mark !== "line") {
    group.append(shape("circle", { class: one.dashed ? "dot hollow" : "dot", cx: 12, cy: 6, r: 3 }));
  }
  return [group];
}
