"""How far a network and an attention can differ, on all sequences of bounded tokens.

The difference is a quadratic form (`quadratic.py`) with tables G(k,k') over pairs of lags, so for
|x_s| ≤ r and any t ≤ time

    |rnn(x)_t − attention(x)_t| ≤ one(G(0,0)) + Σ_{k≥1} (2 two(G(0,k)) + one(G(k,k)))
                                  + 2 Σ_{1≤k<k'} two(G(k,k')),

where `one` and `two` bound a polynomial of one and of two tokens (`tensors.py`). Decays that nearly
agree cancel inside G before any absolute value is taken. docs/certificate.md has the proof, the
treatment of long sequences, and what the bound gives away.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from underhood.analysis.lags import Lags, lag_blocks
from underhood.analysis.norms import between, by_degree, size
from underhood.analysis.quadratic import QuadraticForm, quadratic_form, upper
from underhood.analysis.roles import kinds
from underhood.analysis.rounding import rounding_bound
from underhood.analysis.tensors import one_token_bound, spectral, two_token_bound
from underhood.layers import BadInput, LinearAttention


@dataclass(frozen=True)
class Certificate:
    """Sizes are √E[y²] on normal tokens, sequences of length `time`; shares are ratios of sizes.

    degrees, groups            shares of the network's parts by degree in the input, and by the
                               roles of the two neurons that meet
    left_degrees, left_groups  the same for what the attention leaves, as shares of the network
    Parts overlap, so the squares of shares need not add up to one.
    """

    size: float
    time: int
    residual: float
    degrees: dict[int, float]
    groups: dict[str, float]
    left_degrees: dict[int, float]
    left_groups: dict[str, float]
    network: Any = field(repr=False)
    attention: LinearAttention = field(repr=False)
    difference: QuadraticForm = field(repr=False)

    def bound(self, radius: float, time: int) -> float:
        """|rnn − attention| never exceeds this while |x_t| ≤ radius, up to length `time`.

        Holds for both networks computed in float64: rounding is part of it.
        """
        return self.exact_bound(radius, time) + self.rounding(radius, time)

    def exact_bound(self, radius: float, time: int) -> float:
        """The bound in exact arithmetic."""
        radius, time = checked(radius, time)
        blocks = lag_blocks(self.difference.decay, time)
        return difference_bound(self.difference, blocks, radius)

    def rounding(self, radius: float, time: int, dtype: Any = np.float64) -> float:
        """What rounding may add, in the networks and in the certificate's own tables."""
        radius, time = checked(radius, time)
        both = (self.network, self.attention)
        return sum(rounding_bound(one, radius, time, dtype) for one in both)

    def what_is_left(self) -> str:
        """The largest part of the function that the attention misses."""
        degree = max(self.left_degrees, key=lambda one: self.left_degrees[one])
        group = max(self.left_groups, key=lambda one: self.left_groups[one])
        return (
            f"no attention explains {self.residual:.2g} of the function; the largest part of that "
            f"has degree {degree} in the inputs, and the most comes from {group}"
        )

    def facts(self) -> dict[str, Any]:
        """Everything as plain numbers, with the bound at a few radii."""
        return {
            "size": self.size,
            "time": self.time,
            "residual": self.residual,
            "degrees": {str(degree): share for degree, share in self.degrees.items()},
            "groups": self.groups,
            "left_degrees": {str(degree): share for degree, share in self.left_degrees.items()},
            "left_groups": self.left_groups,
            "bounds": [
                {"radius": radius, "time": self.time, "bound": self.bound(radius, self.time)}
                for radius in (1.0, 2.0, 4.0)
            ],
        }

    def __str__(self) -> str:
        lines = [f"size {self.size:.4g} on normal tokens, length {self.time}"]
        for name, shares in (("degree", self.degrees), ("neurons", self.groups)):
            told = ", ".join(f"{key}: {share:.3g}" for key, share in shares.items())
            lines.append(f"share by {name}: {told}")
        lines.append(f"residual {self.residual:.3g}")
        lines += [
            f"|rnn − attention| ≤ {self.bound(radius, self.time):.3g} "
            f"for |x| ≤ {radius:g}, up to {self.time} tokens"
            for radius in (1.0, 2.0, 4.0)
        ]
        return "\n".join(lines)


