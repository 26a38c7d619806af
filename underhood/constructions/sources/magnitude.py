"""Whether a source's numbers, multiplied with each other, stay inside a precision's range.

A construction multiplies the source's matrices, W_KᵀW_Q first of all, and a network multiplies what
is left. The logarithms of their largest entries say before any of this what will overflow to
infinity or underflow to zero.
"""

from collections.abc import Iterator

import numpy as np

from underhood.constructions.sources.heads import Source, read_attention, read_gated_rnn
from underhood.layers import GatedRNN

# log2 of what products may reach; float64 ends at ±1022 and float32 at ±126. The rest is for sums
# over time, and for the weights 1/ε² of a linearised network.
LARGEST = {"float64": 960.0, "float32": 120.0}


def range_problem(source: Source, size: float, dtype: str, *, exact: bool) -> str | None:
    """Return why a source cannot be compiled; None if it can.

    size   of the tokens that a linearised network is built for
    dtype  the network's precision
    exact  the network holds the source's matrices as they are, whatever the size; otherwise it
           holds matrices of size one, and all scale in its readout
    """
    for logs in factor_logs(source, 1.0 if exact else size):
        # Constructions compute in float64, in any order of the products.
        up, down, total = (float(np.sum(part)) for part in (logs[logs > 0], logs[logs < 0], logs))
        highest, lowest = (up, down) if exact else (total, total)
        large = up > LARGEST["float64"] or highest > LARGEST[dtype]
        if large or down < -LARGEST["float64"] or lowest < -LARGEST[dtype]:
            return out_of_range(dtype, 1.0 if exact else size, large=large)
    return None


def out_of_range(dtype: str, size: float, *, large: bool) -> str:
    """Say that weights are too large or too small, and what to do."""
    how, advice = ("large", "down") if large else ("small", "up")
    tokens = "" if size == 1 else f" on tokens of size {size:g}"
    return f"The source's weights are too {how} for {dtype}{tokens}; scale them {advice}."


def factor_logs(source: Source, size: float) -> Iterator[np.ndarray]:
    """Yield, per head, log2 of the largest entries of the matrices that an output multiplies."""
    if isinstance(source, GatedRNN):
        weights = read_gated_rnn(source)
        # h stands in both branches of the output gate.
        read_x = [weights.W_in_m, weights.W_in_x] * 2
        others = [weights.W_out_m, weights.W_out_x, weights.D]
        yield logs_of(read_x, others, source.d_in, size)
        return
    for head in read_attention(source).heads:
        yield logs_of([head.W_V, head.W_K, head.W_Q], [head.out], source.d_in, size)


def logs_of(
    read_x: list[np.ndarray], others: list[np.ndarray], d_in: int, size: float
) -> np.ndarray:
    """Return log2 of the largest entry of each matrix that is not zero.

    read_x  matrices whose first d_in columns read tokens
    """
    logs = []
    for W in read_x:
        # A bias is not multiplied by the tokens' size.
        logs.append(max(largest_log(W[:, :d_in]) + np.log2(size), largest_log(W[:, d_in:])))
    logs += [largest_log(W) for W in others]
    return np.array([log for log in logs if log > -np.inf])


def largest_log(W: np.ndarray) -> float:
    largest = float(np.max(np.abs(W), initial=0.0))
    return float(np.log2(largest)) if largest > 0 else -np.inf
