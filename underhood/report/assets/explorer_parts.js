// The explorer's small parts: elements, numbers, tables of coloured numbers, grids to edit.
import { countTo } from "./linalg.js";

export function xElement(tag, attributes = {}, children = []) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...[children].flat().filter((child) => child !== null));
  return made;
}

// Two or three significant digits, with a true minus; the whole number is in the cell's title.
export function xShort(number) {
  const size = Math.abs(number);
  const plain = size === 0 || (size >= 0.01 && size < 999.5);
  const digits = size < 0.1 ? 2 : 3;
  const text = plain ? String(Number(number.toPrecision(digits))) : number.toExponential(1);
  return text.replace("e+", "e").replaceAll("-", "−");
}

export function xScientific(number) {
  return number === 0 ? "0" : number.toExponential(1).replace("e+", "e").replaceAll("-", "−");
}

// At most half of the colour, so that ink on it stays readable on light and dark paper.
export function xPaint(cell, number, scale) {
  const share = scale > 0 ? Math.round(50 * Math.min(Math.abs(number) / scale, 1)) : 0;
  const colour = number < 0 ? "--negative" : "--positive";
  cell.style.backgroundColor = share
    ? `color-mix(in srgb, var(${colour}) ${share}%, transparent)`
    : "transparent";
}

// A table of numbers whose `show(entry)` updates the cells in place, so that focus and scrolling
// stay. spec: caption, rows and columns (names), scales (one per column), and optionally
// copyOf(i, j) (name of the cell that this one repeats) and formats (one per column).
export function xNumberTable(spec) {
  const { caption, rows, columns, scales, copyOf = () => null, formats = [], corner = "" } = spec;
  const head = xElement("tr", {}, [
    xElement("td", {}, corner),
    ...columns.map((name) => xElement("th", { scope: "col" }, name)),
  ]);
  const cells = rows.map((_, i) => columns.map((_, j) =>
    xElement("td", { class: copyOf(i, j) ? "x-number x-copy" : "x-number" })));
  const body = rows.map((name, i) =>
    xElement("tr", {}, [xElement("th", { scope: "row" }, name), ...cells[i]]));
  const table = xElement("table", { class: "x-table" }, [
    xElement("caption", {}, caption),
    xElement("thead", {}, head),
    xElement("tbody", {}, rows.length ? body : emptyRow(columns.length + 1)),
  ]);
  function show(entry) {
    cells.forEach((row, i) => row.forEach((cell, j) => {
      const number = entry(i, j);
      const copy = copyOf(i, j) ? `, a copy of ${copyOf(i, j)}` : "";
      const name = `${[rows[i], columns[j]].filter((part) => part).join(", ")} = ${number}${copy}`;
      cell.textContent = (formats[j] || xShort)(number);
      cell.title = name;
      cell.setAttribute("aria-label", name);
      xPaint(cell, number, scales[j]);
    }));
  }
  const scroller = { class: "x-scroll" };
  // Tables that may be too long or too wide for their box scroll by keyboard too.
  if (rows.length > 12 || columns.length > 4) {
    Object.assign(scroller, { tabindex: "0", role: "group", "aria-label": caption });
  }
  return { element: xElement("div", scroller, table), show };
}

function emptyRow(width) {
  return xElement("tr", {}, xElement("td", { colspan: width, class: "x-none" }, "none"));
}

// A matrix with one scale for all cells, rows and columns named by their numbers.
export function xMatrixTable(caption, rows, columns, scale, copyOf) {
  const names = (n) => countTo(n).map(String);
  const scales = countTo(columns).map(() => scale);
  return xNumberTable({ caption, rows: names(rows), columns: names(columns), scales, copyOf });
}

// A weight matrix to edit: `changed(i, j, text)` is told what was typed and `show` writes back.
export function xEditGrid(name, rows, columns, changed) {
  // Every digit while it is being edited, and what fits when it is not.
  const write = (field) => {
    const number = Number(field.dataset.number);
    const whole = field === document.activeElement || field.dataset.number.length < 7;
    field.value = whole ? field.dataset.number : String(Number(number.toPrecision(3)));
  };
  const fields = countTo(rows).map((i) => countTo(columns).map((j) => {
    const label = `${name} row ${i} column ${j}`;
    const field = xElement("input", {
      type: "text", inputmode: "decimal", autocomplete: "off", spellcheck: "false", size: "6",
      class: "x-entry", "aria-label": label,
    });
    field.addEventListener("change", () => changed(i, j, field.value));
    field.addEventListener("focus", () => write(field));
    field.addEventListener("blur", () => write(field));
    return field;
  }));
  const head = xElement("tr", {}, [
    xElement("td"), ...countTo(columns).map((j) => xElement("th", { scope: "col" }, String(j))),
  ]);
  const body = fields.map((row, i) => xElement("tr", {}, [
    xElement("th", { scope: "row" }, String(i)), ...row.map((field) => xElement("td", {}, field)),
  ]));
  const table = xElement("table", { class: "x-table x-edit" }, [
    xElement("caption", {}, `${name} ${rows}×${columns}`),
    xElement("thead", {}, head),
    xElement("tbody", {}, body),
  ]);
  function show(matrix, scale) {
    fields.forEach((row, i) => row.forEach((field, j) => {
      const number = matrix.data[i * matrix.columns + j];
      field.dataset.number = String(number);
      field.title = String(number);
      write(field);
      xPaint(field, number, scale);
    }));
  }
  return { element: xElement("div", { class: "x-scroll" }, table), show, rows, columns };
}

export function xField(label, control) {
  return xElement("label", { class: "x-field" }, [xElement("span", {}, label), control]);
}

export function xSelect(options, chosen) {
  const select = xElement("select");
  for (const [value, text] of options) select.append(xElement("option", { value }, text));
  select.value = chosen;
  return select;
}

export function xButton(text, pressed) {
  const button = xElement("button", { type: "button", class: "x-button" }, text);
  button.addEventListener("click", pressed);
  return button;
}
