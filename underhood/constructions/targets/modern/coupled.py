"""Attention → RG-LRU, HGRN2: layers in which what is written is also forgotten.

RG-LRU writes with √(1 − a²) and HGRN2 with 1 − f, so a layer that writes also fades. Both make
products of a value and a key by differences of a gate with small arguments,

    Σ_i a_i (σ(e_i k) − σ(−e_i k))/2 = k (1 + O(ε^{2n}))      `products/product.py`; n is the order

Several copies of every channel, with the fadings aλ, a = 1, 2, 4, 8, take the place of no fading:

    Σ_a w_a e^{−aλτ} = 1 + O((λτ)⁴)        w_a = ∏_{b≠a} b/(b − a)

λ is chosen by the length: (λ·length)⁴ is the rounding of the precision. RG-LRU's query is in its
side branch, where gelu(u) − gelu(−u) = u. Differences of small gates cost rounding, so the error is
above that of the other layers. RG-LRU fades as it is asked to, where the source has a decay.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from underhood.constructions.construction import Construction, Role
from underhood.constructions.products.product import Product, sigmoid_epsilon
from underhood.constructions.sources.gated_rnn import append_constant
from underhood.constructions.target import Blueprint
from underhood.constructions.targets.modern.slices import (
    SMALL,
    Slices,
    current_only,
    mixer_network,
    slices_of,
    zero_but,
)
from underhood.layers import HGRN2, RGLRU, Stack
from underhood.layers.modern.rg_lru import SHARPNESS

# Copies of every channel, each with its own fading.
FADINGS = 4
# −log a of a channel that must forget all.
FORGET_RATE = 1000.0


@dataclass(frozen=True)
class Fading:
    """Rates aλ of copies, and weights with Σ_a w_a e^{−aλτ} = 1 + O((λτ)^copies)."""

    rate: float
    copies: int = FADINGS

    @property
    def rates(self) -> np.ndarray:
        return self.rate * 2.0 ** np.arange(self.copies)

    @property
    def weights(self) -> np.ndarray:
        nodes = 2.0 ** np.arange(self.copies)
        rest = [np.delete(nodes, place) for place in range(self.copies)]
        return np.array([np.prod(r / (r - node)) for r, node in zip(rest, nodes, strict=True)])


def slow_fading(plan: Blueprint) -> Fading:
    """Return a fading that is below rounding over the length that was asked for."""
    return Fading(plan.eps ** (1 / FADINGS) / plan.length)


# What the differences cost, in units of eps; fits to errors at orders 1 to 4.
rg_lru_epsilon = partial(sigmoid_epsilon, rounding=4.0, power=1)
hgrn2_epsilon = partial(sigmoid_epsilon, rounding=40.0, power=1)


@dataclass(frozen=True)
class Channel:
    """One product of an RG-LRU: value row, key row, how fast it fades, and what reads it."""

    value: np.ndarray
    key: np.ndarray
    query: np.ndarray
    rate: float
    out: np.ndarray
    label: str


def channels_of(slices: Slices, fading: Fading) -> list[Channel]:
    """Return a channel for every value row, key row and fading, with zero rows left out."""
    channels = []
    for s, decay in enumerate(slices.decay):
        # A source that fades is followed exactly; one that does not needs the copies.
        rates, weights = fading.rates, fading.weights
        if decay < 1:
            slow = -math.log(decay) if decay > 0 else FORGET_RATE
            rates, weights = np.array([min(slow, FORGET_RATE)]), np.ones(1)
        rows = [i for i, row in enumerate(slices.V[s]) if np.any(row)]
        keys = [j for j, row in enumerate(slices.K[s]) if np.any(row)]
        channels += [
            Channel(
                slices.V[s, i],
                slices.K[s, j],
                slices.Q[s, j],
                float(rate),
                weight * slices.out[:, s, i],
                f"head{s}.k[{j}]v[{i}] fading {a}",
            )
            for i in rows
            for j in keys
            for a, (rate, weight) in enumerate(zip(rates, weights, strict=True))
        ]
    return channels


def build_rg_lru(plan: Blueprint) -> Construction:
    """Return an RG-LRU block that writes its first token as it writes the others."""
    slices = slices_of(plan)
    channels = channels_of(slices, slow_fading(plan))

    def neurons_at(order: int) -> int:
        return 4 * order * len(channels) + slices.width

    product = plan.product(rg_lru_epsilon, neurons_at, default=4)
    layer = rg_lru(channels, len(slices.out), slices.width, product)
    signs = [f"{gate}{side}" for gate in "+-" for side in "+-"]
    roles = [Role("copy", f"x[{i}]") for i in range(slices.width)]
    roles += [
        Role("memory", f"{channel.label} scale {e} {sign}")
        for sign in signs
        for e in range(product.order)
        for channel in channels
    ]
    embed = append_constant(plan.source.d_in)
    stack = Stack(embed, [layer], None, needs_x64=product.needs_x64)
    return plan.finish(stack, tuple(roles), product)


def rg_lru(channels: list[Channel], d_out: int, width: int, product: Product) -> RGLRU:
    """Return a block whose first channels carry the tokens to the input gates."""
    copies = 4 * product.order
    signs = [(gate, side) for gate in (1, -1) for side in (1, -1)]

    def rows_of(field: str) -> np.ndarray:
        rows = [getattr(channel, field) for channel in channels]
        # Attention that is zero has no channels.
        return np.array(rows).reshape(len(channels), d_out if field == "out" else width)

    nothing = np.zeros((width, width))
    keys = [gate * product.scaled(rows_of("key")) for gate, _ in signs] if channels else []
    sides = [np.tile(side * rows_of("query"), (product.order, 1)) for _, side in signs]
    inner = width + copies * len(channels)
    W_i = np.zeros((inner, inner))
    if channels:
        W_i[width:, :width] = np.concatenate(keys)
    # a = exp(−8·½·softplus(Λ)). What is written is divided by √(1 − a²) as the precision has it.
    rates = np.array([channel.rate for channel in channels])
    rounded = log_expm1(rates / (SHARPNESS / 2)).astype(product.dtype).astype(float)
    written = np.sqrt(-np.expm1(-SHARPNESS * np.logaddexp(0, rounded)))
    reads = rows_of("out").T / written
    out = np.concatenate(
        [gate * side * weight / 2 * reads for gate, side in signs for weight in product.weights],
        axis=1,
    )
    return zero_but(
        RGLRU,
        W_x=np.concatenate([np.eye(width), np.tile(rows_of("value"), (copies, 1))]),
        W_y=np.concatenate([nothing, *sides]),
        conv=current_only(4, inner),
        W_i=W_i,
        Lambda=np.concatenate([np.zeros(width), np.tile(rounded, copies)]),
        W_out=np.hstack([np.zeros((d_out, width)), out]),
        whole_first=False,
    )


def log_expm1(z: np.ndarray) -> np.ndarray:
    """Return log(e^z − 1), so that softplus of it is z."""
    return z + np.log(-np.expm1(-z))


def reasons_against_hgrn2(plan: Blueprint) -> list[str]:
    if plan.attention is None or not plan.attention.fades:
        return []
    return [
        "HGRN2's decay is one minus what it writes, so a decay of the source's own is not free."
    ]


def build_hgrn2(plan: Blueprint) -> Construction:
    """Return an HGRN2 mixer with a head for every slice.

    A head has channels for every key row, sign, scale and fading: f = 1 − σ(log p ± e k), and the
    queries, of size ε so that their silu is linear, hold the weights.
    """
    slices, fading = slices_of(plan), slow_fading(plan)

    def neurons_at(order: int) -> int:
        return 2 * order * FADINGS * slices.K.shape[1] * len(slices) * slices.V.shape[1]

    product = plan.product(hgrn2_epsilon, neurons_at)
    return mixer_network(plan, hgrn2(slices, fading, product), product)


def hgrn2(slices: Slices, fading: Fading, product: Product) -> HGRN2:
    """Return a mixer whose values and queries are so small that norm and silu are linear."""
    small = SMALL[product.dtype]
    forget, queries = [], []
    for leak, fade in zip(fading.rates, fading.weights, strict=True):
        for scale, weight in zip(product.scales, product.weights / 4, strict=True):
            for sign in (1, -1):
                # 1 − f = σ(log p + e k) = p e^{ek} (1 + O(p)), and e^{ek} − e^{−ek} = 2ek + O(e³).
                forget.append(-sign * scale * slices.K - np.log(leak) * slices.one_row)
                queries.append(sign * fade * weight / (2 * leak) * slices.Q)
    Q = np.concatenate(queries, axis=1)
    largest = max(float(np.max(np.abs(Q), initial=0.0)), 1e-300)
    d_k, d_v = Q.shape[1], slices.V.shape[1]
    gain = small**2 / 2 / math.sqrt(d_k) / math.sqrt(1e-5) / largest
    return HGRN2(
        W_q=small / largest * Q,
        W_f=np.concatenate(forget, axis=1),
        W_v=small * slices.V,
        norm=np.ones((len(slices), d_v)),
        W_out=slices.out / gain,
    )
