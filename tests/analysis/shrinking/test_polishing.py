"""Polishing reaches machine precision from samples alone; merging leaves it little to mend."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scrambles import dead, gate_axes, rebuilt, taken, weights, with_gates
from teachers import attention, gated_rnn

import underhood as uh
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.shrinking.fresh_loss import outputs_on
from underhood.training.second_order.examples import Data
from underhood.training.second_order.minimising import fit_linear, minimise
from underhood.training.second_order.separable import SeparableNetwork

pytestmark = pytest.mark.usefixtures("x64")

LENGTH = 12


def perturbed(rnn, rng, *, noise: float = 1e-3, everywhere: bool = False):
    """Weights × (1 + noise), zeros too where asked for, and decays as training leaves them."""
    given = weights(rnn)
    decay = given.pop("decay")
    new = {
        name: W * (1 + noise * rng.normal(size=W.shape))
        + everywhere * noise * rng.normal(size=W.shape)
        for name, W in given.items()
    }
    return rebuilt(
        rnn, **new, decay=np.where(decay == 1, 0.9995, np.where(decay == 0, 1e-3, decay))
    )


def fresh_loss(model, task, many: int = 64) -> float:
    inputs, targets = task.sample(jax.random.key(4321), many)
    outputs = jax.vmap(model)(inputs)
    return float(task.loss(outputs[:, -1] if task.reads_last else outputs, targets))


class Hidden(uh.tasks.Task):
    """Sequences of a task whose teacher cannot be asked for."""

    draw: Callable[..., Any] = eqx.field(static=True)
    reads_last: ClassVar[bool] = False

    d_in = d_out = property(lambda self: 2)
    time = property(lambda self: LENGTH)
    zero_loss = property(lambda self: 0.5)
    scale = property(lambda self: 1.0)
    best_loss = property(lambda self: 0.0)

    def best_attention(self):
        raise AssertionError("the teacher was read")

    def sample(self, key, batch):
        return self.draw(key, batch)

    def losses(self, outputs, targets):
        return 0.5 * jnp.mean((outputs - targets) ** 2, axis=(1, 2))

    scores = validation = with_length = None


# --- polish


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("form", ["minimal", "full"])
@pytest.mark.parametrize("target", ["gated_rnn", "side_gated_rnn"])
def test_perturbed_networks_reach_machine_precision(target, form, everywhere):
    for d, seed in ((2, 0), (3, 1)):
        task = uh.tasks.TeacherStudent(attention(d, seed), LENGTH)
        rng = np.random.default_rng(seed)
        built = uh.compile(task.attention, target, form).layer
        student = dead(perturbed(built, rng, everywhere=everywhere), rng)
        assert fresh_loss(student, task) > 1e-8 * task.scale
        polished = uh.polish(student, task, key=jax.random.key(seed))
        # Where zeros have moved, steps towards the smallest gated RNN converge slowly at the end.
        small = 1e-12 if everywhere and (target, form) == ("gated_rnn", "minimal") else 1e-20
        assert fresh_loss(polished.model, task) < small * task.scale
        assert polished.loss < small * task.scale < polished.loss_before
        assert set(np.asarray(polished.model.decay)) <= {0.0, 1.0}
        assert polished.rounded == polished.model.neurons == polished.attempts[-1].neurons
        assert polished.model.neurons <= built.neurons


@pytest.mark.parametrize(("d", "seed"), [(1, 0), (2, 1), (3, 1)])
def test_decays_that_end_near_zero_or_one_are_set_there(d, seed):
    task = uh.tasks.TeacherStudent(attention(d, seed), LENGTH)
    student = perturbed(uh.compile(task.attention).layer, np.random.default_rng(seed))
    # Too far from 0 and 1 to be set there at once.
    decay = np.where(np.asarray(student.decay) > 0.5, 0.97, 0.03)
    polished = uh.polish(rebuilt(student, decay=decay), task, key=jax.random.key(seed))
    assert polished.loss < 1e-15 * task.scale
    assert polished.rounded == polished.model.neurons
    assert set(np.asarray(polished.model.decay)) == {0.0, 1.0}
    small = uh.compile(task.attention).layer
    reduced = uh.reduce(polished.model).model
    assert (reduced.neurons, reduced.gate_width) == (small.neurons, small.gate_width)


@pytest.mark.parametrize("kept", [0.985, 0.9, 0.015])
def test_decays_that_the_function_needs_are_not_set_to_zero_or_one(kept):
    source = attention(2, 0)
    task = uh.tasks.TeacherStudent(
        uh.LinearAttention(source.W_V, source.W_K, source.W_Q, decay=np.full(2, kept)), LENGTH
    )
    built = uh.compile(task.attention).layer
    decays = np.isclose(np.asarray(built.decay), kept)
    # From outside of what counts as nearly 0 or 1, where the first rounding cannot reach.
    start = np.where(decays, 0.7 * kept + 0.3 * 0.5, np.asarray(built.decay))
    polished = uh.polish(rebuilt(built, decay=start), task, key=jax.random.key(0))
    assert decays.any() and polished.loss < 1e-18 * task.scale
    result = np.asarray(polished.model.decay)
    assert np.array_equal(np.isclose(result, kept, rtol=0, atol=1e-8), decays)
    assert polished.rounded == np.sum(~decays)


def test_pruning_too_hard_is_said_and_undone():
    task = uh.tasks.TeacherStudent(attention(2, 0), LENGTH)
    student = perturbed(uh.compile(task.attention).layer, np.random.default_rng(0))
    polished = uh.polish(student, task, key=jax.random.key(0), thresholds=(0.3, 0.0))
    first, second = polished.attempts
    assert first.neurons < second.neurons == polished.model.neurons == 5
    assert f"pruning to {first.neurons} neurons was too much" in polished.message
    assert str(polished) == polished.message and "kept 5 neurons" in polished.message
    assert polished.loss < 1e-20 * task.scale < first.loss
    # A network without influence stays the zero function.
    zero = rebuilt(gated_rnn(2), D=np.zeros((2, 10)))
    polished = uh.polish(zero, task, key=jax.random.key(0))
    assert polished.loss == pytest.approx(polished.loss_before)


def test_the_teacher_is_not_read_and_every_step_is_reported():
    lines = []
    task = uh.tasks.TeacherStudent(attention(2, 3), LENGTH)
    hidden = Hidden(lambda key, batch: task.sample(key, batch))
    built = uh.compile(task.attention, "side_gated_rnn").layer
    student = perturbed(built, np.random.default_rng(3), everywhere=True)
    polished = uh.polish(student, hidden, key=jax.random.key(3), progress=lines.append)
    assert fresh_loss(polished.model, task) < 1e-20
    assert lines[0].startswith("polish: fitting")
    assert [line.split(", loss")[0][-6:] for line in lines[1:3]] == ["step 0", "step 1"]
    polished = uh.polish(student, hidden, key=jax.random.key(3), steps=2)
    assert polished.attempts[-1].steps <= 2


def test_the_precision_of_jax_does_not_matter_and_stays():
    a = attention(2, 1)
    student = perturbed(uh.compile(a).layer, np.random.default_rng(1), everywhere=True)
    models = []
    for on in (True, False):
        with jax.enable_x64(on):
            task = uh.tasks.TeacherStudent(a, LENGTH)
            models.append(uh.polish(student, task, key=jax.random.key(5)).model)
            assert jax.config.jax_enable_x64 == on
    assert jax.tree.all(jax.tree.map(np.array_equal, *models))


def excess(model, task) -> tuple[float, float]:
    """How much more it loses than the best attention on the same sequences, and its error."""
    inputs, targets = task.sample(jax.random.key(99), 60_000)
    losses = [
        task.losses(jax.vmap(layer)(inputs)[:, -1], targets)
        for layer in (model, task.best_attention())
    ]
    more = losses[0] - losses[1]
    return float(jnp.mean(more)), float(jnp.std(more)) / np.sqrt(len(inputs))


@pytest.mark.parametrize("sequences", [20_000, None])
def test_in_context_regression_stays_at_its_best(sequences):
    task = uh.tasks.InContextRegression(1, 1, 6)
    student = perturbed(uh.compile(task.best_attention()).layer, np.random.default_rng(0))
    polished = uh.polish(student, task, key=jax.random.key(1), sequences=sequences)
    more, error = excess(polished.model, task)
    # A fit to samples pays for its unknowns; a hundredth of the best loss is what it may pay.
    assert more < 0.01 * task.best_loss + 3 * error
    assert polished.loss <= polished.loss_before


@pytest.mark.usefixtures("unhooked")
def test_what_cannot_be_polished_is_refused_in_one_line():
    key, task = jax.random.key(0), uh.tasks.TeacherStudent(attention(2), LENGTH)
    recall, built = uh.tasks.AssociativeRecall(4), uh.compile(attention(2)).layer
    fits = uh.GatedRNN.init(d_in=recall.d_in, hidden=3, gated=3, d_out=recall.d_out, key=key)
    lstm = uh.LSTM.init(d_in=2, hidden=2, key=key)
    settings = [{"thresholds": value} for value in ((), 0.1, (2.0,))]
    settings += [{"steps": 0}, {"sequences": 0}, {"key": 0}, {"progress": 3}]
    for model, for_task, words, changed in (
        (fits, recall, "squared errors.*AssociativeRecall", {}),
        (gated_rnn(2), recall, "maps 2 numbers to 3", {}),
        (gated_rnn(3), task, "maps 3 numbers to 3, the task 2 to 2", {}),
        (lstm, task, "not an LSTM", {}),
        (gated_rnn(2), attention(2), "task is a LinearAttention", {}),
        *((built, task, "^polish: ", setting) for setting in settings),
    ):
        with pytest.raises(uh.BadInput, match=words) as raised:
            uh.polish(model, for_task, **{"key": key, **changed})
        assert "\n" not in str(raised.value)


# --- least squares


def random_student(rng, d: int, n: int, side: bool) -> SeparableNetwork:
    p = d if side else d + 1
    W_m, W_x = rng.normal(size=(2, n, p))
    decay = rng.choice([0.0, 1.0, 0.3, 0.7], size=n)
    decay[-1] = 0.6
    linear = rng.normal(size=(2, n if side else n * (n + 1) // 2))
    W_side = rng.normal(size=(n, d)) if side else None
    return SeparableNetwork(W_m, W_x, decay, (decay > 0) & (decay < 1), linear, W_side)


def random_data(rng, d: int, last: bool, many: int = 60) -> Data:
    tokens = rng.normal(size=(many, 4, d))
    return Data(tokens, rng.normal(size=(many if last else 4 * many, 2)), last)


@settings(max_examples=12)
@given(
    d=st.integers(1, 3),
    n=st.integers(1, 3),
    side=st.booleans(),
    last=st.booleans(),
    seed=st.integers(0, 999),
)
def test_derivatives_are_finite_differences(d, n, side, last, seed):
    rng = np.random.default_rng(seed)
    student, data = random_student(rng, d, n, side), random_data(rng, d, last, many=3)
    result = data.derivatives(student)
    parameters = 2 * student.W_m.size + int(student.free.sum()) + (n * d if side else 0)
    step = 1e-5
    for place in range(parameters):
        by = step * np.eye(parameters)[place]
        slope = (outputs_on(data, student.moved(by)) - outputs_on(data, student.moved(-by))) / (
            2 * step
        )
        for o in range(2):
            assert result[o].shape == (len(data.targets), parameters)
            scale = 1 + np.abs(slope).max()
            np.testing.assert_allclose(result[o][:, place], slope[:, o], atol=1e-7 * scale)


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_the_linear_part_is_that_of_least_squares(side, last):
    rng = np.random.default_rng(0)
    student, data = random_student(rng, 2, 4, side), random_data(rng, 2, last)
    fitted = fit_linear(student, data)
    F = data.features(student)
    expected = np.linalg.lstsq(F, data.targets)[0].T
    np.testing.assert_allclose(fitted.network.linear, expected, atol=1e-10)
    np.testing.assert_allclose(fitted.residual, data.targets - F @ expected.T, atol=1e-10)
    assert fitted.cost == pytest.approx(0.5 * np.mean(fitted.residual**2))
    model = fitted.network.model()
    outputs = data.rows(np.asarray(jax.vmap(model)(jnp.asarray(data.tokens))))
    np.testing.assert_allclose(outputs, F @ expected.T, atol=1e-9)


@pytest.mark.parametrize("side", [False, True])
def test_costs_never_rise(side):
    rng = np.random.default_rng(1)
    student, data = random_student(rng, 2, 3, side), random_data(rng, 2, False)
    seen = []

    def watch(step: int, cost: float, network: SeparableNetwork) -> None:
        seen.append(cost)

    after, costs, reason = minimise(student, data, steps=15, watch=watch)
    assert len(costs) > 3 and np.all(np.diff(costs) < 0)
    assert seen == costs[: len(seen)] and len(seen) >= len(costs) - 1
    assert fit_linear(after, data).cost == pytest.approx(costs[-1])
    assert reason.split()[0] in ("the", "8", "no")

    def stop(step: int, cost: float, network: SeparableNetwork) -> str | None:
        return "enough" if step == 2 else None

    stopped = minimise(student, data, steps=15, watch=stop)
    assert stopped.reason == "enough" and stopped.costs == costs[:3]
    assert np.all((after.decay >= 0) & (after.decay <= 1))


# --- merge (Appendix C.2)


def split_gate(rnn, gate: int, rng, squares: bool):
    """One gate output as three with proportional readouts, whose kernels add up to its own."""
    given = weights(rnn)
    m, x, D = given["W_out_m"][gate], given["W_out_x"][gate], given["D"][:, gate]
    if squares:
        # m xᵀ is (m+x)² − (m−x)², over four, and a part of the first square by itself.
        rows = [(m + x, m + x, 0.2), (m + x, m + x, 0.05), (m - x, m - x, -0.25)]
    else:
        a, b = rng.normal(size=(2, rnn.neurons)) * np.linalg.norm(x)
        rows = [(m, a / 2, 2.0), (-m, b, -1.0), (m, (x - a - b) / 0.5, 0.5)]
    W_out_m, W_out_x, factors = zip(*rows, strict=True)
    order = [j for j in range(rnn.gate_width) if j != gate]
    remaining = taken(rnn, gate_axes(rnn), order)
    return with_gates(remaining, W_out_m=W_out_m, W_out_x=W_out_x, D=np.outer(D, factors))


@pytest.mark.parametrize("squares", [False, True])
def test_three_gate_outputs_merge_into_one(squares):
    rnn = gated_rnn(3, 1)
    alone = uh.merge(rnn)
    assert alone.model.gate_width == 10 and "merged: none" in str(alone)
    for gate in range(0, 10, 3):
        three = split_gate(rnn, gate, np.random.default_rng(gate), squares)
        merged = uh.merge(three)
        assert (merged.gates_before, merged.model.gate_width) == (12, 10)
        (group,) = (group for group in merged.groups if len(group.gates) > 1)
        assert (group.gates, group.products) == ((9, 10, 11), 1)
        assert "12 → 10 gate outputs (merged: 3 → 1)" in str(merged)
        difference, xs = quadratic_form(merged.model) - quadratic_form(rnn), np.ones((1, 9, 3))
        assert merged.change < 1e-12 and np.abs(difference(xs)).max() < 1e-11


def test_merging_a_noisy_network_costs_little_and_polish_recovers_it():
    task = uh.tasks.TeacherStudent(attention(2, 0), LENGTH)
    rng = np.random.default_rng(0)
    three = split_gate(uh.compile(task.attention).layer, 1, rng, squares=True)
    merged = uh.merge(noisy := perturbed(three, rng))
    assert merged.model.gate_width <= noisy.gate_width - 2
    assert 1e-6 < merged.change < 2e-2
    polished = uh.polish(merged.model, task, key=jax.random.key(0))
    assert polished.loss < 1e-15 * fresh_loss(noisy, task)
