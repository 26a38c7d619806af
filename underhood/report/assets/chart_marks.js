// The drawing of a plot: axes, reference lines, and the marks of every series. A view (charts.js)
// gives it the plot, the area in pixels, and the scales x and y.

import { shape } from "./dom.js";
import { shortNumber, ticksFor } from "./scales.js";

// Corners of the shapes that `drawing.py` names o s ^ D v < > p P X; a circle has none.
const regular = (count, turn, size) =>
  Array.from({ length: count }, (_, i) => {
    const angle = ((turn + (360 * i) / count) * Math.PI) / 180;
    return [size * Math.cos(angle), size * Math.sin(angle)];
  });
const PLUS = [[-1, -3], [1, -3], [1, -1], [3, -1], [3, 1], [1, 1], [1, 3], [-1, 3], [-1, 1],
  [-3, 1], [-3, -1], [-1, -1]].map(([x, y]) => [x / 2.4, y / 2.4]);
const SHAPES = [
  [], regular(4, 45, 1.25), regular(3, -90, 1.4), regular(4, 0, 1.4), regular(3, 90, 1.4),
  regular(3, 180, 1.4), regular(3, 0, 1.4), regular(5, -90, 1.25), PLUS,
  PLUS.map(([x, y]) => [(x - y) * Math.SQRT1_2, (x + y) * Math.SQRT1_2]),
];

/** A point of a series, as large as a circle of this radius. */
function dot(one, x, y, radius) {
  const kind = one.dashed ? "dot hollow" : "dot";
  const corners = SHAPES[one.shape ?? 0];
  if (!corners.length) return shape("circle", { class: kind, cx: x, cy: y, r: radius });
  const points = corners.map((at) =>
    `${(x + radius * at[0]).toFixed(1)},${(y + radius * at[1]).toFixed(1)}`);
  return shape("polygon", { class: kind, points: points.join(" ") });
}

export class PlotDrawing {
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
      : ticksFor(this.range("x"), this.log.x, Math.floor((right - left) / 60));
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
      group.append(...points.map(([x, y]) => dot(one, x, y, one.faint ? 2.5 : 3)));
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
}

/** A line, a dot or a bar for the legend. */
export function keyMarks(one) {
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
    group.append(dot(one, 12, 6, 3));
  }
  return [group];
}
