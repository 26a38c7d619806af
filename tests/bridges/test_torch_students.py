"""Students that were trained in PyTorch are read, scored and ranked as those trained here."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_students.py"

pytestmark = pytest.mark.usefixtures("unhooked")


def test_the_example_ranks_students_of_both(capsys, monkeypatch) -> None:
    specification = importlib.util.spec_from_file_location("torch_students", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for name, size in {"LENGTH": 6, "WIDTH": 8, "BATCH": 16}.items():
        monkeypatch.setattr(module, name, size)
    scores = module.main(steps=30)
    assert len(scores) == 5
    assert sum(name.startswith("nn.") for name in scores) == 2
    values = [result.score for result in scores.values()]
    assert np.all(np.isfinite(values)) and all(0 <= value <= 1 for value in values)
    # They are printed in the order of their scores.
    rows = capsys.readouterr().out.splitlines()[2:]
    printed = [float(row.split("|")[3].split("±")[0]) for row in rows]
    assert printed == sorted(printed, reverse=True)
    assert {row.split("|")[1].strip() for row in rows} == set(scores)
