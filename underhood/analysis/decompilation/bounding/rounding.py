"""What rounding can do to a network's output.

A sum of products computed in any order with relative error u per operation is off by at most
γ_N = N·u/(1 − N·u) times the same sum of absolute values, where N is the largest number of
operations that any term goes through. A number below 2^−1022 may become 0: an absolute error, which
later products and sums carry on. `Magnitude` follows both through a layer, on tokens of norm r or
less: the sum of absolute values, and what underflow can change. A layer whose numbers may overflow
has no bound.
"""

from dataclasses import dataclass
from functools import singledispatch

import jax
import numpy as np
from numpy.typing import DTypeLike

from underhood.analysis.forms.quadratic import ExactLayer
from underhood.common.arrays import Weight
from underhood.layers import DenseGatedRNN, GatedRNN, LinearAttention, MultiHead, SideGatedRNN

# Smaller numbers may be replaced by 0.
SMALLEST = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class Magnitude:
    """Upper bounds: of numbers in absolute value, and of their errors from underflow."""

    value: np.ndarray
    error: np.ndarray

    def __mul__(self, second: "Magnitude") -> "Magnitude":
        crossed = self.value * second.error + self.error * second.value
        error = crossed + self.error * second.error + SMALLEST
        return Magnitude(self.value * second.value, error)

    def read_by(self, W: Weight) -> "Magnitude":
        """Return W·x."""
        sizes = np.abs(np.asarray(W, float))
        error = sizes @ self.error + sizes.shape[1] * SMALLEST
        return Magnitude(sizes @ self.value, error)

    def summed(self, decay: Weight, time: int) -> "Magnitude":
        """Return Σ_{k<time} λ^k x."""
        sums = geometric_sum(decay, time)
        return Magnitude(sums * self.value, sums * self.error + time * SMALLEST)


def rounding_bound(
    layer: ExactLayer, radius: float, time: int, dtype: DTypeLike = np.float64
) -> float:
    """Return a bound on |computed − exact| for the layer's output, Euclidean norm over outputs."""
    sizes = [max(np.shape(leaf), default=0) for leaf in jax.tree.leaves(layer)]
    # Every factor of a term is a sum over tokens, neurons, gates or inputs: 4·time + … half eps in
    # all. λ = exp(−exp ν) is off by up to 5 eps between NumPy and XLA, which counts 2·5·time. The
    # certificate's tables take fewer operations than what is left.
    operations = 16 * (time + sum(sizes) + 10)
    unit = operations * float(np.finfo(dtype).eps)
    with np.errstate(over="ignore", invalid="ignore"):
        outputs = output_magnitude(layer, radius, time)
        value, error = (
            float(safe_norm(part[None], axis=1)[0]) for part in (outputs.value, outputs.error)
        )
    if unit >= 1 or not np.isfinite(value + error):
        return float("inf")
    return unit / (1 - unit) * value + error


def safe_norm(array: np.ndarray, axis: int) -> np.ndarray:
    """Return Euclidean norms whose squares neither over- nor underflow."""
    largest = np.max(np.abs(array), axis=axis, keepdims=True, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    return np.linalg.norm(array / scale, axis=axis) * np.squeeze(scale, axis)


def geometric_sum(decay: Weight, time: int) -> np.ndarray:
    """Return Σ_{k<time} λ^k."""
    decay = np.asarray(decay, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(decay == 1, time, (1 - decay**time) / (1 - decay))


def power_sum(A: np.ndarray, time: int) -> np.ndarray:
    """Return Σ_{k<time} A^k, in about log2(time) products."""
    total, power = np.zeros_like(A), np.eye(len(A))
    for bit in f"{time:b}":
        # From n to 2n, and to 2n + 1 where the bit is set.
        total, power = total + power @ total, power @ power
        if bit == "1":
            total, power = total + power, power @ A
    return total


def read_token(W: Weight, size: float) -> Magnitude:
    """Return W z for |z| ≤ size."""
    W = np.asarray(W, float)
    return Magnitude(safe_norm(W, axis=1) * size, np.full(len(W), W.shape[1] * SMALLEST))


@singledispatch
def output_magnitude(layer: ExactLayer, radius: float, time: int) -> Magnitude:
    """Return bounds on the outputs [d_out], with absolute values of all weights and tokens."""
    raise TypeError(f"There is no rounding bound for a {type(layer).__name__}.")


@output_magnitude.register
def _(layer: GatedRNN, radius: float, time: int) -> Magnitude:
    size = float(np.hypot(radius, 1.0))
    written = read_token(layer.W_in_m, size) * read_token(layer.W_in_x, size)
    states = written.summed(layer.decay, time)
    return (states.read_by(layer.W_out_m) * states.read_by(layer.W_out_x)).read_by(layer.D)


@output_magnitude.register
def _(layer: DenseGatedRNN, radius: float, time: int) -> Magnitude:
    size = float(np.hypot(radius, 1.0))
    written = read_token(layer.W_in_m, size) * read_token(layer.W_in_x, size)
    sums = power_sum(np.abs(np.asarray(layer.A, float)), time)
    states = Magnitude(sums @ written.value, sums @ (written.error + (len(sums) + 1) * SMALLEST))
    return (states.read_by(layer.W_out_m) * states.read_by(layer.W_out_x)).read_by(layer.D)


@output_magnitude.register
def _(layer: SideGatedRNN, radius: float, time: int) -> Magnitude:
    m, x, side = (read_token(W, radius) for W in (layer.W_in_m, layer.W_in_x, layer.W_side))
    return ((m * x).summed(layer.decay, time) * side).read_by(layer.D)


@output_magnitude.register
def _(layer: LinearAttention, radius: float, time: int) -> Magnitude:
    values, keys, queries = (
        Magnitude(gate.value + np.abs(W[:, -1]), gate.error)
        for W in layer.augmented()
        for gate in (read_token(W[:, :-1], radius),)
    )
    # In either order of the products: Σ_s v_s (k_s·q_t), or (Σ_s v_s k_sᵀ) q_t.
    pairs = keys * queries
    scores = Magnitude(np.sum(pairs.value, keepdims=True), np.sum(pairs.error, keepdims=True))
    written = (values * scores).summed(layer.decays, time)
    sizes = np.sum(keys.error * queries.value + keys.value * queries.error + SMALLEST)
    extra = values.summed(layer.decays, time).value * sizes + len(keys.value) * time * SMALLEST
    return Magnitude(written.value, written.error + extra)


@output_magnitude.register
def _(layer: MultiHead, radius: float, time: int) -> Magnitude:
    heads = [output_magnitude(head, radius, time) for head in layer.heads]
    value, error = (
        np.concatenate([getattr(head, name) for head in heads]) for name in ("value", "error")
    )
    rows = Magnitude(value, error)
    return rows if layer.W_O is None else rows.read_by(layer.W_O)
