"""Sparse runs of compiled layers against the layers themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from underhood.layers import GatedRNN, SideGatedRNN
from underhood.recall import build, predict
from underhood.recall.running import draw_batch, embed
from underhood.recall.sparse import SparseLayer, SparseWeights, runs_sparse, sparse_shares
from underhood.tasks import MQAR

SIZES = {"vocab": 1024, "keys": 8, "values": 5, "codes": "dense"}


@pytest.mark.parametrize("kind", [GatedRNN, SideGatedRNN])
def test_any_layer_runs_as_itself(kind, x64):
    sizes = {"d_in": 3, "hidden": 7, "d_out": 2} | ({"gated": 4} if kind is GatedRNN else {})
    layer = kind.init(**sizes, key=jax.random.key(0))
    xs = np.asarray(jax.random.normal(jax.random.key(1), (2, 6, 3)))
    wanted = np.asarray(jax.vmap(layer)(xs))
    run = SparseLayer(layer, 2, "float64")
    outputs = [run.read(run.update(np.ascontiguousarray(xs[:, t].T))).T for t in range(6)]
    np.testing.assert_allclose(np.stack(outputs, axis=1), wanted, atol=1e-12)
    run.reset()
    assert not run.state.any()


@pytest.mark.parametrize("target", ["gated_rnn", "side_gated_rnn"])
@pytest.mark.parametrize("stacked", [False, True])
def test_shares_are_those_of_the_layers(target, stacked, x64):
    network = build(**SIZES, target=target, stacked=stacked, dtype="float64")
    task = MQAR(6, 12 if stacked else 24, 1024, stacked=stacked)
    # More than a group, and not a multiple of it.
    symbols, labels = (np.asarray(part) for part in draw_batch(task, jax.random.key(2), 41))
    shares = sparse_shares(
        *(network.layers, network.embeddings, network.codes, task, symbols, labels),
        dtype="float64",
    )
    for place in (0, 31, 32, 40):
        xs = embed(jnp.asarray(network.embeddings), jnp.asarray(symbols[place]), task)
        for layer in network.layers:
            xs = layer(xs)
        scored = labels[place] != -100
        chosen = np.argmax(np.asarray(xs)[scored] @ network.codes.W.T + network.codes.b, axis=1)
        answers = labels[place][scored] - (0 if stacked else task.half)
        assert shares[place] == np.mean(chosen == answers)
    assert 0 < shares.mean() < 1


def test_weights_with_other_rows_than_one_entry():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3))
    scaled = np.diag([1.0, -2.0, 3.0, 0.5])[[2, 0, 1, 3]]
    for W in (np.eye(4)[[3, 3, 0]], scaled, rng.normal(size=(5, 4)), np.zeros((2, 4))):
        np.testing.assert_allclose(SparseWeights(W) @ x, W @ x, atol=1e-15)


def test_other_layers_do_not_run_here():
    network = build(state=16, vocab=1024, codes="hash", stacked=True, target="lstm")
    assert not runs_sparse(network.layers)


def test_an_accuracy_by_formula_is_a_share():
    # The quadrature's weights add up to 1 + 4e-16.
    assert predict(MQAR(4, 64), keys=126, values=96) == 1
