"""Two sequences with the same current token and different pasts: what memory does, and no more.

The outputs y_t and y'_t of such a pair differ only by what the layer remembers. Any part of the
output that the current token and t decide, however large, drops out of Δy = y_t − y'_t. The share

    memory = ½ E|Δy|² / E|y_t − E y_t|² = E Var(y_t | x_t) / Var(y_t),   summed over outputs and t,

is 0 for a layer without memory, and 1 for a layer that does not see its current token.

The two are drawn independently, and both look like the task's sequences. Where tokens repeat, as
one-hot tokens do, the partner has the same token at t. Otherwise the past of another sequence
replaces the past of the first one. That is right if x_t is independent of its past.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.analysis.scoring.jackknife import group_count
from underhood.analysis.scoring.layer_arrays import AnyLayer, Plan, read_layer
from underhood.common.linear_algebra import decay_slopes, decayed_sums


@dataclass(frozen=True)
class SequencePairs:
    """A row is a pair: `first` and `second` number its pasts, `place` its current token.

    pasts      sequences [many, time, p]; in row i the tokens before place[i] are the past
    sequences  how many were drawn; a row belongs to sequence first[i]
    """

    pasts: np.ndarray
    first: np.ndarray
    second: np.ndarray
    place: np.ndarray
    sequences: int

    @property
    def tokens(self) -> np.ndarray:
        """The current tokens: [rows, p]."""
        return self.pasts[self.first, self.place]

    @property
    def groups(self) -> int:
        return group_count(self.sequences)

    @cached_property
    def group_of_row(self) -> np.ndarray:
        return self.first % self.groups

    def memories(self, decay: float) -> "PairMemories":
        """Return S_t of the first sequence and ΔS of the pair at the current token."""
        S = decayed_sums(decay, self.pasts[:, :, :, None] * self.pasts[:, :, None])
        slopes = decay_slopes(decay, S)
        now, earlier = (self.first, self.place), self.place - 1
        D, D_slope = (
            array[self.first, earlier] - array[self.second, earlier] for array in (S, slopes)
        )
        return PairMemories(S[now], slopes[now], decay * D, D + decay * D_slope)

    def with_constant(self) -> "SequencePairs":
        """Append 1 to every token."""
        ones = np.ones_like(self.pasts[:, :, :1])
        return replace(self, pasts=np.concatenate([self.pasts, ones], axis=2))

    def by_sequence(self, values: np.ndarray) -> np.ndarray:
        """Add the values of rows up: [rows, columns] → [sequences, columns]."""
        sums = np.zeros((self.sequences, values.shape[1]))
        np.add.at(sums, self.first, values)
        return sums


class PairMemories(NamedTuple):
    """S and ΔS of pairs, and their derivatives by λ: [rows, p, p] each."""

    S: np.ndarray
    slope: np.ndarray
    difference: np.ndarray
    difference_slope: np.ndarray


@dataclass(frozen=True)
class Sample:
    """Sequences, a layer's outputs on them, and pairs with the outputs [rows, outputs] of both."""

    xs: np.ndarray
    ys: np.ndarray
    pairs: SequencePairs
    partner_ys: np.ndarray

    @property
    def outputs(self) -> np.ndarray:
        """The outputs of the first sequence of each pair: [rows, outputs]."""
        return self.ys[self.pairs.first, self.pairs.place]

    @property
    def differences(self) -> np.ndarray:
        """Δy: [rows, outputs]."""
        return self.outputs - self.partner_ys

    def divided(self, size: float) -> "Sample":
        return replace(self, ys=self.ys / size, partner_ys=self.partner_ys / size)


def pair_places(plan: Plan) -> np.ndarray:
    """Return the times of the pairs, spread evenly up to the last; the first token has no past."""
    return np.round(np.linspace(plan.time - 1, 1, plan.places)).astype(int)


def draw_tokens(key: PRNGKeyArray, plan: Plan) -> jax.Array:
    """Return fresh sequences in float64: the task's, or N(0, I) tokens."""
    if plan.task is None:
        return jax.random.normal(key, (plan.half, plan.time, plan.d_in), jnp.float64)
    return jnp.asarray(plan.task.sample(key, plan.half).inputs, jnp.float64)


def draw_sample(layer: AnyLayer, key: PRNGKeyArray, plan: Plan) -> Sample:
    """Draw half of the plan's sequences and their partners, and read the layer on them."""
    drawn, others = (draw_tokens(part, plan) for part in jax.random.split(key))
    xs, partners, ys = np.asarray(drawn), np.asarray(others), read_layer(layer, drawn)
    other_ys: np.ndarray | None = None
    columns, partner_ys = [], []
    for place in pair_places(plan):
        first, second = equal_tokens(xs[:, place], partners[:, place])
        if 2 * len(first) >= plan.half:
            other_ys = read_layer(layer, others) if other_ys is None else other_ys
            partner_ys.append(other_ys[second, place])
        else:
            # Only the past is replaced, so that a layer which sees the future gains nothing.
            spliced = jnp.concatenate([others[:, :place], drawn[:, place:]], axis=1)
            first = second = np.arange(plan.half)
            partner_ys.append(read_layer(layer, spliced)[:, place])
        columns.append(np.stack([first, plan.half + second, np.full(len(first), place)]))
    first, second, places = np.concatenate(columns, axis=1)
    pairs = SequencePairs(np.concatenate([xs, partners]), first, second, places, plan.half)
    return Sample(xs, ys, pairs, np.concatenate(partner_ys))


def equal_tokens(tokens: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of tokens and of others [sequences, d] that are equal, in pairs.

    Each token that occurs among the others gets a partner, in turn; the rest is left out.
    """
    _, kinds = np.unique(np.concatenate([tokens, others]), axis=0, return_inverse=True)
    kind, other_kind = np.split(kinds.ravel(), [len(tokens)])
    order = np.argsort(other_kind, kind="stable")
    start = np.searchsorted(other_kind[order], kind)
    many = np.searchsorted(other_kind[order], kind, side="right") - start
    first = np.flatnonzero(many)
    return first, order[start[first] + first % many[first]]
