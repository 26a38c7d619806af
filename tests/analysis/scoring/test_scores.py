"""attention_score: exact layers score 1, planted terms cost what they weigh, the rest is low."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.optimize import least_squares
from teachers import attention

import underhood as uh
from underhood.analysis.scoring.fitting import Quadratic, fit_memory, quadratic_model
from underhood.analysis.scoring.pairs import SequencePairs
from underhood.analysis.scoring.problem import WHOLE_WEIGHT, Problem
from underhood.analysis.scoring.scores import AttentionScore, attention_score
from underhood.constructions.sources.reference import reference

KEY = jax.random.key(3)
SMALL = {"time": 16, "sequences": 64}
FADING = np.full(3, 0.8)


def all_pairs(xs: np.ndarray, others: np.ndarray) -> SequencePairs:
    """Every sequence with its partner, at every time but the first."""
    many, time, _ = xs.shape
    place, first = (grid.ravel() for grid in np.meshgrid(np.arange(1, time), np.arange(many)))
    return SequencePairs(np.concatenate([xs, others]), first, many + first, place, many)


def problem_of(layer, pairs: SequencePairs, noise: float = 0.0) -> Problem:
    """The problem of a function [batch, time, d] → [batch, time, outputs], with noise."""
    rng = np.random.default_rng(9)
    outputs = []
    for past in (pairs.first, pairs.second):
        xs = pairs.pasts[past].copy()
        xs[np.arange(len(xs)), pairs.place] = pairs.tokens
        outputs.append(layer(xs)[np.arange(len(xs)), pairs.place])
    ys, others = (array + noise * rng.normal(size=array.shape) for array in outputs)
    return Problem(pairs, ys - others, ys, 1.0)


def function_of(layer: uh.LinearAttention) -> np.ndarray:
    """W_V⊗M, all that the outputs depend on, with [W|b] in place of W."""
    V, K, Q = layer.augmented()
    return np.einsum("oa,bc->oabc", V, K.T @ Q)


def distance(result: uh.LinearAttention, source: uh.LinearAttention) -> float:
    expected = function_of(source)
    return np.linalg.norm(function_of(result) - expected) / np.linalg.norm(expected)


# --- layers that are attention


@pytest.mark.parametrize("target", ["gated_rnn", "side_gated_rnn", "mamba"])
@pytest.mark.parametrize(
    "source",
    [attention(3), attention(3, d_v=2, rank_m=2), attention(3, decay=FADING)],
    ids=["square", "low rank", "decay"],
)
def test_exact_layers_score_one(target: str, source: uh.LinearAttention) -> None:
    result = attention_score(uh.compile(source, target).layer, key=KEY, **SMALL)
    assert min(result.score, result.score_with_biases, result.state_kv) >= 1 - 1e-9
    assert distance(result.attention, source) <= 1e-9
    assert result.attention.W_K.shape[0] == np.linalg.matrix_rank(source.W_K.T @ source.W_Q)
    assert result.decay == pytest.approx(1.0 if source.decay is None else 0.8, abs=1e-9)
    # Only the gated RNN has to remember the query: side gates and Mamba read it from the input.
    assert result.state_q >= 1 - 1e-9 if target == "gated_rnn" else result.state_q <= 0.1
    assert result.notes == ()


@pytest.mark.parametrize("target", ["lru_in_out", "lstm", "gru"])
def test_linearised_layers_score_one(target: str) -> None:
    source = attention(2, seed=1)
    result = attention_score(uh.compile(source, target).layer, key=KEY, **SMALL)
    assert min(result.score, result.state_kv) >= 1 - 1e-6 and result.decay == 1
    assert distance(result.attention, source) <= 1e-6


def test_biases_are_found_by_the_fit_that_has_them() -> None:
    rng = np.random.default_rng(1)
    biases = dict(zip(("b_V", "b_K", "b_Q"), rng.normal(size=(3, 3)), strict=True))
    source = attention(3, seed=2, **biases)
    result = attention_score(uh.compile(source, "gated_rnn").layer, key=KEY, **SMALL)
    assert result.score_with_biases >= 1 - 1e-9
    assert distance(result.attention_with_biases, source) <= 1e-9
    assert result.attention.b_V is None
    assert result.score <= 0.95


def test_float32_weights_are_promoted_and_the_judge_is_the_layer_itself() -> None:
    source = uh.LinearAttention.init(d_in=3, key=jax.random.key(5))
    result = attention_score(source, key=jax.random.PRNGKey(0), **SMALL)
    assert result.score >= 1 - 1e-9
    with jax.enable_x64(True):
        xs = jax.random.normal(KEY, (9, 3), jnp.float64)
        np.testing.assert_allclose(result.attention(xs), source(xs), rtol=1e-9, atol=1e-9)
    # The weights of a user's class are promoted too.
    result = attention_score(Doubles(jnp.ones((1, 2))), key=KEY, d_in=2, **SMALL)
    assert result.degrees[1] == pytest.approx(1, abs=1e-12)


class Doubles(eqx.Module):
    """Own layer: W x, where all there is must be float64."""

    W: jax.Array

    def __call__(self, xs: jax.Array) -> jax.Array:
        assert (self.W.dtype, xs.dtype) == (jnp.float64, jnp.float64)
        return xs @ self.W.T


def test_newton_steps_know_the_derivatives() -> None:
    rng = np.random.default_rng(2)
    pairs = all_pairs(*rng.normal(size=(2, 8, 6, 2)))
    data = pairs, *rng.normal(size=(2, len(pairs.place), 3))
    W_V, M, decay, step = rng.normal(size=(3, 2)), rng.normal(size=(2, 2)), 0.7, 1e-6
    change_V, change_M = rng.normal(size=(3, 2)), rng.normal(size=(2, 2))
    change_M -= np.sum(change_M * M) / np.sum(M * M) * M  # their common scale is held fixed

    def model(size: float, faster: float = 0.0) -> Quadratic:
        problem = Problem(*data, decay + faster)
        fit = problem.fit(W_V + size * change_V, M + size * change_M)
        return quadratic_model(problem, fit, free_decay=True)

    here, losses = model(0.0), [Problem(*data, decay + h).fit(W_V, M).cost for h in (-step, step)]
    slope = -(losses[1] - losses[0]) / (4 * step)
    assert here.gradient[-1] == pytest.approx(slope, rel=1e-6)
    # By λ, with W_V and M at rest.
    by_V = (model(0, -step).gradient_V - model(0, step).gradient_V) / (2 * step)
    by_M = (model(0, -step).gradient - model(0, step).gradient)[:-1] / (2 * step)
    np.testing.assert_allclose(here.cross[:, :, -1], by_V, rtol=1e-5)
    np.testing.assert_allclose(here.N[:-1, -1], by_M, rtol=1e-5)
    # By W_V and M, with λ at rest.
    by_V = (model(-step).gradient_V - model(step).gradient_V) / (2 * step)
    by_M = (model(-step).gradient - model(step).gradient)[:-1] / (2 * step)
    flat = change_M.ravel()
    np.testing.assert_allclose(change_V @ here.K + here.cross[:, :, :-1] @ flat, by_V, rtol=1e-5)
    expected = here.N[:-1, :-1] @ flat + np.tensordot(change_V, here.cross[:, :, :-1])
    np.testing.assert_allclose(expected, by_M, rtol=1e-5)


def test_two_minima_are_told_apart() -> None:
    # With W_V and M of almost rank one, W_V and M can almost change places.
    source = attention(2, 3, decay=np.full(2, 0.6))
    assert np.linalg.cond(source.W_V) > 100
    pairs = all_pairs(*np.random.default_rng(0).normal(size=(2, 64, 12, 2)))
    problem = problem_of(lambda xs: reference(source, xs), pairs)
    assert fit_memory(problem).cost <= 1e-20 * problem.total


# --- layers that are partly attention


def test_a_planted_term_of_degree_four_costs_its_share() -> None:
    time, share = 12, 0.3
    source = attention(4, seed=4)
    # (Σ x₀x₁)(x₂x₃) has variance t at time t, and no correlation with odd degrees.
    variance = share / (1 - share) * uh.tasks.TeacherStudent(source, length=time).scale
    size = np.sqrt(variance * source.d_out * 2 / (time + 1))
    planted = with_product(uh.compile(source, "gated_rnn").layer, size)
    result = attention_score(planted, key=KEY, time=time, sequences=768)
    assert result.whole == pytest.approx(1 - share, abs=4 * result.errors.whole + 0.01)
    assert result.score == result.form < result.whole and result.decay == 1
    assert result.form == pytest.approx(share_of_memory(source, size, time), abs=0.05)
    assert distance(result.attention, source) <= 0.15
    assert result.degrees[4] == pytest.approx(share, abs=0.15)
    assert result.degrees[3] + result.degrees[4] == pytest.approx(1, abs=1e-9)


def share_of_memory(source: uh.LinearAttention, size: float, time: int) -> float:
    """Attention's share of E|Δy|² beside size·(Σ x₀x₁)(x₂x₃), from 20,000 pairs."""
    rng = np.random.default_rng(0)
    pasts, tokens = rng.normal(size=(2, 20_000, time - 1, 4)), rng.normal(size=(20_000, 4))
    attends, plants = 0.0, 0.0
    S, products = np.zeros((20_000, 4, 4)), np.zeros(20_000)
    for t in range(time - 1):
        for sign, past in zip((1, -1), pasts[:, :, t], strict=True):
            S += sign * past[:, :, None] * past[:, None]
            products += sign * past[:, 0] * past[:, 1]
        read = (S @ (tokens @ (source.W_K.T @ source.W_Q).T)[:, :, None])[:, :, 0] @ source.W_V.T
        attends += np.sum(read**2)
        plants += size**2 * np.sum((products * tokens[:, 2] * tokens[:, 3]) ** 2)
    return attends / (attends + plants)


