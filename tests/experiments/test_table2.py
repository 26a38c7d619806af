"""Table 2: what is read from a network on queries without y, and from one gradient step."""

import jax
import numpy as np
import pytest
from scrambles import rebuilt
from teachers import random_gated

import underhood as uh
from underhood.experiments.paper.table2 import TABLE2_PAPER, blind_queries, describe_student
from underhood.tasks import InContextRegression

pytestmark = pytest.mark.usefixtures("x64")

TASK = InContextRegression()
STEP = 1 / 14.8


def network(seed: int) -> uh.GatedRNN:
    """Random, with query neurons that forget at once and others that do not."""
    rng = np.random.default_rng(seed)
    return random_gated(rng, TASK.d_in, 9, 7, TASK.d_out, (0.0, 0.0, 0.4, 1.0))


def test_answers_at_a_query_do_not_change_when_query_neurons_read_no_y() -> None:
    xs = TASK.sample(jax.random.key(0), 5).inputs
    assert np.all(np.asarray(xs)[:, -1, TASK.d_x :] == 0)
    for seed in range(3):
        rnn = network(seed)
        before, after = jax.vmap(rnn)(xs), jax.vmap(blind_queries(rnn, TASK.d_x))(xs)
        np.testing.assert_allclose(after[:, -1], before[:, -1], rtol=1e-12, atol=1e-12)
        # Earlier tokens have a y, which the query neurons of the first network read.
        assert np.max(np.abs(after[:, :-1] - before[:, :-1])) > 0.1


def test_only_what_query_neurons_read_of_y_goes() -> None:
    rnn = network(0)
    query = np.asarray(rnn.decay) == 0
    assert query.any() and not query.all()
    kept = {name: np.array(getattr(rnn, name)) for name in ("W_in_m", "W_in_x")}
    blind = blind_queries(rnn, TASK.d_x)
    for name, W in kept.items():
        expected = W.copy()
        expected[query, TASK.d_x : -1] = 0
        np.testing.assert_array_equal(getattr(blind, name), expected)
        # The network that was given is left alone.
        np.testing.assert_array_equal(getattr(rnn, name), W)
    for name in ("nu", "W_out_m", "W_out_x", "D"):
        np.testing.assert_array_equal(getattr(blind, name), getattr(rnn, name))


@pytest.mark.parametrize("form", ["minimal", "full"])
def test_a_compiled_gradient_step_has_the_table_s_coefficients(form: str) -> None:
    row = describe_student(uh.compile(TASK.best_attention(), "gated_rnn", form).layer, TASK)
    assert [row[name] for name in TABLE2_PAPER] == pytest.approx([STEP] * 3, rel=1e-12)
    for name in ("residual", "residual_at_query", "not attention", "attention - GD"):
        # The square root of rounding.
        assert row[name] < 1e-7, name
    # W*xxᵀ: every product of a y and an x.
    assert row["memory neurons"] == TASK.d_x * TASK.d_y


def test_what_a_network_does_with_the_y_of_its_query_is_told_apart() -> None:
    built = uh.compile(TASK.best_attention(), "gated_rnn", "minimal").layer
    # Query neurons that pass on x + y/10.
    W_in_x = np.array(built.W_in_x)
    W_in_x[np.asarray(built.decay) == 0, TASK.d_x] += 0.1
    row = describe_student(rebuilt(built, W_in_x=W_in_x), TASK)
    assert row["residual"] > 1e-3
    assert row["residual_at_query"] < 1e-7 and row["attention - GD"] < 1e-7


def test_another_step_size_is_at_its_distance() -> None:
    best = TASK.best_attention()
    longer = uh.LinearAttention(1.1 * best.W_V, best.W_K, best.W_Q)
    row = describe_student(uh.compile(longer).layer, TASK)
    assert [row[name] for name in TABLE2_PAPER] == pytest.approx([1.1 * STEP] * 3)
    assert row["attention - GD"] == pytest.approx(0.1)
    assert row["residual"] < 1e-7
