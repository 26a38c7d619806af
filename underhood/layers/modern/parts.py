"""What stands around a core: projections, the short convolution, shifts, norms.

All of them act on [time, …], or on [time, heads, rows].
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.common.arrays import Weight

# Inside the square root of the norms that keys and queries get.
UNIT_EPS = 1e-6


def project_heads(xs: Float[Array, "time d_in"], W: Weight) -> Float[Array, "time heads rows"]:
    """Return W x for a matrix per head, W [heads, rows, d_in]."""
    return jnp.einsum("td,hrd->thr", xs, jnp.asarray(W))


def unite(mixed: Float[Array, "time heads d_v"], W_out: Weight) -> Float[Array, "time d_out"]:
    """Return Σ_heads W_out mixed, W_out [d_out, heads, d_v]."""
    return jnp.einsum("thv,ohv->to", mixed, jnp.asarray(W_out))


def convolve(us: Float[Array, "time ..."], kernel: Weight) -> Float[Array, "time ..."]:
    """Convolve each channel with its kernel [width, …], from the oldest token to the current."""
    width, time = kernel.shape[0], us.shape[0]
    padded = jnp.pad(us, ((width - 1, 0), *((0, 0),) * (us.ndim - 1)))
    return sum((kernel[i] * padded[i : i + time] for i in range(width)), jnp.zeros_like(us))


def shift(xs: Float[Array, "time d_in"]) -> Float[Array, "time d_in"]:
    """Return the token before each token; zeros before the first."""
    return jnp.pad(xs, ((1, 0), (0, 0)))[: xs.shape[0]]


def rms_norm(
    x: Float[Array, "*time d"], weight: Weight | float, eps: float
) -> Float[Array, "*time d"]:
    """Return weight ⊙ x/√(mean x² + eps), over the last axis."""
    return jnp.asarray(weight) * (x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps))


def rms_norm_heads(
    x: Float[Array, "time heads d_v"], weight: Weight, eps: float
) -> Float[Array, "time heads d_v"]:
    """Norm all heads together; weight [heads, d_v]."""
    flat = x.reshape(len(x), x.shape[1] * x.shape[2])
    return rms_norm(flat, jnp.ravel(jnp.asarray(weight)), eps).reshape(x.shape)


def layer_norm(
    x: Float[Array, "*time d"], weight: Weight, eps: float, bias: Weight | float = 0.0
) -> Float[Array, "*time d"]:
    """Return weight ⊙ (x − mean x)/√(var x + eps) + bias, over the last axis."""
    return rms_norm(x - jnp.mean(x, axis=-1, keepdims=True), weight, eps) + bias


def unit_norm(x: Float[Array, "*time d"]) -> Float[Array, "*time d"]:
    """Return x/√(|x|² + 1e-6), over the last axis."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + UNIT_EPS)


def normalise(x: Float[Array, "*time d"]) -> Float[Array, "*time d"]:
    """Return x/max(|x|, 1e-12), over the last axis; 0 at 0, with the gradient 0 there."""
    squares = jnp.sum(x * x, axis=-1, keepdims=True)
    # The root has no derivative at 0, so 0 does not enter it.
    length = jnp.sqrt(jnp.where(squares > 0, squares, 1.0))
    return x / jnp.where(squares > 0, jnp.maximum(length, 1e-12), 1e-12)
