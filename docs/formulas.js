// Typeset the formulas that pymdownx.arithmatex marked in the page.
//
// KaTeX 0.16.47 lies in katex/, as npm has it: katex.min.js, and katex.min.css with only those woff2
// fonts that the pages need.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    // The text is \(…\) in a line and \[…\] on its own.
    const formula = element.textContent.trim().slice(2, -2);
    katex.render(formula, element, {
      displayMode: element.tagName === "DIV",
      throwOnError: false,
    });
  }
});
