// Typeset the formulas that pymdownx.arithmatex marked in the page. KaTeX lies beside this file.
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
