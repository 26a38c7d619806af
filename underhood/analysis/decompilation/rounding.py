"""What rounding can do to a network's output.

A sum of products computed in any order with relative error u per operation is off by at most
γ_N = N·u/(1 − N·u) times the same sum of absolute values, N the most operations that any one term
goes through. `absolute` is that sum on tokens of norm r or less.
"""

from functools import singledispatch
from typing import Any

import numpy as np

from underhood.layers import GatedRNN, LinearAttention, SideGatedRNN


def rounding_bound(layer: Any, radius: float, time: int, dtype: Any = np.float64) -> float:
    """A bound on |computed − exact| for the layer's output, Euclidean norm over outputs."""
    sizes = [max(leaf.shape, default=0) for leaf in vars(layer).values() if leaf is not None]
    # Every factor of a term is a sum over tokens, neurons, gates or inputs, 4·time + … half eps in
    # all. λ = exp(−exp ν) is off by up to 5 eps between NumPy and XLA, which counts 2·5·time; the
    # certificate's tables take fewer operations than what is left.
    operations = 16 * (time + sum(sizes) + 10)
    unit = operations * float(np.finfo(dtype).eps)
    if unit >= 1:
        return float("inf")
    return unit / (1 - unit) * float(np.linalg.norm(absolute(layer, radius, time)))


def lasting(decay: Any, time: int) -> np.ndarray:
    """Σ_{k<time} λ^k."""
    decay = np.asarray(decay, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(decay == 1, time, (1 - decay**time) / (1 - decay))


@singledispatch
def absolute(layer: Any, radius: float, time: int) -> np.ndarray:
    """The largest outputs [d_out] with every weight and token replaced by absolute values."""
    raise TypeError(f"There is no rounding bound for a {type(layer).__name__}.")


@absolute.register
def _(layer: GatedRNN, radius: float, time: int) -> np.ndarray:
    size = np.hypot(radius, 1.0)
    m, x = (np.linalg.norm(W, axis=1) * size for W in (layer.W_in_m, layer.W_in_x))
    states = m * x * lasting(layer.decay, time)
    gates = (np.abs(layer.W_out_m) @ states) * (np.abs(layer.W_out_x) @ states)
    return np.abs(layer.D) @ gates


@absolute.register
def _(layer: SideGatedRNN, radius: float, time: int) -> np.ndarray:
    m, x, side = (
        np.linalg.norm(W, axis=1) * radius for W in (layer.W_in_m, layer.W_in_x, layer.W_side)
    )
    return np.abs(layer.D) @ (m * x * lasting(layer.decay, time) * side)


@absolute.register
def _(layer: LinearAttention, radius: float, time: int) -> np.ndarray:
    pairs = ((layer.W_V, layer.b_V), (layer.W_K, layer.b_K), (layer.W_Q, layer.b_Q))
    values, keys, queries = (
        np.linalg.norm(W, axis=1) * radius + (0.0 if b is None else np.abs(b)) for W, b in pairs
    )
    decay = np.ones(layer.d_out) if layer.decay is None else layer.decay
    return values * lasting(decay, time) * float(keys @ queries)