def with_product(layer: uh.GatedRNN, size: float) -> uh.GatedRNN:
    """One more product beside all others: size·(Σ x₀x₁)(x₂x₃) on the first output."""
    unit = np.eye(layer.d_in + 1)
    return uh.GatedRNN(
        W_in_m=np.vstack([layer.W_in_m, unit[[0, 2]]]),
        W_in_x=np.vstack([layer.W_in_x, unit[[1, 3]]]),
        decay=np.append(layer.decay, [1.0, 0.0]),
        W_out_m=block_diag(layer.W_out_m, [[1.0, 0.0]]),
        W_out_x=block_diag(layer.W_out_x, [[0.0, 1.0]]),
        D=np.hstack([layer.D, size * np.eye(layer.d_out)[:, :1]]),
    )


@pytest.mark.parametrize("seed", range(2))
def test_no_general_optimiser_finds_a_better_fit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = all_pairs(*rng.normal(size=(2, 48, 8, 2)))
    source = attention(2, seed, decay=np.full(2, 0.7))
    problem = problem_of(lambda xs: np.tanh(reference(source, xs)), pairs, noise=0.3)
    weight = WHOLE_WEIGHT * np.sum(problem.differences**2) / np.sum(problem.outputs**2)

    def misfit(weights: np.ndarray) -> np.ndarray:
        W_V, M, decay = weights[:4].reshape(2, 2), weights[4:8].reshape(2, 2), weights[8]
        memory = []
        for past in (pairs.first, pairs.second):
            S = np.zeros((len(past), 2, 2))
            for t in range(8):
                x = pairs.pasts[past, t]
                before = (t < pairs.place)[:, None, None]
                S = np.where(before, decay * S + x[:, :, None] * x[:, None], S)
            z = pairs.tokens
            memory.append(decay * S + z[:, :, None] * z[:, None])
        first, second = (np.einsum("oa,nab,bc,nc->no", W_V, S, M, pairs.tokens) for S in memory)
        missed = (first - second - problem.differences, first - problem.outputs)
        return np.concatenate([missed[0].ravel(), np.sqrt(weight) * missed[1].ravel()])

    low, high = [-np.inf] * 8 + [0.0], [np.inf] * 8 + [1.0]
    starts = [np.append(rng.normal(size=8), rng.uniform()) for _ in range(3)]
    best = min(2 * least_squares(misfit, start, bounds=(low, high)).cost for start in starts)
    result = fit_memory(problem)
    # λ = 1 is preferred to a λ that is better by no more than chance.
    slack = 10 / len(problem.zs) if result.decay == 1 else 1e-5
    assert result.cost <= best * (1 + slack)


