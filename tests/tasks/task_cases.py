"""One table of tasks for the tests, and how their means are compared."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from teachers import attention

from underhood.tasks import AssociativeRecall, InContextRegression, Task, TeacherStudent

KEY = jax.random.key(0)

TASKS: dict[str, Task] = {
    "teacher-student": TeacherStudent(attention(3, d_v=2, d_k=4), 7),
    "a teacher with decay and biases": TeacherStudent(
        attention(
            2, b_V=np.ones(2), b_K=np.array([0.5, -1]), b_Q=np.ones(2), decay=np.array([0.5, 0.9])
        ),
        5,
    ),
    "regression": InContextRegression(),
    "regression with other sizes": InContextRegression(2, 4, 5, variance=0.7),
    "one pair of numbers": InContextRegression(1, 1, 1),
    "recall": AssociativeRecall(),
    "recall of a few": AssociativeRecall(6, pairs=2),
    "recall between tokens": AssociativeRecall(6, True, 3),
    "recall of one": AssociativeRecall(1, True),
}
every_task = pytest.mark.parametrize("name", TASKS)


@eqx.filter_jit
def draw(task, key, batch):
    """A batch, compiled as a whole."""
    return task.sample(key, batch)


@eqx.filter_jit
def answers(task, layer, inputs):
    """What a layer answers, at the tokens that count; None answers zero."""
    outputs = jnp.zeros((*inputs.shape[:2], task.d_out))
    outputs = outputs if layer is None else jax.vmap(layer)(inputs)
    return outputs[:, -1] if task.reads_last else outputs


def losses_of(task, *layers, batches=5, batch=20_000):
    """Many losses of each layer (None: of always answering zero), [samples, layers]."""

    @eqx.filter_jit
    def losses(task, layers, key):
        inputs, targets = task.sample(key, batch)
        given = [answers(task, layer, inputs) for layer in layers]
        return jnp.stack([task.losses(outputs, targets) for outputs in given], axis=1)

    keys = jax.random.split(jax.random.key(1), batches)
    return np.concatenate([losses(task, layers, key) for key in keys])


def assert_mean(samples, expected, *, within=None):
    """Along the first axis, up to five standard errors, and these must be small enough to tell."""
    samples = np.asarray(samples)
    error = samples.std(axis=0) / math.sqrt(len(samples))
    if within is not None:
        assert np.all(error <= within * np.abs(expected))
    assert np.all(np.abs(samples.mean(axis=0) - expected) <= 5 * error + 1e-12)


def run_naively(teacher, xs):
    """Eq. 1 token by token, in NumPy: [n, time, d] -> [n, time, d_v]."""
    biases = (0 if b is None else b for b in (teacher.b_V, teacher.b_K, teacher.b_Q))
    matrices = (teacher.W_V, teacher.W_K, teacher.W_Q)
    values, keys, queries = (xs @ W.T + b for W, b in zip(matrices, biases, strict=True))
    decay = np.ones(teacher.d_out) if teacher.decay is None else teacher.decay
    memory = np.zeros((len(xs), teacher.d_out, keys.shape[2]))
    outputs = []
    for t in range(xs.shape[1]):
        memory = decay[:, None] * memory + values[:, t, :, None] * keys[:, t, None, :]
        outputs.append(np.einsum("nvk,nk->nv", memory, queries[:, t]))
    return np.stack(outputs, axis=1)
