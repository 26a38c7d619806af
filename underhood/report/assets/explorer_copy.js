// The explorer's state as a Python script, and the buttons that copy it.
import { FORMS } from "./constructions.js";
import { matrixRows } from "./linalg.js";
import { xButton, xElement } from "./explorer_parts.js";

function numpyArray(rows) {
  const lines = rows.map((row) => `    [${row.map((a) => JSON.stringify(a)).join(", ")}],`);
  return `np.array([\n${lines.join("\n")}\n], dtype=float)`;
}

// JSON writes the shortest decimal that reads back as the same float64, and Python reads it so.
export function pythonScript({ attention, inputs, settings, construction }) {
  const { target, form } = FORMS[settings.form].python;
  const refused = construction.refusal
    ? ["# The page refuses this form, and so does compile, with the same reasons."]
    : [];
  // Line by line, because the page is joined from files without their lines of imports.
  return [
    "import jax",
    "import numpy as np",
    "import underhood as uh",
    "",
    `W_V = ${numpyArray(matrixRows(attention.W_V))}`,
    `W_K = ${numpyArray(matrixRows(attention.W_K))}`,
    `W_Q = ${numpyArray(matrixRows(attention.W_Q))}`,
    `xs = ${numpyArray(inputs)}`,
    "",
    "attention = uh.LinearAttention(W_V, W_K, W_Q)",
    ...refused,
    `built = uh.compile(attention, target="${target}", form="${form}")`,
    "with jax.enable_x64(True):",
    "    ys, expected = np.asarray(built.layer(xs)), np.asarray(attention(xs))",
    'print(built.neurons, "neurons,", built.gate_width, "gate outputs,", end=" ")',
    'print(built.parameters, "parameters")',
    "print(ys)",
    'print("largest difference from attention:", np.max(np.abs(ys - expected)))',
    "",
  ].join("\n");
}

// Two buttons and the script in full. `read` gives { python, json } as they are now.
export function copyPanel(read, say) {
  const script = xElement("pre", { class: "x-script", tabindex: "0" });
  const details = xElement("details", { class: "x-details" }, [
    xElement("summary", {}, "Redo it in Python"), script,
  ]);
  const copy = async (what, text) => {
    try {
      await navigator.clipboard.writeText(text);
      say(`Copied as ${what}.`);
    } catch {
      // Without the right to the clipboard the reader can still select it.
      script.textContent = text;
      details.open = true;
      say(`This browser does not let the page copy; select the ${what} below.`);
    }
  };
  const element = xElement("div", { class: "x-copying" }, [
    xElement("div", { class: "x-row x-buttons" }, [
      xButton("Copy as Python", () => copy("Python", read().python)),
      xButton("Copy as JSON", () => copy("JSON", read().json)),
    ]),
    details,
  ]);
  return { element, show: (python) => { script.textContent = python; } };
}
