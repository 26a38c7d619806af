"""The notebooks run from top to bottom, and are stored without outputs.

Cells are run with exec, one after the other in one namespace, and the last expression of a cell is
shown as a notebook shows it. That needs no further package, and an error has a plain traceback.
"""

import ast
import json
from pathlib import Path

import jax
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
# All run where torch is: in `make bridges`, not once more with all other tests.
NEEDS = {
    "trained_lstm": ("torch",),
    "compiled_mamba": ("torch", "transformers"),
    "discovery": ("torch",),
}


def cells_of(path):
    return json.loads(path.read_text("utf-8"))["cells"]


def run_cell(source, names, where):
    """Run a cell; return its last expression as HTML or as text, if it is one."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    shown = getattr(value, "_repr_html_", None)
    return repr(value) if shown is None else shown()


@pytest.mark.slow
@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("name", NEEDS)
def test_a_notebook_runs(name: str) -> None:
    for package in NEEDS[name]:
        pytest.importorskip(package)
    names: dict = {"__name__": "__main__"}
    cells = [cell for cell in cells_of(NOTEBOOKS / f"{name}.ipynb") if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    assert any("assert " in source for source in sources)
    for number, source in enumerate(sources):
        shown = run_cell(source, names, f"{name}.ipynb, code cell {number}")
        assert shown is None or len(shown) < 100_000
    assert not jax.config.jax_enable_x64


def test_notebooks_are_small_plain_and_without_outputs() -> None:
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert [path.stem for path in paths] == sorted(NEEDS)
    for path in paths:
        document = json.loads(path.read_text("utf-8"))
        assert document["nbformat"] == 4 and path.stat().st_size < 20_000
        assert document["cells"][0]["cell_type"] == "markdown"
        assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
        for cell in document["cells"]:
            assert cell["cell_type"] == "markdown" or (
                cell["outputs"] == [] and cell["execution_count"] is None
            )