def checked(radius: float, time: int) -> tuple[float, int]:
    if not np.isfinite(radius) or radius < 0:
        raise BadInput(f"bound: radius is {radius}; give a finite number, 0 or more.")
    if not isinstance(time, int | np.integer) or isinstance(time, bool) or time < 1:
        raise BadInput(f"bound: time is {time!r}; give a whole number of tokens, 1 or more.")
    return float(radius), int(time)


def certify(
    form: QuadraticForm, attention: LinearAttention, whole: float, time: int, network: Any
) -> Certificate:
    """Everything that can be said about the difference of a network and an attention."""
    difference = form - quadratic_form(attention)
    keeps = (1.0,) if attention.decay is None else tuple(np.unique(attention.decay).tolist())
    unit = whole or 1.0
    return Certificate(
        size=whole,
        time=time,
        residual=size(difference, time) / unit,
        degrees=degree_shares(form, unit, time),
        groups=group_shares(form, unit, time, keeps),
        left_degrees=degree_shares(difference, unit, time),
        left_groups=group_shares(difference, unit, time, keeps),
        network=network,
        attention=attention,
        difference=difference.gathered(),
    )


def degree_shares(form: QuadraticForm, unit: float, time: int) -> dict[int, float]:
    return {degree: size(part, time) / unit for degree, part in enumerate(by_degree(form))}


def group_shares(
    form: QuadraticForm, unit: float, time: int, keeps: tuple[float, ...]
) -> dict[str, float]:
    kind = kinds(form.decay, keeps)
    memory, query, other = (kind == one for one in ("memory", "query", "other"))
    pairs = {
        "memory × query": (memory, query),
        "memory × memory": (memory, memory),
        "query × query": (query, query),
        "other neurons": (other, np.ones_like(other)),
    }
    return {name: size(between(form, *pair), time) / unit for name, pair in pairs.items()}


def difference_bound(form: QuadraticForm, lags: Lags, radius: float) -> float:
    """The sum in the head of this file; blocks of lags stand for their middle one."""
    d_in, reads = form.d_in, form.reads
    # faded [blocks, n, entries]: Λ^k Q at the middle lag of each block; block 0 is lag 0.
    faded = lags.fading[:, :, None] * reads
    seen = form.kernels @ reads
    here = one_token_bound(reads.T @ seen, d_in, radius)
    if len(faded) == 1:
        return float(here)
    past, counts = faded[1:], lags.counts[1:]
    with_now = two_token_bound(past.swapaxes(1, 2)[:, None] @ seen, d_in, radius)
    total = float(here) + 2 * float(counts @ with_now)
    remembering = form.keep(form.decay > 0)
    if np.any(remembering.kernels):
        memory = past[:, form.decay > 0]
        meeting = remembering.kernels @ memory[:, None]
        same = one_token_bound(memory.swapaxes(1, 2)[:, None] @ meeting, d_in, radius)
        total += float(counts @ same)
        for place, (one, count) in enumerate(zip(memory, counts, strict=True)):
            pairs = two_token_bound(one.T @ meeting[place:], d_in, radius)
            many = count * counts[place:]
            # Inside a block there are count(count − 1)/2 pairs of different lags.
            many[0] = count * (count - 1) / 2
            total += 2 * float(many @ pairs)
    return total + lag_spread(form, lags, radius)


def lag_spread(form: QuadraticForm, lags: Lags, radius: float) -> float:
    """What the lags of a block may differ by from its middle, neuron by neuron."""
    if not np.any(lags.spread):
        return 0.0
    sizes = np.array([spectral_read(read, form.d_in, radius) for read in form.reads])
    strength = np.linalg.norm(form.kernels, axis=0)
    # Σ over lags of |λ^k − λ^middle| and of λ^k, per neuron; lag 0 counts in the second.
    astray = lags.counts @ lags.spread
    lasting = lags.counts @ (lags.fading + lags.spread)
    return float(2 * (sizes * astray) @ strength @ (sizes * lasting))


def spectral_read(read: np.ndarray, d_in: int, radius: float) -> float:
    """sup |q·v(z)| over |x| ≤ radius."""
    rows, columns = upper(d_in + 1)
    matrix = np.zeros((d_in + 1, d_in + 1))
    matrix[rows, columns] = read
    matrix = (matrix + matrix.T) / 2
    return float(
        spectral(matrix[:d_in, :d_in]) * radius**2
        + 2 * np.linalg.norm(matrix[:d_in, d_in]) * radius
        + abs(matrix[d_in, d_in])
    )
