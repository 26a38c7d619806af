"""The loss of students with decays 0 and 1 on a fixed set of sequences, without the sequences.

    u = [m; v]    v(z) = the products z_k z_l, k ≤ l, of the current token z = [x; 1]
                  m = Σ v(z_s) over all tokens up to the current one

A neuron with λ = 1 holds q·m and one with λ = 0 holds q·v, so an output is y_o = b_o·φ, where φ is
the vector of the products u_a u_b, a ≤ b (`tasks/population.py` has the same for all sequences).
Let Φ have a row φ/√rows for each token of the set that counts, and Y the targets, scaled alike.
The loss is ½·mean_o |Φ b_o − Y_o|². With [Φ Y] = QR this is ½·mean_o |R_Φ b_o − R_Y,o|², because Q
is orthogonal. R has as many rows as φ and the outputs have numbers, however large the set is.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.common.errors import BadInput
from underhood.common.linear_algebra import upper
from underhood.common.threads import one_thread
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.tasks import Task
from underhood.tasks.population import MOST_INPUTS
from underhood.training.second_order.examples import sample
from underhood.training.second_order.stages import TOKENS

# The set decides a function if it has more tokens than a function has coefficients.
LEAST_ROWS_PER_PRODUCT = 3


class SettledLoss(eqx.Module):
    """The loss on a fixed set of sequences is ½·mean_o |rows b_o − targets_o|²."""

    rows: Float[Weight, "r products"]
    targets: Float[Weight, "r d_out"]

    @classmethod
    @one_thread
    def of(cls, task: Task, *, sequences: int, key: PRNGKeyArray, precision: str) -> "SettledLoss":
        """Draw a set of sequences and factorise it, in float64; the result has `precision`."""
        check_set(task, sequences)
        data = sample(task, key, sequences, TOKENS, about="Shrinking")
        first, second = upper(task.d_in + 1)
        z = np.concatenate([data.tokens, np.ones_like(data.tokens[..., :1])], axis=-1)
        v = z[..., first] * z[..., second]
        u = data.rows(np.concatenate([np.cumsum(v, axis=1), v], axis=-1))
        first, second = upper(u.shape[-1])
        both = np.hstack([u[:, first] * u[:, second], data.targets]) / np.sqrt(len(u))
        triangle = np.asarray(np.linalg.qr(both, mode="r"), precision)
        return cls(triangle[:, : len(first)], triangle[:, len(first) :])

    def __call__(self, student: GatedRNN | SideGatedRNN) -> Float[Array, ""]:
        errors = self.rows @ output_coefficients(student).T - self.targets
        return 0.5 * jnp.sum(errors**2) / errors.shape[1]


def output_coefficients(student: GatedRNN | SideGatedRNN) -> Float[Array, "d_out products"]:
    """Return b with y_o = b_o·φ, of a student with decays 0 and 1."""
    # The decays stay where they are.
    decay = jax.lax.stop_gradient(student.decay)[:, None]
    W_m, W_x = jnp.asarray(student.W_in_m), jnp.asarray(student.W_in_x)
    if isinstance(student, SideGatedRNN):
        # It reads no constant.
        W_m, W_x = (jnp.pad(W, ((0, 0), (0, 1))) for W in (W_m, W_x))
    reads = form_coefficients(W_m[:, :, None] * W_x[:, None])
    states = jnp.concatenate([decay * reads, (1 - decay) * reads], axis=1)
    if isinstance(student, SideGatedRNN):
        # W_side x reads the products of the current token and the constant.
        side = jnp.zeros_like(W_m[:, :, None] * W_m[:, None])
        now = form_coefficients(side.at[:, :-1, -1].set(student.W_side))
        left, right = jnp.concatenate([jnp.zeros_like(now), now], axis=1), states
    else:
        left, right = (jnp.asarray(W) @ states for W in (student.W_out_m, student.W_out_x))
    D = jnp.asarray(student.D)
    return form_coefficients(jnp.einsum("oga,gb->oab", D[:, :, None] * left, right))


def form_coefficients(forms: Float[Array, "many n n"]) -> Float[Array, "many pairs"]:
    """Return the coefficients of w_a w_b, a ≤ b, in the forms wᵀFw."""
    first, second = upper(forms.shape[-1])
    both = (forms + forms.swapaxes(1, 2))[:, first, second]
    return both * np.where(first == second, 0.5, 1.0).astype(both.dtype)


def check_set(task: Task, sequences: int) -> None:
    """Refuse a task with another loss or too many inputs, and a set that is too small."""
    advice = "Shrinking.fast(sequences=None) draws batches instead"
    if type(task).losses is not Task.losses:
        kind = type(task).__name__
        raise BadInput(
            f"Shrinking: sequences= is for squared errors, but {kind} has a different loss; "
            f"{advice}."
        )
    if task.d_in > MOST_INPUTS:
        raise BadInput(
            f"Shrinking: sequences= is for at most {MOST_INPUTS} inputs and the task has "
            f"{task.d_in}; {advice}."
        )
    # u has (d + 1)(d + 2) entries: half of them in m, half in v.
    entries = (task.d_in + 1) * (task.d_in + 2)
    products = entries * (entries + 1) // 2
    per_sequence = 1 if task.reads_last else min(TOKENS, task.time)
    least = -(-LEAST_ROWS_PER_PRODUCT * products // per_sequence)
    if sequences < least:
        raise BadInput(
            f"Shrinking: {sequences} sequences are too few to decide {products} coefficients; "
            f"give sequences={least} or more. {advice}."
        )
