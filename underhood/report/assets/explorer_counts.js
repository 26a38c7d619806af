// Neurons, gate outputs and parameters against d, for every form: a table and a chart.
import { countTo } from "./linalg.js";
import { FORMS, genericCounts } from "./constructions.js";
import { xElement } from "./explorer_parts.js";

const COUNTED = { neurons: "Neurons", gates: "Gate outputs", parameters: "Parameters" };
const COUNTED_D = countTo(9, 1);
// The page's palette where there is one, which is lighter on dark paper.
const FORM_STYLES = {
  full: {
    colour: "var(--c1, #0072b2)", dash: "none", marker: "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0",
  },
  compact: { colour: "var(--c2, #d55e00)", dash: "7 4", marker: "M-3 -3h6v6h-6z" },
  minimal: { colour: "var(--c3, #009e73)", dash: "2 3", marker: "M0 -4l4 7h-8z" },
  side: { colour: "var(--c4, #cc79a7)", dash: "9 3 2 3", marker: "M0 -4l4 4l-4 4l-4 -4z" },
};

// actual: per form the counts for the weights on display, or null where the form is refused.
export function countsTable(d, actual) {
  const here = (one) => (one === d ? "x-here" : null);
  const head = xElement("tr", {}, [
    xElement("td"),
    xElement("th", { scope: "col" }, "these weights"),
    ...COUNTED_D.map((one) => xElement("th", { scope: "col", class: here(one) }, `d = ${one}`)),
  ]);
  const groups = Object.entries(COUNTED).map(([key, title]) => xElement("tbody", {}, [
    xElement("tr", {}, xElement("th", { scope: "rowgroup", colspan: COUNTED_D.length + 2 }, title)),
    ...Object.entries(FORMS).map(([form, { title: name }]) => xElement("tr", {}, [
      xElement("th", { scope: "row" }, name),
      xElement("td", { class: "x-actual" }, actual[form] ? String(actual[form][key]) : "refused"),
      ...COUNTED_D.map((one) =>
        xElement("td", { class: here(one) }, String(genericCounts(form, one)[key]))),
    ])),
  ]));
  const caption = "Sizes for the weights above, and against d for square weights of full rank";
  const table = xElement("table", { class: "x-table x-counts" }, [
    xElement("caption", {}, caption), xElement("thead", {}, head), ...groups,
  ]);
  const scroller = { class: "x-scroll", tabindex: "0", role: "group", "aria-label": caption };
  return xElement("div", scroller, table);
}

export function countsCharts(d) {
  const charts = Object.keys(COUNTED).map((key) => oneChart(key, d));
  return xElement("div", { class: "x-charts" }, charts);
}

function oneChart(key, d) {
  const [width, height, left, right, top, bottom] = [340, 230, 44, 88, 26, 34];
  const series = Object.keys(FORMS).map((form) =>
    [form, COUNTED_D.map((one) => genericCounts(form, one)[key])]);
  const tops = Math.log10(1.2 * Math.max(...series.flatMap(([, counts]) => counts)));
  const across = (one) => left + ((one - 1) / (COUNTED_D.length - 1)) * (width - left - right);
  const up = (count) => height - bottom - (Math.log10(count) / tops) * (height - top - bottom);
  const chart = drawnShape("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img", class: "x-chart",
    "aria-label": `${COUNTED[key]} against d on a logarithmic axis; the numbers are in the table.`,
  });
  const write = (text, x, y, anchor, title = "") => {
    const label = drawnShape("text", { x, y, "text-anchor": anchor, class: `x-text ${title}` });
    label.textContent = text;
    chart.append(label);
  };
  const marks = countTo(Math.floor(tops) + 1).flatMap((exponent) =>
    (tops < 3 ? [1, 2, 5] : [1]).map((mantissa) => mantissa * 10 ** exponent));
  for (const mark of marks.filter((one) => Math.log10(one) <= tops)) {
    const y = up(mark);
    const rule = { x1: left, x2: width - right, y1: y, y2: y, class: "x-rule" };
    chart.append(drawnShape("line", rule));
    write(String(mark), left - 6, y + 4, "end");
  }
  chart.append(drawnShape("line", {
    x1: across(d), x2: across(d), y1: top, y2: height - bottom, class: "x-now",
  }));
  for (const one of COUNTED_D) write(String(one), across(one), height - bottom + 15, "middle");
  write("d", across((1 + COUNTED_D.length) / 2), height - 4, "middle");
  write(COUNTED[key], left, 14, "start", "x-title");
  for (const [form, counts] of series) drawSeries(chart, FORM_STYLES[form], counts, across, up);
  for (const { form, y } of seriesLabels(series, up)) {
    chart.append(drawnMarker(FORM_STYLES[form], width - right + 16, y));
    write(FORMS[form].title, width - right + 24, y + 4, "start");
  }
  return chart;
}

function drawSeries(chart, style, counts, across, up) {
  const points = COUNTED_D.map((one, p) => `${across(one)},${up(counts[p])}`).join(" ");
  const line = drawnShape("polyline", {
    points, fill: "none", "stroke-width": 2, "stroke-dasharray": style.dash,
  });
  line.style.stroke = style.colour;
  chart.append(line);
  COUNTED_D.forEach((one, p) => chart.append(drawnMarker(style, across(one), up(counts[p]))));
}

function drawnMarker(style, x, y) {
  const marker = drawnShape("path", { d: style.marker, transform: `translate(${x} ${y})` });
  marker.style.fill = style.colour;
  return marker;
}

// Where each line ends; labels that would touch move apart.
function seriesLabels(series, up) {
  const labels = series.map(([form, counts]) => ({ form, y: up(counts.at(-1)) }));
  labels.sort((one, other) => one.y - other.y);
  labels.forEach((label, p) => {
    if (p) label.y = Math.max(label.y, labels[p - 1].y + 14);
  });
  return labels;
}

function drawnShape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
