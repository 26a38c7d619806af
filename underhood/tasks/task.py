"""What every task can do: draw sequences on the device, judge outputs, name the best attention.

A loss is ½·mean of the squared errors over outputs and batch, and over time where every output
counts; or a mean cross-entropy. `zero_loss`, `scale` and `best_loss` are closed forms in float64.
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.errors import BadInput
from underhood.layers import LinearAttention, MultiHead
from underhood.layers.base.layer import Size

PerSequence = Float[Array, " batch"]


class Batch(NamedTuple):
    """Sequences and what a perfect network answers."""

    inputs: Float[Array, "batch time d_in"]
    # [batch, time, d_out] where every output counts; where only the last one does,
    # [batch, d_out], or labels [batch].
    targets: Array


class Task(eqx.Module):
    """A distribution over sequences and a loss; a pytree, so that teachers stack under vmap.

    d_in, d_out  numbers per input token and per output
    time         tokens in a sequence
    """

    d_in = d_out = time = Size(abstractmethod(lambda self: 0))

    # True: only the output at the last token counts, and losses take outputs [batch, d_out].
    reads_last: eqx.AbstractClassVar[bool]

    @property
    @abstractmethod
    def zero_loss(self) -> float:
        """The loss of the network that always outputs zero."""

    @property
    def scale(self) -> float:
        """What a loss is divided by to be comparable between dimensions; `zero_loss` mostly."""
        return self.zero_loss

    @property
    @abstractmethod
    def best_loss(self) -> float:
        """The loss of `best_attention()`."""

    @abstractmethod
    def best_attention(self) -> LinearAttention | MultiHead:
        """Return the best linear attention known for the task."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, batch: int) -> Batch:
        """Draw `batch` fresh sequences."""

    def losses(self, outputs: Float[Array, "batch ..."], targets: Array) -> PerSequence:
        """Return one loss per sequence: ½·mean of its squared errors, unless a task says else."""
        # Other shapes would broadcast, and a number would come out all the same.
        if outputs.shape != targets.shape:
            raise BadInput(
                f"The outputs have shape {tuple(outputs.shape)} but the targets "
                f"{tuple(targets.shape)}; give the outputs at the tokens that count "
                "(reads_last: the last one alone)."
            )
        return 0.5 * jnp.mean((outputs - targets) ** 2, axis=tuple(range(1, outputs.ndim)))

    def scores(self, outputs: Float[Array, "batch ..."], targets: Array) -> dict[str, PerSequence]:
        """Return all that is reported per sequence; `loss` is always among it."""
        return {"loss": self.losses(outputs, targets)}

    def validation(self) -> "Task":
        """Return the task on the distribution that the paper validates on."""
        return self

    @abstractmethod
    def with_length(self, length: int) -> "Task":
        """Return the same task on shorter or longer sequences."""

    def loss(self, outputs: Float[Array, "batch ..."], targets: Array) -> Float[Array, ""]:
        """Return the mean of `losses`."""
        return jnp.mean(self.losses(outputs, targets))
