"""README and documentation: blocks run and print what the page says, names and links exist."""

import importlib
import importlib.util
import re
from inspect import ismodule
from pathlib import Path

import hooks
import pictures
import pytest
from refresh import BLOCK, PAGES, ROOT, run_page

import underhood as uh

pytestmark = pytest.mark.usefixtures("unhooked")

NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def outputs(page: str) -> list[str]:
    """Return what the blocks print, with the spaces of columns removed."""
    printed = [block.group(2) or block.group(3) or "" for block in BLOCK.finditer(page)]
    return [" ".join(output.replace("─", "").split()) for output in printed]


def agree(now: str, then: str) -> bool:
    """Whether words and whole numbers are equal, and others within a quarter, or 0.05.

    Numbers in scientific notation are rounding errors and final losses, which differ between
    machines. They agree if both are below one.
    """
    if NUMBER.sub("…", now) != NUMBER.sub("…", then):
        return False

    def near(a: str, b: str) -> bool:
        x, y = float(a.replace("−", "-")), float(b.replace("−", "-"))
        if "e" in a + b:
            return max(abs(x), abs(y)) < 1 or abs(x - y) <= 0.25 * abs(y)
        return abs(x - y) <= max(0.05, 0.25 * abs(y)) if "." in a + b else a == b

    return all(map(near, NUMBER.findall(now), NUMBER.findall(then)))


def test_what_agrees_and_what_does_not() -> None:
    assert agree("14 neurons, error 3e-12, score 0.81", "14 neurons, error 1e-13, score 0.80")
    assert agree("slopes -0.93", "slopes -1.02") and agree("left 0", "left 3.1e-16")
    assert not agree("14 neurons", "15 neurons")
    assert not agree("score 0.81", "score 0.3") and not agree("error 3e-12", "error 3e+01")
    assert not agree("is_attention True", "is_attention False")


def check(page: str) -> None:
    text = text_of(page)
    for now, then in zip(outputs(run_page(text, page)), outputs(text), strict=True):
        assert agree(now, then), f"{page} says\n{then}\nbut the block prints\n{now}"


def test_the_readme_prints_what_it_says_and_is_short() -> None:
    check("README.md")
    assert len(text_of("README.md").splitlines()) <= 150


@pytest.mark.parametrize("name", [page for page in PAGES[1:] if BLOCK.search(text_of(page))])
def test_pages_print_what_they_say(name: str) -> None:
    check(name)


def test_no_block_is_left_out() -> None:
    """Every Python or console block of every page is one that `refresh` finds and runs."""
    for page in PAGES:
        fences = re.findall(r"^\s*```(?:python|console)", text_of(page), re.MULTILINE)
        assert len(fences) == len(BLOCK.findall(text_of(page))), page


def documented(path: str) -> object:
    """What an API page shows; a module and its function may have one name, so modules first."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        if importlib.util.find_spec(name) is not None:
            return getattr(importlib.import_module(name), ".".join(parts[length:]))
    raise AssertionError(path)


def test_every_public_name_is_in_the_api_pages() -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    shown = [documented(path) for path in re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)]
    for module in (uh, uh.tasks, uh.recall, importlib.import_module("underhood.training")):
        given = [name for name, x in vars(module).items() if name[0] != "_" and not ismodule(x)]
        for name in getattr(module, "__all__", given):
            assert name in ("tasks", "recall") or getattr(module, name) in shown, name


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w/]+\.md", text_of("mkdocs.yml").split("\nnav:")[1])
    assert sorted(f"docs/{page}" for page in listed) == sorted(PAGES[1:])


def test_the_pictures_can_be_drawn_and_are_small(tmp_path: Path) -> None:
    drawn = {path.name for path in pictures.main(tmp_path)}
    kept = {path.name: path.stat().st_size for path in pictures.FOLDER.iterdir()}
    assert drawn == set(kept)
    assert max(kept.values()) < 200_000


def test_pictures_are_described_and_modules_that_pages_start_exist() -> None:
    for page in PAGES:
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text_of(page)):
            assert len(words.split()) >= 3, f"{page}: {target} needs an alternative text"
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"
    for page in (*PAGES, "CHANGELOG.md"):
        for module in re.findall(r"python -m (underhood[\w.]*\w)", text_of(page)):
            assert importlib.util.find_spec(module), f"{page}: {module}"


def test_links_between_pages_exist() -> None:
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
        links = re.findall(r"\]\((?!http|#)([^)#]+)", prose)
        assert links or page != "README.md"
        for link in links:
            assert (ROOT / page).parent.joinpath(link).exists(), f"{page}: {link}"


def test_links_that_leave_the_documentation_are_rewritten(tmp_path: Path) -> None:
    figure = "results/paper/figure2/figure.png"
    for name in (figure, "examples/own_layer.py", "LICENSE"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    site = {figure, "files.md", "howto/train.md", "examples.md"}
    inside = "[files](../files.md#foreign-files)"
    for page, link, expected in (
        ("a.md", f"![x](../{figure})", f"![x]({figure})"),
        ("howto/train.md", f"![x](../../{figure})", f"![x](../{figure})"),
        ("a.md", "[script](../examples/own_layer.py)", "[script](examples.md)"),
        ("a.md", "[`LICENSE`](../LICENSE)", "`LICENSE`"),
        ("a.md", "[terms](../LICENSE)", "terms (`LICENSE`)"),
        ("howto/train.md", inside, inside),
        ("a.md", "[gone](../gone.md)", "[gone](../gone.md)"),
    ):
        assert hooks.rewritten(link, page, tmp_path, site) == expected
