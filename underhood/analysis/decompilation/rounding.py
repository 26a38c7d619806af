"""What rounding can do to a network's output.

A sum of products computed in any order with relative error u per operation is off by at most
γ_N = N·u/(1 − N·u) times the same sum of absolute values, where N is the largest number of
operations that any term goes through. `absolute_outputs` is that sum on tokens of norm r or less.
"""

from functools import singledispatch

import numpy as np
from numpy.typing import DTypeLike

from underhood.analysis.forms.quadratic import ExactLayer
from underhood.common.arrays import Weight
from underhood.layers import GatedRNN, LinearAttention, SideGatedRNN


def rounding_bound(
    layer: ExactLayer, radius: float, time: int, dtype: DTypeLike = np.float64
) -> float:
    """Return a bound on |computed − exact| for the layer's output, Euclidean norm over outputs."""
    sizes = [max(leaf.shape, default=0) for leaf in vars(layer).values() if leaf is not None]
    # Every factor of a term is a sum over tokens, neurons, gates or inputs: 4·time + … half eps in
    # all. λ = exp(−exp ν) is off by up to 5 eps between NumPy and XLA, which counts 2·5·time. The
    # certificate's tables take fewer operations than what is left.
    operations = 16 * (time + sum(sizes) + 10)
    unit = operations * float(np.finfo(dtype).eps)
    if unit >= 1:
        return float("inf")
    return unit / (1 - unit) * float(np.linalg.norm(absolute_outputs(layer, radius, time)))


def geometric_sum(decay: Weight, time: int) -> np.ndarray:
    """Return Σ_{k<time} λ^k."""
    decay = np.asarray(decay, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(decay == 1, time, (1 - decay**time) / (1 - decay))


@singledispatch
def absolute_outputs(layer: ExactLayer, radius: float, time: int) -> np.ndarray:
    """Return the largest outputs [d_out] with absolute values of all weights and tokens."""
    raise TypeError(f"There is no rounding bound for a {type(layer).__name__}.")


@absolute_outputs.register
def _(layer: GatedRNN, radius: float, time: int) -> np.ndarray:
    size = np.hypot(radius, 1.0)
    m, x = (np.linalg.norm(W, axis=1) * size for W in (layer.W_in_m, layer.W_in_x))
    states = m * x * geometric_sum(layer.decay, time)
    gates = (np.abs(layer.W_out_m) @ states) * (np.abs(layer.W_out_x) @ states)
    return np.abs(layer.D) @ gates


@absolute_outputs.register
def _(layer: SideGatedRNN, radius: float, time: int) -> np.ndarray:
    weights = (layer.W_in_m, layer.W_in_x, layer.W_side)
    m, x, side = (np.linalg.norm(W, axis=1) * radius for W in weights)
    return np.abs(layer.D) @ (m * x * geometric_sum(layer.decay, time) * side)


@absolute_outputs.register
def _(layer: LinearAttention, radius: float, time: int) -> np.ndarray:
    values, keys, queries = (
        np.linalg.norm(W[:, :-1], axis=1) * radius + np.abs(W[:, -1]) for W in layer.augmented()
    )
    return values * geometric_sum(layer.decays, time) * float(keys @ queries)
