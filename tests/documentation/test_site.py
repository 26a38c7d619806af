"""Formulas of the pages: KaTeX, which lies in docs/, can set all of them; so can GitHub."""

import re

import pytest
from refresh import PAGES, ROOT

DOCS = ROOT / "docs"
KATEX = DOCS / "katex"
# Blocks of code and code in a line, in which a dollar is a dollar.
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(?![\s$])([^$\n]+?)(?<!\s)\$", re.DOTALL)
# In a line GitHub takes the backslash of \, \; \{ \_ for Markdown, and a bar ends a table's cell.
IN_A_LINE = re.compile(r"\\[,;!{}_#%|*]|\|")


def formulas(text: str) -> list[tuple[str, str]]:
    """Return the formulas of a page: (formula, "") if it has its own lines, else ("", formula)."""
    return FORMULA.findall(CODE.sub(" ", text))


FORMULAS = {page: formulas((ROOT / page).read_text(encoding="utf-8")) for page in PAGES}


def test_formulas_are_recognised_and_code_is_not() -> None:
    page = "$x$ of $y_t = 1$, `$z$`, \\$5 or $ 6\n\n```text\n$OUT and $TLS\n```\n\n$$\na\n$$\n"
    assert formulas(page) == [("", "x"), ("", "y_t = 1"), ("\na\n", "")]
    for name in ("constructions", "minimal", "certificate", "population"):
        assert len(FORMULAS[f"docs/{name}.md"]) > 40


@pytest.mark.parametrize("page", [page for page in PAGES if FORMULAS[page]])
def test_formulas_also_render_on_github(page: str) -> None:
    for block, inline in FORMULAS[page]:
        formula = block or inline
        assert "\\operatorname" not in formula, f"{page}: GitHub refuses it: {formula}"
        assert not IN_A_LINE.search(inline), f"{page}: {inline}"
        assert not re.search(r"^[-+] ", block, re.MULTILINE), f"{page}: reads as a list: {block}"
        assert formula.count("{") == formula.count("}"), f"{page}: {formula}"


def test_dollars_are_paired() -> None:
    for page in PAGES:
        prose = CODE.sub(" ", (ROOT / page).read_text(encoding="utf-8"))
        assert "$" not in FORMULA.sub(" ", prose), page


def test_katex_is_complete() -> None:
    style = (KATEX / "katex.min.css").read_text(encoding="utf-8")
    named = set(re.findall(r"url\(([^)]+)\)", style))
    assert named == {f"fonts/{font.name}" for font in (KATEX / "fonts").iterdir()}
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for file in ("katex/katex.min.css", "katex/katex.min.js", "formulas.js"):
        assert f"- {file}" in settings and (DOCS / file).exists()


@pytest.mark.browser
def test_katex_can_set_every_formula(chromium) -> None:
    page = chromium.new_page()
    page.set_content("<!doctype html><p class=arithmatex>\\(x_1\\)</p>")
    page.add_script_tag(path=str(KATEX / "katex.min.js"))
    failures = page.evaluate(
        """formulas => formulas.flatMap(formula => {
            try { katex.renderToString(formula, {strict: "error"}); return []; }
            catch (error) { return [`${formula}: ${error.message}`]; }
        })""",
        [block or inline for page_formulas in FORMULAS.values() for block, inline in page_formulas],
    )
    assert failures == []
    # The script of the site replaces the text by what KaTeX draws.
    page.add_script_tag(path=str(DOCS / "formulas.js"))
    page.evaluate("document.dispatchEvent(new Event('DOMContentLoaded'))")
    assert page.locator(".arithmatex .katex").count() == 1
    page.close()
