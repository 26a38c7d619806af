"""The page on the architecture and CONTRIBUTING say what the code is now."""

import ast
import itertools
import re
from pathlib import Path

import architecture
import pytest
from refresh import PAGES, ROOT, run_page
from test_structure import ALLOWED

PAGE = "docs/architecture.md"
GUIDE = "CONTRIBUTING.md"
# `constructions/compiling.py`, `underhood/tasks/moments.py`, `benchmarks/house.py`
PATH = re.compile(r"`((?:\w+/)*\w+\.py)`")
# `prune` in `underhood/analysis/shrinking/pruning.py`
NAME_IN_FILE = re.compile(r"`(\w+)` in `(?:underhood/)?((?:\w+/)*\w+\.py)`")
# | 1 | `file` | `function`, `Class.method` | what happens |
STAGE = re.compile(r"^\| *\d+ *\| *`([\w/]+\.py)` *\| *(`.+?`) *\|", re.MULTILINE)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose_of(page: str) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def missing_files(text: str) -> list[str]:
    """List the Python files that a text names and nobody has, here or in underhood/."""
    places = (ROOT, ROOT / "underhood")
    return [
        name for name in PATH.findall(text) if not any((place / name).exists() for place in places)
    ]


def defined_names(source: str) -> set[str]:
    """Return the functions, classes and constants of a module, and `Class.method`."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def undefined(text: str) -> list[str]:
    """List the names that a text places in a file which does not define them."""
    stages = [(path, re.findall(r"`(.+?)`", names)) for path, names in STAGE.findall(text)]
    return [
        f"{path}: {name}"
        for path, names in [*stages, *((path, [name]) for name, path in NAME_IN_FILE.findall(text))]
        for name in names
        if name not in defined_names((ROOT / "underhood" / path).read_text(encoding="utf-8"))
    ]


# --- what the script draws


def test_picture_and_table_hold_every_folder_and_are_drawn_from_the_code_of_now() -> None:
    imports, page = architecture.read_imports(), text_of(PAGE)
    picture, again = architecture.draw(imports), "run python docs/architecture.py"
    assert architecture.PICTURE.read_text(encoding="utf-8") == picture, again
    assert page == architecture.with_table(page, imports), again
    folders = {path.parent.name for path in architecture.PACKAGE.glob("*/__init__.py")}
    assert set(imports) == folders
    for folder in folders:
        assert f">{folder}</text>" in picture and f"| `{folder}` |" in page


def test_imports_inside_functions_count(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text("import jax\n\n\ndef later():\n    from underhood.training import train\n")
    assert architecture.imported_modules(file) == {"jax", "underhood.training.train"}


def test_arrows_that_follow_from_others_are_left_out() -> None:
    imports = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}
    assert architecture.without_shortcuts(imports) == {**imports, "a": {"b"}}
    assert architecture.rows_of(imports) == [["a", "d"], ["b"], ["c"]]


def test_long_arrows_pass_between_the_boxes() -> None:
    imports = {"a": {"b", "d"}, "b": {"c"}, "c": set(), "d": {"c"}, "e": {"c"}}
    rows, pieces = architecture.with_bends(architecture.rows_of(imports), imports)
    assert rows[1] == ["b", "d", "e→c:1"] and ("e", "e→c:1") in pieces
    centre, width = architecture.places(rows, pieces)
    for row in rows:
        edges = sorted((centre[item], architecture.width_of(item) / 2) for item in row)
        for (left, half), (right, other_half) in itertools.pairwise(edges):
            assert left + half < right - other_half
        assert edges[0][0] - edges[0][1] > 0 and edges[-1][0] + edges[-1][1] < width


# --- names on the pages


@pytest.mark.parametrize("page", [GUIDE, *PAGES])
def test_files_and_names_of_a_page_exist(page: str) -> None:
    assert missing_files(prose_of(page)) == []
    assert undefined(prose_of(page)) == []


def test_the_page_shows_the_way_of_every_kind_of_call() -> None:
    ways = re.findall(r"^### One `(\w+)`", text_of(PAGE), re.MULTILINE)
    assert ways == ["compile", "train", "fit", "decompile", "reproduce", "sweep"]
    assert len(STAGE.findall(text_of(PAGE))) >= 5 * len(ways)


def test_a_wrong_name_would_be_noticed() -> None:
    files = "`layers/gru.py`, `underhood/layers/gru.py` and `layers/gone.py`"
    assert missing_files(files) == ["layers/gone.py"]
    row = "| 1 | `layers/gru.py` | `GRU`, `GRU.step`, `GRU.leap`, `gone` | what |"
    assert undefined(row) == ["layers/gru.py: GRU.leap", "layers/gru.py: gone"]
    names = "`GRU` in `underhood/layers/gru.py`, `gone` in `layers/gru.py`"
    assert undefined(names) == ["layers/gru.py: gone"]


# --- CONTRIBUTING


@pytest.mark.usefixtures("unhooked")
def test_the_examples_of_the_guide_run_and_print_what_it_says() -> None:
    assert run_page(text_of(GUIDE), GUIDE) == text_of(GUIDE)


def test_the_guide_says_who_may_import_whom() -> None:
    section = text_of(GUIDE).split("## Where things go")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", section, re.MULTILINE)
    allowed = {folder: set(re.findall(r"`(\w+)`", names)) for folder, names in rows}
    # The package itself and `python -m underhood` are no folders.
    folders = set(ALLOWED) - {"underhood", "__main__"}
    assert set(architecture.read_imports()) <= folders
    assert allowed == {folder: ALLOWED[folder] & folders for folder in folders}
