"""The best learning rate of one gradient step (Appendix D.2): η* = 1/(σₓ²(n + dₓ − 1/5)).

Three ways to the same number, for n = 12 pairs and dₓ = d_y = 3: the formula; Monte Carlo, where
the loss is a parabola in η with sampled coefficients, so that its minimum is a ratio of two means;
and gradient descent on η alone over fresh sequences, which uses neither.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import near, shown
from underhood.tasks import InContextRegression
from underhood.tasks.regression import gradient_descent_loss, optimal_step

PAPER_ETA, PAPER_STEP_LOSS = 6.76e-2, 0.0947
# Chunks of sequences, sequences in a chunk, and steps of the gradient search.
STEP_SIZES = {"smoke": (4, 256, 100), "quick": (40, 25_000, 3_000), "paper": (200, 50_000, 10_000)}


def reproduce_optimal_step(setting: Setting) -> Outcome:
    chunks, sequences, steps = STEP_SIZES[setting.scale]
    count, task = setting.count(4), InContextRegression()
    sizes = {"pairs": task.pairs, "d_x": task.d_x}

    def loss_at(eta: float) -> float:
        return gradient_descent_loss(eta, **sizes, weight_variance=task.variance)

    formula = optimal_step(**sizes)
    sampled, error, lowest = sample_minimum(task, chunks, sequences, setting)
    searched = [search_step(task, steps, jax.random.key(seed)) for seed in range(count)]
    median, loss = float(np.median(searched)), loss_at(formula)
    by_error = "η within four standard errors of the formula,"
    by_share = f"median η of {count} searches within 1 % of the formula,"
    numbers = [
        near(name, value, target, margin, what=what, paper=paper, seeds=seeds)
        for name, value, target, margin, what, paper, seeds in (
            ("Monte Carlo", sampled, formula, 4 * error, by_error, PAPER_ETA, chunks),
            ("gradient search", median, formula, 0.01 * formula, by_share, PAPER_ETA, count),
        )
    ]
    # Both are constants.
    numbers += [
        shown("formula", formula, paper=PAPER_ETA, seeds=1),
        shown("loss", loss, paper=PAPER_STEP_LOSS, seeds=1),
    ]
    # The parabola on which all three lie, from no step to twice the best.
    etas = np.linspace(0, 2 * formula, 81)
    return Outcome(
        numbers=numbers,
        rows=[
            {"by": "formula", "η": formula, "spread": None, "loss": loss},
            {"by": "Monte Carlo", "η": sampled, "spread": error, "loss": lowest},
            {"by": "gradient search", "η": median, "spread": np.std(searched), "loss": None},
        ],
        notes=[f"Monte Carlo over {chunks * sequences:,} sequences; spread is one standard error."],
        seeds=range(count),
        steps=steps,
        arrays={
            "eta": etas,
            "loss": np.array([loss_at(float(eta)) for eta in etas]),
            "searched": np.array(searched),
        },
    )


def unit_step(
    task: InContextRegression, key: PRNGKeyArray, sequences: int
) -> tuple[Float[Array, "batch d_y"], Float[Array, "batch d_y"]]:
    """Return what one gradient step of size 1 predicts, Σ y_t (x_t·x), and the targets."""
    batch = task.sample(key, sequences)
    pairs, query = batch.inputs[:, :-1], batch.inputs[:, -1, : task.d_x]
    xs, ys = pairs[..., : task.d_x], pairs[..., task.d_x :]
    with jax.default_matmul_precision("highest"):
        return jnp.einsum("bty,btx,bx->by", ys, xs, query), batch.targets


def sample_minimum(
    task: InContextRegression, chunks: int, sequences: int, setting: Setting
) -> tuple[float, float, float]:
    """Return the minimum of the sampled parabola ½E|t − ηp|²: η, its standard error, the loss."""

    @jax.jit
    def sums(key: PRNGKeyArray) -> Float[Array, " 3"]:
        predicted, target = unit_step(task, key, sequences)
        return jnp.stack(list(map(jnp.mean, (predicted * target, predicted**2, target**2))))

    means = np.zeros((chunks, 3))
    for chunk in setting.over(range(chunks)):
        means[chunk] = np.asarray(sums(jax.random.key(1000 + chunk)), float)
    cross, square, targets = means.mean(axis=0)
    eta = cross / square
    # The error of a ratio: chunks of cross − η·square have mean zero.
    error = np.std(means[:, 0] - eta * means[:, 1], ddof=1) / np.sqrt(chunks) / square
    return float(eta), float(error), float(0.5 * (targets - eta * cross))


def search_step(task: InContextRegression, steps: int, key: PRNGKeyArray) -> float:
    """Return η after gradient descent from zero, the second half of its path averaged."""

    def loss(eta: Scalar, key: PRNGKeyArray) -> Scalar:
        predicted, target = unit_step(task, key, 64)
        return 0.5 * jnp.mean((target - eta * predicted) ** 2)

    def advance(eta: Scalar, key: PRNGKeyArray) -> tuple[Scalar, Scalar]:
        # The curvature is about E[p²] ≈ 178; a hundredth of its inverse is safe for every batch.
        eta = eta - 1e-4 * jax.grad(loss)(eta, key)
        return eta, eta

    path = jax.jit(lambda keys: jax.lax.scan(advance, jnp.zeros(()), keys)[1])
    return float(jnp.mean(path(jax.random.split(key, steps))[steps // 2 :]))
