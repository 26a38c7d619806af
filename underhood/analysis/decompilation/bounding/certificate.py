"""How far a network and an attention can differ, on all sequences of bounded tokens.

The difference is a quadratic form (`quadratic.py`) with tables G(k,k') over pairs of lags, so for
|x_s| ≤ r and any t ≤ time

    |rnn(x)_t − attention(x)_t| ≤ one(G(0,0)) + Σ_{k≥1} (2 two(G(0,k)) + one(G(k,k)))
                                  + 2 Σ_{1≤k<k'} two(G(k,k')),

where `one` and `two` bound a polynomial of one and of two tokens (`bounds.py`). Decays that nearly
agree cancel inside G before any absolute value is taken. docs/certificate.md has the proof, the
treatment of long sequences, and what the bound gives away.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import DTypeLike

from underhood.analysis.arguments import ReadableNetwork
from underhood.analysis.decompilation.bounding.bounds import (
    largest_norms,
    one_token_bound,
    two_token_bound,
)
from underhood.analysis.decompilation.bounding.horizons import LONGEST_HORIZON, longest, reach_of
from underhood.analysis.decompilation.bounding.lags import COARSE, FINE, Lags, lag_nodes
from underhood.analysis.decompilation.bounding.rounding import SMALLEST, rounding_bound
from underhood.analysis.decompilation.bounding.table_bounds import TableBound
from underhood.analysis.decompilation.function import NetworkFunction
from underhood.analysis.forms.norms import between, degree_sizes, size
from underhood.analysis.forms.quadratic import QuadraticForm
from underhood.analysis.forms.tables import TableForm
from underhood.analysis.reading.neuron_roles import memory_decays
from underhood.common.decay import kinds
from underhood.common.errors import refuse
from underhood.common.files import Json
from underhood.common.linear_algebra import symmetric_reads
from underhood.common.numbers import finite_or_none, whole_problems
from underhood.layers import LinearAttention, MultiHead

# Singular values come out with a relative error of a few hundred eps at most.
COMPUTED = 1e-12
# The fourth power of a larger radius may leave the range of float64.
LARGEST_RADIUS = 1e60
# The radii at which facts and words state the bound.
STATED_RADII = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Certificate:
    """A bound on the difference between a network and an attention, and what the attention misses.

    Sizes are √E[y²] on normal tokens, sequences of length `time`; shares are ratios of sizes.

    degrees, groups            shares of the network's parts by degree in the input, and by the
                               roles of the two neurons that meet
    left_degrees, left_groups  the same for what the attention misses, as shares of the network
    Parts overlap, so the squares of shares need not add up to one.
    exponent                   the difference is 2^exponent times the form `difference`, which is
                               None where the network's function is not known
    """

    size: float
    time: int
    residual: float
    degrees: dict[int, float]
    groups: dict[str, float]
    left_degrees: dict[int, float]
    left_groups: dict[str, float]
    network: ReadableNetwork = field(repr=False)
    attention: LinearAttention | MultiHead = field(repr=False)
    difference: QuadraticForm | TableForm | None = field(repr=False)
    exponent: int = 0

    def bound(self, radius: float, time: int) -> float:
        """Return an upper bound on |rnn − attention| for |x_t| ≤ radius and up to `time` tokens.

        It holds for both networks computed in float64 (`jax.enable_x64`): rounding is part of it.
        """
        return self.exact_bound(radius, time) + self.rounding(radius, time)

    def horizon(self, radius: float, tolerance: float) -> int:
        """Return the longest length up to which bound(radius, length) keeps a promise.

        The promise is |rnn − attention| ≤ tolerance × the attention's largest output on sequences
        of that length; 0: it is not certain at any length.
        """
        check_range(radius, 1)
        if not self.attention.neurons:
            # Zero promises zero.
            return LONGEST_HORIZON if self.size == 0 else 0
        reach = reach_of(self.attention, float(radius))
        return longest(lambda time: self.bound(radius, time) <= tolerance * reach(time), self.time)

    def exact_bound(self, radius: float, time: int) -> float:
        """Return the bound in exact arithmetic: the sum in the head of this file."""
        check_range(radius, time)
        if self.difference is None:
            return float("inf")
        total = (1 + COMPUTED) * self.form_bound(float(radius), int(time))
        scaled = float(np.ldexp(total, self.exponent))
        # What is too small for float64 is not zero.
        return scaled + SMALLEST if total > 0 and self.exponent < 0 else scaled

    @cached_property
    def form_bound(self) -> Callable[[float, int], float]:
        """The bound on the form `difference`, for a radius and a length."""
        assert self.difference is not None
        if isinstance(self.difference, TableForm):
            return TableBound(self.difference)
        return partial(quadratic_bound, self.difference)

    def rounding(self, radius: float, time: int, dtype: DTypeLike = np.float64) -> float:
        """Return what rounding may add, in the networks and in the certificate's tables."""
        check_range(radius, time)
        layers = (self.network, self.attention)
        return sum(rounding_bound(layer, float(radius), int(time), dtype) for layer in layers)

    def what_is_left(self) -> str:
        """Name the largest part of the function that the attention misses."""
        degree = max(self.left_degrees, key=self.left_degrees.__getitem__)
        group = max(self.left_groups, key=self.left_groups.__getitem__)
        return (
            f"the best attention found has residual {self.residual:.2g} (1 is the whole "
            f"function); most of what it misses has degree {degree} and comes from {group}"
        )

    def stated_bounds(self) -> list[tuple[float, float]]:
        """Return a few radii with the bound at each, for sequences of length `time`."""
        return [(radius, self.bound(radius, self.time)) for radius in STATED_RADII]

    def facts(self) -> Json:
        """Return everything as plain numbers, with the bound at a few radii."""
        numbers: Json = {"size": finite_or_none(self.size), "time": self.time}
        numbers["residual"] = self.residual
        shares = {
            name: {str(part): share for part, share in getattr(self, name).items()}
            for name in ("degrees", "groups", "left_degrees", "left_groups")
        }
        bounds = [
            {"radius": radius, "time": self.time, "bound": finite_or_none(bound)}
            for radius, bound in self.stated_bounds()
        ]
        return {**numbers, **shares, "bounds": bounds}

    def __str__(self) -> str:
        lines = [f"size {self.size:.4g} on normal tokens, length {self.time}"]
        for name, shares in (("degree", self.degrees), ("neurons", self.groups)):
            parts = ", ".join(f"{part}: {share:.3g}" for part, share in shares.items())
            lines.append(f"share by {name}: {parts}")
        lines.append(f"residual {self.residual:.3g}")
        lines += [
            f"|rnn − attention| ≤ {bound:.3g} for |x| ≤ {radius:g}, up to {self.time} tokens"
            for radius, bound in self.stated_bounds()
        ]
        return "\n".join(lines)


