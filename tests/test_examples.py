"""The examples run, at a fraction of their size."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

pytestmark = pytest.mark.usefixtures("unhooked", "quick_compile")


# Examples import each other as scripts do.
sys.path.insert(0, str(EXAMPLES))


def load(name):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_a_layer_of_ones_own_learns():
    run = load("own_layer").main(steps=300)
    assert len(run.models) == 6
    assert all(row["normalised_loss"] < 0.3 for row in run.rows)


def test_attention_becomes_one_step_of_gradient_descent(capsys):
    distances = load("attention_learns_descent").main(steps=3000, seeds=1)
    assert max(distances) < 0.1
    assert "loss 0.094595" in capsys.readouterr().out


def test_the_recipe_search_counts_what_matters():
    import jax

    import underhood as uh

    search = load("recipe_search")
    attention = uh.LinearAttention.init(d_in=4, key=jax.random.key(0))
    built = uh.compile(attention, dtype="float32").layer
    counts = search.what_matters(built)
    np.testing.assert_array_equal(counts, [14, 10, 0, 10])


def test_the_study_of_discovery_runs(capsys):
    run = load("discovery").main("noisy", seeds=1, steps=20)
    assert len(run.models) == 1
    assert "best possible loss 0.0945946" in capsys.readouterr().out