def test_random_layers_score_low_and_what_attention_cannot_do_scores_zero() -> None:
    for layer in (
        uh.LSTM.init(d_in=3, hidden=8, key=jax.random.key(1)),
        uh.DenseGatedRNN.init(d_in=3, hidden=8, gated=8, d_out=2, key=jax.random.key(1)),
    ):
        result = attention_score(layer, key=KEY, **SMALL)
        assert 0 <= result.score < 0.1 and 0 < result.state_kv < 1
        assert result.state_rank <= 2 * layer.neurons
    # Odd in the past: on the sequences it was fitted to, attention would explain a little.
    total = attention_score(lambda xs: jnp.cumsum(xs, axis=0), key=KEY, d_in=2, **SMALL)
    assert total.score == 0 and total.degrees[1] == pytest.approx(1, abs=1e-9)
    # Values x, and constant keys and queries: attention with biases.
    assert total.score_with_biases >= 1 - 1e-9


# --- degrees


def test_degrees_of_attention_of_a_random_gated_rnn_and_of_no_polynomial() -> None:
    result = attention_score(attention(3), key=KEY, **SMALL)
    np.testing.assert_allclose(result.degrees, [0, 0, 0, 1, 0, 0], atol=1e-12)
    assert result.missed_by_degree_5 <= 1e-12
    layer = uh.GatedRNN.init(d_in=3, hidden=8, gated=8, d_out=2, key=jax.random.key(1))
    result = attention_score(layer, key=KEY, **SMALL)
    assert min(result.degrees[:5]) > 1e-3 and sum(result.degrees) == pytest.approx(1)
    assert max(result.degrees[5], result.missed_by_degree_5) <= 1e-12
    result = attention_score(lambda xs: jnp.sin(9 * xs), key=KEY, d_in=2, **SMALL)
    assert result.missed_by_degree_5 > 0.1 and "cancel" in str(result)