def check_range(radius: float, time: int) -> None:
    """Refuse a radius or a length for which there is no bound."""
    problem = f"radius is {radius}; give a number from 0 to {LARGEST_RADIUS:g}"
    problems = [] if 0 <= radius <= LARGEST_RADIUS else [problem]
    refuse(problems + whole_problems(time=time), about="bound")


def certify(
    network: ReadableNetwork,
    attention: LinearAttention | MultiHead,
    *,
    function: NetworkFunction,
    scaled: LinearAttention | MultiHead,
    residual: float,
) -> Certificate:
    """Return the certificate of an attention.

    function  of the network
    scaled    the attention in the units of the function's form
    residual  root mean square of what the attention misses over that of the function
    """
    form, whole, time = function.given, function.size, function.time
    difference = function.without(scaled)
    keeps = memory_decays(attention)
    shares: Json = {}
    for prefix, part in (("", form), ("left_", difference)):
        roles = {role: size(piece, time) for role, piece in by_roles(part, keeps).items()}
        for name, sizes in (("degrees", degree_sizes(part, time)), ("groups", roles)):
            shares[prefix + name] = {key: value / (whole or 1.0) for key, value in sizes.items()}
    # Decays that differ at all may drift apart over a long sequence.
    if isinstance(difference, QuadraticForm):
        difference = difference.gathered(equal=0.0)
    layers: Json = {"network": network, "attention": attention}
    rest: Json = {"difference": difference, "exponent": function.exponent}
    whole = float(np.ldexp(whole, function.exponent))
    return Certificate(whole, time, residual, **shares, **layers, **rest)


def unknown_certificate(
    network: ReadableNetwork, attention: LinearAttention | MultiHead, time: int
) -> Certificate:
    """Return the certificate of a network whose function is not known: it promises nothing."""
    layers: Json = {"network": network, "attention": attention, "difference": None}
    nothing: Json = {name: {} for name in ("degrees", "groups", "left_degrees", "left_groups")}
    return Certificate(float("nan"), time, 1.0, **nothing, **layers)


