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

from underhood.analysis.decompilation.bounds import one_token_bound, spectral, two_token_bound
from underhood.analysis.decompilation.lags import COARSE, FINE, Lags, lag_nodes
from underhood.analysis.decompilation.rounding import rounding_bound
from underhood.analysis.forms.norms import between, by_degree, size
from underhood.analysis.forms.quadratic import QuadraticForm, quadratic_form, symmetric, upper
from underhood.common.decay import kinds
from underhood.common.errors import BadInput
from underhood.layers import LinearAttention

# Singular values come out with a relative error of a few hundred eps at most.
COMPUTED = 1e-12
# The fourth power of a larger radius may leave the range of float64.
LARGEST = 1e60


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

        Holds for both networks computed in float64 (`jax.enable_x64`): rounding is part of it.
        """
        return self.exact_bound(radius, time) + self.rounding(radius, time)

    def exact_bound(self, radius: float, time: int) -> float:
        """The bound in exact arithmetic."""
        radius, time = checked(radius, time)
        return difference_bound(self.difference, time, radius)

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
            f"the nearest attention misses {self.residual:.2g} of the function (1 is all of it); "
            f"the largest part of that has degree {degree} in the inputs, and the most comes from "
            f"{group}"
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
    if not 0 <= radius <= LARGEST:
        raise BadInput(f"bound: radius is {radius}; give a number from 0 to {LARGEST:g}.")
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
        # Decays that differ at all may drift apart over a long sequence.
        difference=difference.gathered(equal=0.0),
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


def difference_bound(form: QuadraticForm, time: int, radius: float) -> float:
    """The sum in the head of this file."""
    total = instant_bound(form, radius)
    if time > 1:
        fine, coarse = (lag_nodes(form.decay, time, one) for one in (FINE, COARSE))
        total += memory_with_now_bound(form, fine, radius)
        total += memory_with_memory_bound(form, coarse, radius)
    return (1 + COMPUTED) * total


def instant_bound(form: QuadraticForm, radius: float) -> float:
    """The current token with itself: one(G(0,0))."""
    tables = form.reads.T @ form.kernels @ form.reads
    return float(one_token_bound(tables[None], form.d_in, radius)[0])


def memory_with_now_bound(form: QuadraticForm, lags: Lags, radius: float) -> float:
    """2 Σ_{k≥1} two(G(k,0)): with r the current token's reads and a the memory, 2|aᵀKr|."""
    past = lags.fading[1:, None, :] * form.reads.T
    tables = past[:, None] @ (form.kernels @ form.reads)
    total = float(lags.weights[1:] @ two_token_bound(tables, form.d_in, radius))
    if np.any(lags.remainder):
        # |aᵀKr − bᵀKr| with b the memory over chords instead of powers.
        sizes = largest_reads(form.reads, form.d_in, radius)
        strength = np.linalg.norm(form.kernels, axis=0)
        total += float((sizes * lags.remainder) @ strength @ sizes)
    return 2 * total


def memory_with_memory_bound(form: QuadraticForm, lags: Lags, radius: float) -> float:
    """Σ_{k≥1} one(G(k,k)) + 2 Σ_{1≤k<k'} two(G(k,k')): |aᵀKa|."""
    remembers = form.decay > 0
    form = form.keep(remembers)
    if not np.any(form.kernels):
        return 0.0
    fading = lags.fading[1:, remembers]
    # past [nodes, entries, n]: (Λ^k Q)ᵀ; meeting [nodes, d_out, n, entries]: K Λ^k Q.
    past = fading[:, None, :] * form.reads.T
    meeting = form.kernels @ past.swapaxes(1, 2)[:, None]
    alone = one_token_bound(past[:, None] @ meeting, form.d_in, radius)
    total = float(lags.own[1:] @ alone)
    # Neighbouring nodes share the lags between them.
    near = np.flatnonzero(lags.shared[1:])
    between = one_token_bound(past[near, None] @ meeting[near + 1], form.d_in, radius)
    total += 2 * float(lags.shared[1:][near] @ between)
    different = lags.different[1:, 1:]
    for place, one in enumerate(past):
        # Both orders count, but a node meets itself once.
        many = different[place, place:] * np.where(np.arange(len(past) - place), 2, 1)
        met = np.flatnonzero(many)
        total += float(many[met] @ two_token_bound(one @ meeting[place + met], form.d_in, radius))
    if np.any(lags.remainder):
        # With b the memory over chords, aᵀKa − bᵀKb = (a − b)ᵀK(a + b).
        sizes = largest_reads(form.reads, form.d_in, radius)
        strength = np.linalg.norm(form.kernels, axis=0)
        both = 2 * lags.weights[1:] @ fading
        total += float((sizes * lags.remainder[remembers]) @ strength @ (sizes * both))
    return total


def largest_reads(reads: np.ndarray, d_in: int, radius: float) -> np.ndarray:
    """sup |q·v(z)| over |x| ≤ radius, for every row q."""
    rows, columns = upper(d_in + 1)
    matrices = np.zeros((len(reads), d_in + 1, d_in + 1))
    matrices[:, rows, columns] = reads
    matrices = symmetric(matrices)
    return (
        spectral(matrices[:, :d_in, :d_in]) * radius**2
        + 2 * np.linalg.norm(matrices[:, :d_in, d_in], axis=1) * radius
        + np.abs(matrices[:, d_in, d_in])
    )