# --- states


class Walk(eqx.Module):
    """Own layer: outputs |Σx|²; its state holds Σx, a linear copy, a constant and a counter."""

    def initial_state(self) -> dict:
        return {"sum": jnp.zeros(2), "copy": jnp.zeros(1), "one": jnp.ones(1), "t": 0}

    def step(self, state: dict, x: jax.Array) -> tuple[dict, jax.Array]:
        total = state["sum"] + x
        after = {"sum": total, "copy": total[:1] - total[1:], "one": state["one"]}
        return after | {"t": state["t"] + 1}, jnp.sum(total**2)[None]

    def __call__(self, xs: jax.Array) -> jax.Array:
        return jnp.sum(jnp.cumsum(xs, axis=0) ** 2, axis=1, keepdims=True)


def test_the_state_of_an_own_layer_has_its_dimension() -> None:
    result = attention_score(Walk(), key=KEY, d_in=2)
    # Σx and its copy have covariance diag(1, 1) + (1, −1)(1, −1)ᵀ: eigenvalues 1 and 3.
    assert result.state_rank == 2
    assert result.state_dimension == pytest.approx(16 / 10, abs=0.1)


def test_an_own_layer_without_step_has_no_state() -> None:
    result = attention_score(lambda xs: jnp.cumsum(xs, axis=0), key=KEY, d_in=2, **SMALL)
    names = ("state_kv", "state_q", "state_dimension", "state_rank")
    assert {getattr(result, name) for name in names} == {None}
    assert "has no step" in str(result)


