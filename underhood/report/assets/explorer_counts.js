// Neurons, gate outputs and parameters against d, for every form: a table and a chart.
import { countTo } from "./linalg.js";
import { FORMS, genericCounts } from "./constructions.js";
import { drawChart } from "./charts.js";
import { xElement } from "./explorer_parts.js";

const COUNTED = { neurons: "Neurons", gates: "Gate outputs", parameters: "Parameters" };
const COUNTED_D = countTo(9, 1);
const FORM_MARKS = {
  full: { colour: 1 }, compact: { colour: 2, dashed: true },
  minimal: { colour: 3 }, side: { colour: 4, dashed: true },
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
  return xElement("div", { class: "x-charts" }, Object.keys(COUNTED).map((key) => {
    const place = xElement("figure", { class: "x-chart" }, xElement("figcaption", {}, COUNTED[key]));
    drawChart(place, countsPlot(key, d));
    return place;
  }));
}

function countsPlot(key, d) {
  return {
    title: COUNTED[key],
    alt: `${COUNTED[key]} against d on a logarithmic axis; the numbers are in the table.`,
    x: { label: "d", log: false, names: [] },
    y: { label: COUNTED[key].toLowerCase(), log: true, names: [] },
    lines: [{ label: "d here", at: d, vertical: true }],
    series: Object.entries(FORMS).map(([form, { title }]) => ({
      name: title, mark: "both", x: COUNTED_D,
      y: COUNTED_D.map((one) => genericCounts(form, one)[key]), ...FORM_MARKS[form],
    })),
  };
}
