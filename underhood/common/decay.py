"""Decays λ in [0, 1] through ν: λ = exp(−exp ν) (Appendix B.1, real part only).

ν is clipped to [NU_ONE, NU_ZERO]. At the ends λ is exactly 1 and exactly 0 in float32 and in
float64, and its derivative −exp(ν)·λ is finite, which it would not be at ν = ±∞.
"""

import jax
import jax.numpy as jnp
import numpy as np

from underhood.common.arrays import Weight, array_problem
from underhood.common.errors import refuse

NU_ONE = -40.0
NU_ZERO = 7.0

# A trained neuron this near to λ = 1 counts as memory, and this near to λ = 0 as query.
NEAR = 0.02


def decay_from_nu(nu: Weight) -> Weight:
    """Return λ = exp(−exp ν), in NumPy for NumPy weights and in JAX for JAX weights."""
    xp = np if isinstance(nu, np.ndarray) else jnp
    return xp.exp(-xp.exp(xp.clip(nu, NU_ONE, NU_ZERO)))


def nu_from_decay(decay: Weight, *, about: str) -> Weight:
    """Return ν = log(−log λ); refuse λ outside [0, 1], and say what the decay is `about`."""
    problem = array_problem("decay", decay)
    if problem is None and not isinstance(decay, jax.core.Tracer):
        low, high = (float(np.min(decay)), float(np.max(decay))) if decay.size else (0.0, 0.0)
        if low < 0 or high > 1:
            problem = f"decay must lie in [0, 1]; it spans [{low}, {high}]"
    refuse([] if problem is None else [problem], about=about)
    xp = np if isinstance(decay, np.ndarray) else jnp
    with np.errstate(divide="ignore"):
        return xp.clip(xp.log(-xp.log(decay)), NU_ONE, NU_ZERO)


def kinds(decay: np.ndarray, keeps: tuple[float, ...] = (1.0,)) -> np.ndarray:
    """Return "memory", "query" or "other" for each decay; memory has one of the decays `keeps`."""
    decay = np.asarray(decay, float)
    memory = np.any(np.abs(decay[:, None] - np.array(keeps)) <= NEAR, axis=1)
    return np.where(decay <= NEAR, "query", np.where(memory, "memory", "other"))