def by_roles(
    form: QuadraticForm | TableForm, keeps: tuple[float, ...]
) -> Mapping[str, QuadraticForm | TableForm]:
    """Return the parts of a form by the roles of the two neurons that meet."""
    if isinstance(form, TableForm):
        # In every product one factor is the current token, which query neurons hold.
        role = dict(zip(form.decay.tolist(), kinds(form.decay, keeps).tolist(), strict=True))
        return {
            "memory × query": form.keep(lambda decay: role[decay] == "memory"),
            "memory × memory": form.keep(lambda decay: False),
            "query × query": form.keep(lambda decay: role[decay] == "query"),
            "other neurons": form.keep(lambda decay: role[decay] == "other"),
        }
    kind = kinds(form.decay, keeps)
    memory, query, rest = (kind == name for name in ("memory", "query", "other"))
    return {
        "memory × query": between(form, memory, query),
        "memory × memory": between(form, memory, memory),
        "query × query": between(form, query, query),
        "other neurons": between(form, rest, np.ones_like(rest)),
    }


def quadratic_bound(form: QuadraticForm, radius: float, time: int) -> float:
    """Return the sum in the head of this file."""
    total = instant_bound(form, radius)
    if time > 1:
        fine, coarse = (lag_nodes(form.decay, time, spacing) for spacing in (FINE, COARSE))
        total += memory_with_now_bound(form, fine, radius)
        total += memory_with_memory_bound(form, coarse, radius)
    return total


def instant_bound(form: QuadraticForm, radius: float) -> float:
    """Bound the current token with itself: one(G(0,0))."""
    tables = form.reads.T @ form.kernels @ form.reads
    return float(one_token_bound(tables[None], form.d_in, radius)[0])


def memory_with_now_bound(form: QuadraticForm, lags: Lags, radius: float) -> float:
    """Bound memory a with the reads r of the current token, 2|aᵀKr|: 2 Σ_{k≥1} two(G(k,0))."""
    past = lags.fading[1:, None, :] * form.reads.T
    tables = past[:, None] @ (form.kernels @ form.reads)
    total = float(lags.weights[1:] @ two_token_bound(tables, form.d_in, radius))
    # |aᵀKr − bᵀKr| with b the memory over chords instead of powers.
    return 2 * (total + chords_bound(form, lags.remainder, np.ones(form.neurons), radius))


def memory_with_memory_bound(form: QuadraticForm, lags: Lags, radius: float) -> float:
    """Bound memory with itself, |aᵀKa|: Σ_{k≥1} one(G(k,k)) + 2 Σ_{1≤k<k'} two(G(k,k'))."""
    remembers = form.decay > 0
    form = form.keep(remembers)
    if not np.any(form.kernels):
        return 0.0
    fading = lags.fading[1:, remembers]
    # past [nodes, entries, n]: (Λ^k Q)ᵀ; meeting [nodes, d_out, n, entries]: K Λ^k Q.
    past = fading[:, None, :] * form.reads.T
    meeting = form.kernels @ past.swapaxes(1, 2)[:, None]
    alone = one_token_bound(past[:, None] @ meeting, form.d_in, radius)
    total = float(lags.squares[1:] @ alone)
    # Neighbouring nodes share the lags between them.
    near = np.flatnonzero(lags.shared[1:])
    neighbours = one_token_bound(past[near, None] @ meeting[near + 1], form.d_in, radius)
    total += 2 * float(lags.shared[1:][near] @ neighbours)
    different = lags.different[1:, 1:]
    for place, lagged in enumerate(past):
        # Both orders count, but a node meets itself once.
        many = different[place, place:] * np.where(np.arange(len(past) - place), 2, 1)
        met = np.flatnonzero(many)
        bounds = two_token_bound(lagged @ meeting[place + met], form.d_in, radius)
        total += float(many[met] @ bounds)
    # With b the memory over chords, aᵀKa − bᵀKb = (a − b)ᵀK(a + b).
    both = 2 * lags.weights[1:] @ fading
    return total + chords_bound(form, lags.remainder[remembers], both, radius)


def chords_bound(
    form: QuadraticForm, remainder: np.ndarray, weights: np.ndarray, radius: float
) -> float:
    """Bound |(a − b)ᵀK c|: a − b holds `remainder`, c `weights` times the largest read."""
    if not np.any(remainder):
        return 0.0
    matrices, x = symmetric_reads(form.reads, form.d_in + 1), slice(form.d_in)
    # sup |q·v(z)| over |x| ≤ radius, for every neuron.
    sizes = (
        largest_norms(matrices[:, x, x]) * radius**2
        + 2 * np.linalg.norm(matrices[:, x, -1], axis=1) * radius
        + np.abs(matrices[:, -1, -1])
    )
    strength = np.linalg.norm(form.kernels, axis=0)
    return float((sizes * remainder) @ strength @ (sizes * weights))
