"""The code on a model card loads the planted network in PyTorch, and it computes its attention."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from underhood.planting import Planting, plant_folder

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("unhooked")


@pytest.mark.parametrize("target", ["torch.LSTM", "torch.GRU"])
def test_the_card_loads_the_network(target, tmp_path, monkeypatch):
    plant_folder(Planting(target, d=2, seed=1), tmp_path / "planted", count=1, decoys=0)
    monkeypatch.chdir(tmp_path / "planted/networks/000")
    card = Path("README.md").read_text("utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE)
    xs = np.random.default_rng(0).normal(size=(3, 12, 2))
    names = {"xs": torch.tensor(xs)}
    exec(code, names)
    [head] = json.loads((tmp_path / "planted/keys/000.json").read_text())["heads"]
    memory = np.cumsum(xs[..., :, None] * xs[..., None, :], axis=1)
    expected = np.einsum("oa,ntab,bc,ntc->nto", head["W_V"], memory, head["M"], xs)
    difference = np.abs(names["ys"].detach().numpy() - expected).max()
    assert difference < 1e-8 * np.abs(expected).max()
