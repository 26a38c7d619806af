"""The blocks of docs/bridges.md that need PyTorch; the others run with all pages."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bridges.md"


@pytest.mark.usefixtures("unhooked")
def test_the_blocks_for_pytorch_run() -> None:
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    names: dict = {}
    for block in blocks:
        assert "assert " in block
        exec(compile(block, str(PAGE), "exec"), names)
