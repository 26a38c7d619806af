"""Where training uses the CUDA kernels of an LSTM's walk, with the equations in their place."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from underhood.layers.kernels import choice, lstm_walk
from underhood.layers.kernels.lstm_walk import WalkSizes
from underhood.tasks import AssociativeRecall, TeacherStudent
from underhood.training import step


def plain_forward(target, sizes, W, xs):
    return lstm_walk.plain_states(W, xs), jnp.zeros(())


def plain_backward(target, sizes, W, xs, saved, slopes):
    return jax.vjp(partial(lstm_walk.plain_states, xs=xs), W)[1](slopes)[0]


@pytest.fixture
def walks(monkeypatch):
    """The equations in place of the kernels; the sizes for which these were asked."""
    asked = []
    monkeypatch.setattr(choice, "registered_walk", lambda sizes: asked.append(sizes) or "walk")
    monkeypatch.setattr(lstm_walk, "registered_walk", lambda sizes: "walk")
    monkeypatch.setattr(lstm_walk, "call_forward", plain_forward)
    monkeypatch.setattr(lstm_walk, "call_backward", plain_backward)
    return asked


def lstm(width, *, key):
    return uh.LSTM.init(d_in=width, hidden=width, key=key)


def teacher_student():
    return TeacherStudent.random(3, length=5, key=jax.random.key(2))


@pytest.mark.parametrize("make_task", [teacher_student, lambda: AssociativeRecall(3)])
@pytest.mark.parametrize("embedded", [True, False])
def test_a_step_has_the_plain_loss_and_gradient(walks, make_task, embedded):
    task = make_task()
    student = uh.Stack.init(lstm, d_in=task.d_in, hidden=5, d_out=task.d_out, key=jax.random.key(0))
    if not embedded:
        layer = uh.LSTM.init(d_in=task.d_in, hidden=5, key=jax.random.key(0))
        student = uh.Stack(None, [layer], student.readout)
    batch = task.sample(jax.random.key(1), 4)

    def slopes(backend):
        weights, rest = eqx.partition(student, eqx.is_inexact_array)

        def loss(weights):
            return step.batch_loss(eqx.combine(weights, rest), task, batch, backend=backend)

        return jax.value_and_grad(loss)(weights)

    by_walk, expected = slopes("nvidia" if embedded else "interpret"), slopes("cpu")
    assert [sizes.hidden for sizes in walks] == ([5] if embedded else [])
    for value, right in zip(*map(jax.tree.leaves, (by_walk, expected)), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-4, atol=1e-6)


def test_sizes_that_the_kernels_are_made_for():
    def sizes_of(hidden, d_in, batch=3, time=2):
        W = jnp.zeros((4, hidden, hidden + d_in + 1))
        return lstm_walk.walk_sizes(W, jnp.zeros((batch, time, d_in)))

    assert sizes_of(64, 15) is not None
    assert sizes_of(65, 4) is None
    assert sizes_of(20, 16) is None
    assert sizes_of(20, 4, batch=0) is None
    assert sizes_of(20, 4, time=0) is None


@pytest.mark.parametrize("way", ["forward", "back"])
@pytest.mark.parametrize(("error", "used"), [(0.0, True), (1e-3, False), (np.nan, False)])
def test_kernels_that_are_wrong_on_a_machine_are_not_used(monkeypatch, error, used, way):
    """A compiler or a GPU may do what the emulation does not."""

    def forward(target, sizes, W, xs):
        states, saved = plain_forward(target, sizes, W, xs)
        return states * (1 + error if way == "forward" else 1), saved

    def backward(*given):
        return plain_backward(*given) * (1 + error if way == "back" else 1)

    monkeypatch.setattr(lstm_walk, "registered", lambda *given: "walk")
    monkeypatch.setattr(lstm_walk, "call_forward", forward)
    monkeypatch.setattr(lstm_walk, "call_backward", backward)
    lstm_walk.registered_walk.cache_clear()

    def traced(xs):
        # As in training: a step asks while it is traced.
        assert (lstm_walk.registered_walk(WalkSizes(3, 2, 5)) is not None) == used
        return xs

    try:
        if used:
            jax.jit(jax.vmap(traced))(jnp.zeros(3))
        else:
            with pytest.warns(UserWarning, match="lstm_walk.cu: on this machine"):
                jax.jit(jax.vmap(traced))(jnp.zeros(3))
    finally:
        lstm_walk.registered_walk.cache_clear()
