"""The examples run, at a fraction of their size."""

import importlib.util
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import underhood as uh

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.usefixtures("unhooked")

# Examples import each other as scripts do.
sys.path.insert(0, str(EXAMPLES))


def load(name):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_whole_story_ends_with_the_teachers_attention(capsys):
    decompiled = load("whole_story").main(d=2, width=12, steps=1000)
    assert decompiled.is_attention and decompiled.residual < 1e-6
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("trained:", "polished:", "reduced:", "an LSTM"))


def test_a_layer_of_ones_own_learns(capsys):
    run = load("own_layer").main(steps=300)
    assert len(run.models) == 6
    assert all(row["normalised_loss"] < 0.3 for row in run.rows)
    assert "the best one: attention score 0.9" in capsys.readouterr().out


def test_attention_becomes_one_step_of_gradient_descent(capsys):
    distances = load("attention_learns_descent").main(steps=3000, seeds=1)
    assert max(distances) < 0.1
    assert "loss 0.094595" in capsys.readouterr().out


def test_the_recipe_search_counts_what_matters():
    attention = uh.LinearAttention.init(d_in=4, key=jax.random.key(0))
    built = uh.compile(attention, dtype="float32").layer
    counts = load("recipe_search").what_matters(built)
    np.testing.assert_array_equal(counts, [14, 10, 0, 10])


def test_the_study_of_discovery_runs(capsys):
    run = load("discovery").main("noisy", seeds=1, steps=20)
    assert len(run.models) == 1
    assert "best possible loss 0.0945946" in capsys.readouterr().out


def test_other_rates_are_reported_and_not_judged(tmp_path, capsys):
    rates = load("other_rates")
    trials = ((rates.GATED, 1, 4, 3e-3), (rates.GATED, 1, 4, 1e-2))
    result = rates.main(tmp_path, "smoke", trials)
    assert [row["rate"] for row in result["rows"]] == [3e-3, 1e-2]
    losses = [row["loss"] for row in result["rows"]]
    assert all(np.isfinite(losses)) and losses[0] != losses[1]
    assert not result["numbers"] and result["verdict"] == "not judged"
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert "at 0.01: median loss" in capsys.readouterr().out
    # Finished runs are read, so the rows are the same.
    assert rates.main(tmp_path, "smoke", trials)["rows"] == result["rows"]


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_examples_say_what_they_show_and_are_documented(name):
    if name.startswith("torch_"):
        # The tests of the bridges run these.
        pytest.importorskip("torch")
    module, page = load(name), (EXAMPLES.parent / "docs/examples.md").read_text("utf-8")
    assert module.__doc__.splitlines()[0].endswith(".")
    assert f"examples/{name}.py" in page