@pytest.mark.parametrize(
    "layer",
    [
        uh.compile(attention(3, rank_v=0), "gated_rnn").layer,
        uh.LinearAttention(*np.zeros((3, 3, 3))),
        lambda xs: jnp.full((len(xs), 2), 1e3),
    ],
    ids=["no neurons", "zero", "constant"],
)
def test_a_constant_output_scores_zero_with_a_note(layer) -> None:
    result = attention_score(layer, key=KEY, d_in=3, **SMALL)
    assert (result.score, result.score_with_biases, result.memory) == (0, 0, 0)
    assert result.notes[0] == "At every time the output is the same for all inputs."
    assert result.state_kv in (None, 0)
    assert not np.any(result.attention.W_V)


def test_outputs_of_any_size_and_as_many_sequences_as_the_refusal_asks_for() -> None:
    small = attention(2)
    for size in (1e-170, 1e170):
        layer = uh.LinearAttention(size * small.W_V, small.W_K, small.W_Q)
        assert attention_score(layer, key=KEY, **SMALL).score >= 1 - 1e-9
    assert attention_score(attention(8), key=KEY, sequences=102).score >= 1 - 1e-9


# --- the report, and what is refused


def test_a_step_may_differ_from_the_call_by_rounding() -> None:
    assert attention_score(RunningSum(1 + 1e-7), key=KEY, **SMALL).state_q is not None


def test_the_report_is_a_short_table() -> None:
    result = attention_score(attention(2), key=KEY, **SMALL)
    lines = str(result).splitlines()
    assert lines[0].split() == ["attention", "score", "1.000000", "±", "0"]
    assert len(lines) == 12 and isinstance(result, AttentionScore)
    with pytest.raises(AttributeError):
        result.score = 0.0


def identity(xs: jax.Array) -> jax.Array:
    return xs @ jnp.eye(2)


class RunningSum:
    """A layer whose step multiplies the outputs of its call by `step_size`."""

    d_in = 2

    def __init__(self, step_size: float):
        self.step_size = step_size

    def __call__(self, xs):
        return jnp.cumsum(xs, axis=0)

    def initial_state(self):
        return jnp.zeros(2)

    def step(self, state, x):
        return state + x, self.step_size * (state + x)


@pytest.mark.parametrize(
    ("layer", "settings", "message"),
    [
        (3, {}, "int is not a layer"),
        (identity, {}, "pass d_in="),
        (identity, {"d_in": 0}, "d_in is 0"),
        (identity, {"d_in": 3}, r"fails on a sequence of shape \(32, 3\)"),
        (attention(2), {"d_in": 3}, "d_in is 3 but the layer reads 2"),
        (attention(2), {"time": 1}, "time is 1; give a whole number of at least 2"),
        (attention(2), {"sequences": 7, "time": 1.5}, "time is 1.5.*sequences is 7"),
        (attention(2), {"key": 0}, "jax.random.key"),
        (attention(8), {"sequences": 100}, "fit 405 numbers.*pass sequences=102 or more"),
        (uh.LSTM.init(d_in=2, hidden=30, key=KEY), {"time": 4, "sequences": 60}, "sequences=62"),
        (lambda xs: xs[0], {"d_in": 2}, r"return \(32, d_out\), not \(2,\)"),
        (lambda xs: xs[1:], {"d_in": 2}, r"not \(31, 2\)"),
        (lambda xs: (xs, xs), {"d_in": 2}, "real numbers, not tuple"),
        (lambda xs: xs * 1j, {"d_in": 2}, "real numbers, not complex128"),
        (lambda xs: jnp.log(xs), {"d_in": 2}, "outputs on .* not finite"),
        (RunningSum(1.01), {"time": 4}, "step differ by 0.01 of their size.*must compute the same"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_bad_input_is_refused_in_one_line(layer, settings: dict, message: str) -> None:
    with pytest.raises(uh.BadInput, match=message) as refusal:
        attention_score(layer, **({"key": KEY} | settings))
    assert "\n" not in str(refusal.value)
