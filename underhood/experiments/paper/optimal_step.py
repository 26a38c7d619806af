"""The best learning rate of one gradient step (Appendix D.2): η* = 1/(σₓ²(n + dₓ − 1/5)).

Three ways to the same number, for n = 12 pairs and dₓ = d_y = 3: the formula; Monte Carlo, where
the loss is a parabola in η with sampled coefficients, so that its minimum is a ratio of two means;
and gradient descent on η alone over fresh sequences, which knows neither.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import Number, near
from underhood.experiments.running.setting import Setting
from underhood.tasks import InContextRegression
from underhood.tasks.regression import gradient_descent_loss, optimal_step

PAPER = 6.76e-2
PAPER_LOSS = 0.0947
# Chunks of sequences, sequences in a chunk, and steps of the gradient search.
SIZES = {"smoke": (4, 256, 100), "quick": (40, 25_000, 3_000), "paper": (200, 50_000, 10_000)}


def run(setting: Setting) -> Outcome:
    """Formula, Monte Carlo and gradient search."""
    chunks, sequences, steps = SIZES[setting.scale]
    count = setting.count(4)
    task = InContextRegression()
    formula = optimal_step(pairs=task.pairs, d_x=task.d_x)
    sampled, spread, lowest = monte_carlo(task, chunks, sequences, setting.tick)
    searched = [search(task, steps, jax.random.key(seed)) for seed in range(count)]
    found = float(np.median(searched))
    loss = gradient_descent_loss(
        formula, pairs=task.pairs, d_x=task.d_x, weight_variance=task.variance
    )
    numbers: tuple[Number, ...] = (
        near("formula", formula, PAPER, 5e-5, what="η*", paper=PAPER, seeds=1),
        near(
            "Monte Carlo",
            sampled,
            formula,
            4 * spread,
            what="η within four standard errors of the formula,",
            paper=PAPER,
            seeds=chunks,
        ),
        near(
            "gradient search",
            found,
            formula,
            0.01 * formula,
            what=f"median η of {count} searches within 1 % of the formula,",
            paper=PAPER,
            seeds=count,
        ),
        near("loss", loss, PAPER_LOSS, 2e-4, what="loss at η*", paper=PAPER_LOSS, seeds=1),
    )
    rows = (
        {"by": "formula", "η": formula, "spread": None, "loss": loss},
        {"by": "Monte Carlo", "η": sampled, "spread": spread, "loss": lowest},
        {"by": "gradient search", "η": found, "spread": float(np.std(searched)), "loss": None},
    )
    notes = (f"Monte Carlo over {chunks * sequences:,} sequences; spread is one standard error.",)
    # The parabola on which all three lie, from no step to twice the best.
    steps_on = np.linspace(0, 2 * formula, 81)
    losses_on = [
        gradient_descent_loss(
            float(one), pairs=task.pairs, d_x=task.d_x, weight_variance=task.variance
        )
        for one in steps_on
    ]
    arrays = {"eta": steps_on, "loss": np.array(losses_on), "searched": np.array(searched)}
    return Outcome(numbers, rows, notes, tuple(range(count)), steps, arrays)


def unit_step(
    task: InContextRegression, key: PRNGKeyArray, sequences: int
) -> tuple[Float[Array, "batch d_y"], Float[Array, "batch d_y"]]:
    """What one gradient step of size 1 predicts, Σ y_t (x_t·x), and the targets."""
    batch = task.sample(key, sequences)
    pairs, query = batch.inputs[:, :-1], batch.inputs[:, -1, : task.d_x]
    xs, ys = pairs[..., : task.d_x], pairs[..., task.d_x :]
    with jax.default_matmul_precision("highest"):
        return jnp.einsum("bty,btx,bx->by", ys, xs, query), batch.targets


def monte_carlo(
    task: InContextRegression, chunks: int, sequences: int, tick: Any
) -> tuple[float, float, float]:
    """The minimum of the sampled parabola ½E|t − ηp|²: its place, standard error and height."""

    @jax.jit
    def sums(key: PRNGKeyArray) -> Float[Array, " 3"]:
        predicted, target = unit_step(task, key, sequences)
        return jnp.stack(
            [jnp.mean(predicted * target), jnp.mean(predicted**2), jnp.mean(target**2)]
        )

    means = np.zeros((chunks, 3))
    for chunk in range(chunks):
        tick(chunk, chunks)
        means[chunk] = np.asarray(sums(jax.random.key(1000 + chunk)), float)
    tick(chunks, chunks)
    cross, square, targets = means.mean(axis=0)
    step = cross / square
    # The error of a ratio: chunks of cross − step·square have mean zero.
    error = np.std(means[:, 0] - step * means[:, 1], ddof=1) / np.sqrt(chunks) / square
    return float(step), float(error), float(0.5 * (targets - step * cross))


def search(task: InContextRegression, steps: int, key: PRNGKeyArray) -> float:
    """Gradient descent on η from zero, the second half of its path averaged."""

    def loss(step: Float[Array, ""], key: PRNGKeyArray) -> Float[Array, ""]:
        predicted, target = unit_step(task, key, 64)
        return 0.5 * jnp.mean((target - step * predicted) ** 2)

    def advance(
        step: Float[Array, ""], key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        # The curvature is about E[p²] ≈ 178; a hundredth of its inverse is safe for every batch.
        step = step - 1e-4 * jax.grad(loss)(step, key)
        return step, step

    path = jax.jit(lambda keys: jax.lax.scan(advance, jnp.zeros(()), keys)[1])
    return float(jnp.mean(path(jax.random.split(key, steps))[steps // 2 :]))
