"""A fit judges its students on many sequences, ends in useful time, and survives its starts."""

import jax
import numpy as np
import pytest
from teachers import attention

import underhood as uh
from underhood.training.second_order import fitting
from underhood.training.second_order.sizes import (
    MOST_AT_ONCE,
    starts_in_memory,
    starts_worth_trying,
    wanted_neurons,
)

pytestmark = pytest.mark.usefixtures("x64")


def gated(d):
    return lambda width, *, key: uh.GatedRNN.init(
        d_in=d, hidden=width, gated=width, d_out=d, key=key
    )


def teacher_task(d: int, seed: int = 0) -> uh.tasks.TeacherStudent:
    return uh.tasks.TeacherStudent.random(d, length=12, key=jax.random.key(seed))


class Noise(uh.tasks.TeacherStudent):
    """Targets that no network computes."""

    def sample(self, key, batch):
        inputs = jax.random.normal(key, (batch, self.length, self.d_in))
        return uh.tasks.task.Batch(inputs, jax.numpy.sin(9 * inputs))


@pytest.mark.parametrize("seed", range(3))
def test_success_and_loss_hold_on_many_other_sequences(seed) -> None:
    task, tolerance = teacher_task(2, seed), 0.03
    options = {"width": 3, "restarts": 4, "tolerance": tolerance, "progress": False}
    result = uh.fit(gated(2), task, key=jax.random.key(seed), wider=False, **options)
    inputs, targets = task.sample(jax.random.key(99), 20_000)
    loss = float(task.loss(jax.vmap(result.model)(inputs), targets))
    assert result.loss == pytest.approx(loss, rel=0.15)
    assert result.success == (result.loss <= tolerance * task.scale)
    assert result.best_start.loss == result.loss


def test_starts_grow_to_a_bound_and_share_the_memory() -> None:
    for d in range(1, 9):
        sizes = [wanted_neurons(d, number) for number in range(200)]
        assert sizes == sorted(sizes) and max(sizes) <= max(MOST_AT_ONCE, sizes[0])
        assert sizes[starts_worth_trying(d) - 1] == max(sizes)
    assert starts_in_memory(14) > 100 and 1 <= starts_in_memory(62) < 16


def test_a_task_that_no_network_computes_ends_and_says_why() -> None:
    # Starts of one step: how many there are is asked here.
    task = Noise(attention(2, 0), 12)
    result = uh.fit(gated(2), task, key=jax.random.key(0), width=5, steps=1, progress=False)
    assert not result.success and len(result.starts) == starts_worth_trying(2)
    assert result.ended in result.message and "every size" in result.ended


def test_an_error_of_one_start_leaves_the_others(monkeypatch) -> None:
    whole = fitting.run_start

    def failing(number, *arguments, **options):
        if number == 0:
            raise np.linalg.LinAlgError("2906-th leading minor")
        return whole(number, *arguments, **options)

    monkeypatch.setattr(fitting, "run_start", failing)
    options = {"width": 7, "workers": 1, "progress": False}
    result = uh.fit(gated(2), teacher_task(2), key=jax.random.key(0), **options)
    assert result.success and result.best_start.number == 1
    assert "an error ended it: 2906-th leading minor" in result.starts[0].reason
    lost = uh.fit(gated(2), teacher_task(2), key=jax.random.key(0), restarts=1, **options)
    assert not lost.success and lost.loss > 0 and np.isfinite(lost.loss)


def test_many_workers_find_what_one_finds() -> None:
    task, key = teacher_task(3), jax.random.key(1)
    results = [
        uh.fit(gated(3), task, key=key, width=np.int64(9), workers=workers, progress=False)
        for workers in (1, 24)
    ]
    assert all(result.success for result in results)
    assert results[0].best_start.number == results[1].best_start.number


@pytest.mark.parametrize("factors", [(0.0, 1.0), (1.0, 0.0), (1e-200, 1.0)])
def test_a_teacher_of_zero_is_a_network_of_zero(factors) -> None:
    by_value, by_key = factors
    head = attention(2, 0)
    head = uh.LinearAttention(W_V=by_value * head.W_V, W_K=by_key * head.W_K, W_Q=head.W_Q)
    task = uh.tasks.TeacherStudent(head, 12)
    result = uh.fit(gated(2), task, key=jax.random.key(0), width=5, progress=False)
    assert result.success and result.loss == 0 and result.model.neurons == 5
    xs = jax.random.normal(jax.random.key(1), (6, 2))
    assert not np.any(result.model(xs)) and "targets are zero" in result.best_start.reason
    assert "targets are zero" in result.message
