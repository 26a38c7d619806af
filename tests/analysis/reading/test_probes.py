"""Probes against plain regressions."""

import numpy as np
import pytest
from teachers import attention

import underhood as uh
from underhood.analysis.reading.influences import SAMPLED_SEQUENCES
from underhood.analysis.reading.probes import memory_filling

pytestmark = pytest.mark.usefixtures("x64")


def regression(features: np.ndarray, targets: np.ndarray) -> float:
    """1 − R² with an intercept, averaged over targets: one plain least-squares fit for each."""
    design = np.hstack([np.ones((len(features), 1)), features])
    scores = []
    for target in targets.T:
        left = target - design @ np.linalg.lstsq(design, target)[0]
        scores.append(np.sum(left**2) / np.sum((target - target.mean()) ** 2))
    return float(np.mean(scores))


@pytest.mark.parametrize("form", ["full", "compact", "minimal"])
def test_compiled_networks_hold_their_own_attention_and_their_memory_fills(form):
    for d in (1, 3):
        source = attention(d, 2)
        rnn = uh.compile(source, "gated_rnn", form).layer
        probes = uh.probe(rnn, source)
        # The smallest memory holds only what the outputs need, which at full rank is everything.
        assert probes.score_kv < 1e-20 and probes.score_q < 1e-20
        assert probes.query == d and probes.memory in (d * d, d * (d + 1) // 2)
        assert f"{probes.memory} memory neurons" in str(probes)
    seen = memory_filling(rnn, source, time=5)
    values, keys = (seen.tokens @ W.T for W in (source.W_V, source.W_K))
    written = np.cumsum(np.einsum("ti,tj->tij", values, keys), axis=0)
    np.testing.assert_allclose(seen.attention, written, atol=1e-12)
    np.testing.assert_allclose(seen.neurons, written, atol=1e-9)
    # Neurons that hold a part of the memory do not tell of the rest.
    part = uh.LinearAttention(np.eye(3)[:1], np.eye(3)[1:2], np.eye(3)[1:2])
    partly = memory_filling(uh.compile(part).layer, source, time=5)
    assert np.abs(partly.neurons - partly.attention).max() > 0.1


def test_biases_and_decays_are_held_too():
    extra = {"b_V": np.ones(2), "b_K": np.array([0.5, -1.0]), "b_Q": np.ones(2)}
    source = attention(2, 1, **extra, decay=np.array([0.9, 0.5]))
    rnn = uh.compile(source, "gated_rnn", "full").layer
    probes = uh.probe(rnn, source)
    assert probes.score_kv < 1e-20 and probes.score_q < 1e-20 and probes.memory == 4
    # Memory that does not fade is another one, and these neurons do not hold it.
    forever = uh.probe(rnn, attention(2, 1, **extra))
    assert (forever.memory, forever.score_kv) == (0, 1.0) and forever.score_q < 1e-20


def test_unrelated_neurons_hold_nothing():
    first, second = np.eye(4)[:2], np.eye(4)[2:]
    rnn = uh.compile(uh.LinearAttention(first[:1], first[1:], first[1:])).layer
    probes = uh.probe(rnn, uh.LinearAttention(second[:1], second[1:], second[1:]))
    assert 0.95 < probes.score_kv <= 1.0 and 0.95 < probes.score_q <= 1.0
    side = uh.compile(attention(2), "side_gated_rnn").layer
    probes = uh.probe(side, attention(2))
    assert (probes.query, probes.score_q) == (0, 1.0) and probes.score_kv < 1e-20


def test_probes_are_plain_regressions():
    rng = np.random.default_rng(0)
    W_m, W_x = rng.normal(size=(2, 5, 3))
    decay = np.array([1.0, 0.99, 0.0, 0.01, 0.5])
    W_out = np.ones((1, 5))
    rnn = uh.GatedRNN(
        W_in_m=W_m, W_in_x=W_x, decay=decay, W_out_m=W_out, W_out_x=W_out, D=np.ones((1, 1))
    )
    source = attention(2, 3, b_K=np.ones(2))
    probes = uh.probe(rnn, source, time=6, seed=7)
    xs = np.random.default_rng(7).normal(size=(SAMPLED_SEQUENCES, 6, 2))
    states, memories, queries = [], [], []
    for sequence in xs:
        h, memory = np.zeros(5), np.zeros((2, 2))
        for x in sequence:
            z = np.append(x, 1.0)
            h = decay * h + (W_m @ z) * (W_x @ z)
            memory = memory + np.outer(source.W_V @ x, source.W_K @ x + 1.0)
            states.append(h)
            memories.append(memory.ravel())
            queries.append(source.W_Q @ x)
    states, memories, queries = (np.array(rows) for rows in (states, memories, queries))
    assert (probes.memory, probes.query) == (2, 2)
    assert 0.05 < probes.score_kv < 1 and 0.05 < probes.score_q < 1
    assert probes.score_kv == pytest.approx(regression(states[:, :2], memories), rel=1e-9)
    assert probes.score_q == pytest.approx(regression(states[:, 2:4], queries), rel=1e-9)
