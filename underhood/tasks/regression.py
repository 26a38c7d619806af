"""In-context linear regression (Section 5.1, Appendix D.1 and D.2): infer W* from pairs (x, W*x).

    tokens   [x_1; W*x_1], …, [x_n; W*x_n], [x; 0]    target  W*x, at the last token only
    x entries U(−√3, √3)    W* [d_y, d_x] entries N(0, variance), twice that in validation

One gradient step from zero with step size η predicts ηW*XXᵀx. For entries of x with variance σ² and
kurtosis κ the best step is η* = 1/(σ²(n + d_x − 2 + κ)); in the paper's case, uniform (κ = 9/5)
with n = 12 and d_x = 3, it is 1/14.8, with loss 0.09459. docs/population.md has the derivation, and
says why mirrored batches (every sequence with W* and with −W*) help.
"""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.errors import refuse
from underhood.common.numbers import number_problems, whole_problems
from underhood.layers import LinearAttention
from underhood.layers.base.layer import Size
from underhood.tasks.task import Batch, Task

UNIFORM_KURTOSIS = 9 / 5


class InContextRegression(Task):
    """Predict W*x after `pairs` examples; every sequence has its own W*."""

    d_x: int = eqx.field(static=True)
    d_y: int = eqx.field(static=True)
    pairs: int = eqx.field(static=True)
    variance: float = eqx.field(static=True)
    mirrored: bool = eqx.field(static=True)

    reads_last: ClassVar[bool] = True

    d_in = Size(lambda self: self.d_x + self.d_y)
    d_out = Size(lambda self: self.d_y)
    time = Size(lambda self: self.pairs + 1)

    def __init__(
        self,
        d_x: int = 3,
        d_y: int = 3,
        pairs: int = 12,
        variance: float | None = None,
        *,
        mirrored: bool = False,
    ):
        """Set the sizes.

        variance  of the entries of W*; 1/d_x unless given
        mirrored  draw every sequence with W* and with −W*
        """
        problems = whole_problems(d_x=d_x, d_y=d_y, pairs=pairs)
        if variance is not None:
            problems += number_problems(above=True, variance=variance)
        if not isinstance(mirrored, bool):
            problems.append(f"mirrored is {mirrored!r}; give True or False")
        refuse(problems, about="InContextRegression")
        self.d_x, self.d_y, self.pairs, self.mirrored = int(d_x), int(d_y), int(pairs), mirrored
        self.variance = 1 / self.d_x if variance is None else float(variance)

    @property
    def zero_loss(self) -> float:
        return self.variance * self.d_x / 2

    @property
    def best_loss(self) -> float:
        sizes = {"pairs": self.pairs, "d_x": self.d_x}
        return gradient_descent_loss(optimal_step(**sizes), weight_variance=self.variance, **sizes)

    def best_attention(self) -> LinearAttention:
        """Return one optimal gradient step: keys and queries read x, values read η*y."""
        step = optimal_step(pairs=self.pairs, d_x=self.d_x)
        reads_x, reads_y = np.split(np.eye(self.d_in), [self.d_x])
        return LinearAttention(step * reads_y, reads_x, reads_x)

    def sample(self, key: PRNGKeyArray, batch: int) -> Batch:
        if not self.mirrored:
            return self.sequences(key, batch)
        half = self.sequences(key, -(-batch // 2))
        sign = jnp.where(jnp.arange(self.d_in) < self.d_x, 1.0, -1.0)
        inputs = jnp.concatenate([half.inputs, half.inputs * sign])[:batch]
        return Batch(inputs, jnp.concatenate([half.targets, -half.targets])[:batch])

    def sequences(self, key: PRNGKeyArray, batch: int) -> Batch:
        x_key, W_key = jax.random.split(key)
        bound = math.sqrt(3)
        xs = jax.random.uniform(x_key, (batch, self.time, self.d_x), minval=-bound, maxval=bound)
        W = math.sqrt(self.variance) * jax.random.normal(W_key, (batch, self.d_y, self.d_x))
        # A GPU would otherwise round the products to ten bits.
        ys = jnp.einsum("bij,btj->bti", W, xs, precision="highest")
        tokens = jnp.concatenate([xs, ys.at[:, -1].set(0)], axis=-1)
        return Batch(tokens, ys[:, -1])

    def validation(self) -> "InContextRegression":
        """Return the task with W* of twice the variance, as in the paper."""
        return self.changed(self.pairs, 2 * self.variance)

    def with_length(self, length: int) -> "InContextRegression":
        """Return the same task with `length` pairs before the query."""
        return self.changed(length, self.variance)

    def changed(self, pairs: int, variance: float) -> "InContextRegression":
        return InContextRegression(self.d_x, self.d_y, pairs, variance, mirrored=self.mirrored)


def optimal_step(
    *, pairs: int, d_x: int, input_variance: float = 1.0, kurtosis: float = UNIFORM_KURTOSIS
) -> float:
    """Return η*: with this step size one gradient step on ½|Y − WX|² from W = 0 predicts best.

    kurtosis  E[x⁴]/E[x²]² of an input, at least 1
    """
    problems = whole_problems(pairs=pairs, d_x=d_x)
    problems += number_problems(above=True, input_variance=input_variance)
    refuse(problems + number_problems(least=1, kurtosis=kurtosis), about="optimal_step")
    return 1 / (input_variance * (pairs + d_x - 2 + kurtosis))


def gradient_descent_loss(
    step: float,
    *,
    pairs: int,
    d_x: int,
    weight_variance: float,
    input_variance: float = 1.0,
    kurtosis: float = UNIFORM_KURTOSIS,
) -> float:
    """Return the loss (½·mean over outputs) of one gradient step of size `step` from W = 0."""
    variances = {"weight_variance": weight_variance, "input_variance": input_variance}
    problems = whole_problems(pairs=pairs, d_x=d_x) + number_problems(above=True, **variances)
    refuse(problems + number_problems(least=1, kurtosis=kurtosis), about="gradient_descent_loss")
    moved = step * input_variance * pairs
    spread = (pairs + d_x - 2 + kurtosis) / pairs
    return weight_variance * input_variance * d_x * (1 - 2 * moved + moved**2 * spread) / 2
