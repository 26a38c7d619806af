"""Witnesses of the theorems: the source on one side, adversarial weights on the other, and the gap.

A `Combination` is a sum of outputs with signs that vanishes for every layer of a theorem of closure
(S, D). If it is G for the source, then every such layer is off by at least |G|/Σ|weights| on one of
the sequences. The other witnesses measure growth in the tokens' size (N), in time (C), at the edge
of mLSTM's piece (P), and under a norm (I). docs/theorems.md has the proofs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.common.arrays import in_float64
from underhood.constructions.atlas.facts import Facts
from underhood.constructions.atlas.sources import quick_jit, run_source
from underhood.layers import MLSTM, RGLRU, Layer, LinearAttention, MinGRU, Stack
from underhood.layers.base.recurrence import linear_recurrence
from underhood.layers.modern.core import run_memory
from underhood.layers.modern.mixer import Mixer
from underhood.layers.modern.parts import rms_norm

# From a batch [sequences, time, d] to its outputs.
RunBatch = Callable[[np.ndarray], np.ndarray]

# Along a ray the tokens run between these multiples of N(0, I). The middle is not zero: there the
# even differences of an odd function vanish.
REACH = (-2.0, 5.0)
# Tokens in a sequence: a degree above nine, and no convolution reaches from the last to the first.
WITNESS_LENGTH = 6
# Tokens are multiplied by these powers of two, where growth is measured.
NEAR_POWER, FAR_POWER = 60, 70
SOFTEST = 1e-300
# Pairs of tokens of which theorem C takes the one on which the source grows most.
DRAWS = 8


@dataclass(frozen=True)
class Gap:
    """What a witness computed.

    theorem       its name
    source_value  of the source
    target_value  of the layer with adversarial weights: what the theorem says, up to rounding
    gap           the relative error of the layer on the witness's tokens, at least
    where         the tokens, in words
    """

    theorem: str
    source_value: float
    target_value: float
    gap: float
    where: str


@dataclass(frozen=True)
class Combination:
    """Sequences [m, time, d] and weights [m] for which Σ weights y_T is zero by a theorem."""

    theorem: str
    sequences: Float[np.ndarray, "m time d"]
    weights: Float[np.ndarray, " m"]
    where: str

    def value(self, run: RunBatch) -> float:
        """Return |Σ w y_T| / Σ |w||y_T|: 0 by the theorem, at most 1 for anything."""
        signed, absolute, _ = self.sums(run)
        return signed / max(absolute, SOFTEST)

    def sums(self, run: RunBatch) -> tuple[float, float, float]:
        last = run(self.sequences)[:, -1]
        # Both results are ratios. Without the scale, the squares of large outputs overflow.
        last = last / max(float(np.max(np.abs(last), initial=0.0)), SOFTEST)
        signed = float(np.linalg.norm(self.weights @ last))
        sizes = np.linalg.norm(last, axis=1)
        return signed, float(np.abs(self.weights) @ sizes), float(np.max(sizes))

    def least_error(self, run: RunBatch) -> float:
        """Return what any layer of the theorem is off by, relative to the largest output."""
        signed, _, largest = self.sums(run)
        return signed / float(np.sum(np.abs(self.weights))) / max(largest, SOFTEST)

    def compare(self, source: RunBatch, layer: RunBatch) -> Gap:
        values = self.value(source), self.value(layer)
        return Gap(self.theorem, *values, self.least_error(source), self.where)


def swap_combination(width: int, seed: int = 0) -> Combination:
    """Return what x_1 adds to y_3, less the same with x_2 and x_3 exchanged (theorem S)."""
    first, second = np.random.default_rng(seed).normal(size=(2, width))
    # A large x_1 and x_3 = −x_2 make what x_1 adds large beside what the others give alone.
    first, third, nothing = 4 * first, -second, np.zeros(width)
    sequences = [
        [start, *rest] for rest in ((second, third), (third, second)) for start in (first, nothing)
    ]
    where = "four sequences of three tokens: x₁ or 0 first, then x₂ and x₃ = −x₂ in both orders"
    return Combination("swap", np.array(sequences), np.array([1.0, -1, -1, 1]), where)


def degree_combination(width: int, degree: int, seed: int = 0) -> Combination:
    """Return the finite difference of order degree + 1 along a ray (theorem D)."""
    ray = np.random.default_rng(seed).normal(size=(WITNESS_LENGTH, width))
    order = degree + 1
    steps = np.linspace(*REACH, order + 1)
    weights = [(-1.0) ** j * math.comb(order, j) for j in range(order + 1)]
    where = f"{order + 1} multiples of a sequence of {WITNESS_LENGTH} N(0, I) tokens"
    return Combination("degree", steps[:, None, None] * ray, np.array(weights), where)


def grown(run: RunBatch, width: int, power: int, *, local: bool, seed: int = 0) -> np.ndarray:
    """Return y_T on tokens 2^power z, or with `local` what z_1 adds to it."""
    ray = 2.0**power * np.random.default_rng(seed).normal(size=(1, WITNESS_LENGTH, width))
    last = run(ray)[0, -1]
    if not local:
        return last
    ray[0, 0] = 0
    return last - run(ray)[0, -1]


def growth_exponent(run: RunBatch, width: int, *, local: bool = False) -> float:
    """Return the slope of log |y| against log α between α = 2^60 and 2^70; 0 if y vanishes."""
    ends = (grown(run, width, power, local=local) for power in (NEAR_POWER, FAR_POWER))
    sizes = [float(np.max(np.abs(end))) for end in ends]
    if min(sizes) <= SOFTEST:
        return 0.0
    return math.log2(sizes[1] / sizes[0]) / (FAR_POWER - NEAR_POWER)


def compare_growth(source: RunBatch, layer: RunBatch, width: int, facts: Facts) -> Gap:
    """Measure both exponents, and the relative difference of the outputs at α = 2^70."""
    slopes = [growth_exponent(run, width, local=facts.local) for run in (source, layer)]
    expected, reached = (grown(run, width, FAR_POWER, local=facts.local) for run in (source, layer))
    gap = float(np.max(np.abs(reached - expected)) / np.max(np.abs(expected)))
    of = "what the first token adds" if facts.local else "the last output"
    where = f"{of}, {WITNESS_LENGTH} tokens 2⁷⁰ times N(0, I); exponents from 2⁶⁰ to 2⁷⁰"
    return Gap("norm", slopes[0], slopes[1], gap, where)


@quick_jit
def read_core(layer: Layer, xs: Array) -> Array:
    """Return what is read from the memory, before norms and gates, [time, …]."""
    if isinstance(layer, Mixer):
        return run_memory(layer.signals(xs))
    assert isinstance(layer, RGLRU | MinGRU)
    decay, write, values = layer.signals(xs)
    return linear_recurrence(decay, write * values)


@quick_jit
def read_map(layer: MLSTM, xs: Array) -> Array:
    return layer.core_map(xs)


def compare_constant(
    source: RunBatch, network: Layer, width: int, *, length: int = 512, seed: int = 0
) -> Gap:
    """Compare what a late token adds with what an early one adds, where all but the last are equal.

    network  a layer, or a stack whose first layer is read
    width    of the tokens

    The sequences are x, …, x, z with n times x. What z reads grows with n as n·v_x(k_x·q_z) in
    attention, and is bounded where writing forgets (theorem C).
    """
    embed = network.embed if isinstance(network, Stack) else None
    layer = network.layers[0] if isinstance(network, Stack) else network
    # A convolution has seen nothing but x from its width on.
    first = getattr(layer, "reach", 1)
    counts = [first, first + 1, length - 1, length]
    batches = [
        constant_sequences(x, z, counts)
        for x, z in np.random.default_rng(seed).normal(size=(DRAWS, 2, width))
    ]
    # z shall read what x wrote: for most tokens it does.
    xs = max(batches, key=lambda batch: float(early_and_late(run_at(source, batch, counts))[0]))
    with jax.enable_x64(True):
        wide = in_float64(layer)
        tokens = [jnp.asarray(x) if embed is None else embed(jnp.asarray(x)) for x in xs]
        read = [np.asarray(read_core(wide, x))[n] for x, n in zip(tokens, counts, strict=True)]
    values = [
        float(late / max(early, SOFTEST))
        for early, late in map(early_and_late, (run_at(source, xs, counts), read))
    ]
    where = f"{length} times a token, then another, both N(0, I): the last step over the first"
    of_source, of_layer = values
    gap = abs(1 - of_layer / max(of_source, SOFTEST))
    return Gap("coupled", of_source, of_layer, gap, where)


def constant_sequences(x: np.ndarray, z: np.ndarray, counts: list[int]) -> np.ndarray:
    """Return a sequence for each count n: z stands behind n times x, and x everywhere else."""
    xs = np.tile(x, (len(counts), max(counts) + 1, 1))
    xs[np.arange(len(counts)), counts] = z
    return xs


def run_at(source: RunBatch, xs: np.ndarray, counts: list[int]) -> list[np.ndarray]:
    return [ys[n] for ys, n in zip(source(xs), counts, strict=True)]


def early_and_late(outputs: list[np.ndarray]) -> tuple[float, float]:
    """Return the sizes of the first and of the last step, from the outputs at four counts."""
    early, late = (outputs[n + 1] - outputs[n] for n in (0, 2))
    scale = max(float(np.max(np.abs(early))), SOFTEST)
    return scale * float(np.linalg.norm(early / scale)), scale * float(np.linalg.norm(late / scale))


def compare_pieces(seed: int = 0, width: int = 3) -> tuple[Gap, Gap]:
    """Compare mLSTM's core with attention just inside and just outside |n·q| = 1 (theorem P).

    The forget gate is 1 and the input gate is 1, so the core is attention where the divisor is 1.
    """
    W_V, W_K, W_Q = np.random.default_rng(seed).normal(size=(3, width, width)) / 2
    attention = LinearAttention(W_V, W_K, W_Q / math.sqrt(width))
    nothing, none = np.zeros((1, width)), np.zeros(1)
    layer = MLSTM(
        W_q=W_Q[None],
        W_k=W_K[None],
        W_v=W_V[None],
        W_i=nothing,
        b_i=none,
        W_f=nothing,
        b_f=np.full(1, np.inf),
        W_o=np.zeros((1, width, width)),
        norm=np.ones((1, width)),
        W_out=np.eye(width)[:, None],
        cap=None,
    )
    ray = np.random.default_rng(seed + 1).normal(size=(WITNESS_LENGTH, width))
    sums = np.cumsum(ray @ W_K.T, axis=0)
    products = np.abs(np.sum(sums * (ray @ W_Q.T), axis=1)) / math.sqrt(width)
    edge, place = 1 / math.sqrt(products.max()), int(np.argmax(products))
    gaps = []
    for factor in (0.999, 1.001):
        xs = factor * edge * ray
        with jax.enable_x64(True):
            maps = np.asarray(read_map(layer, jnp.asarray(xs)))[0]
        expected = run_source(attention, xs[None])[0, place]
        # 1e-6 is added to the divisor, which a readout multiplies away.
        read = (maps @ (xs @ W_V.T))[place] * (1 + 1e-6)
        error = float(np.max(np.abs(read - expected)) / np.max(np.abs(expected)))
        predicted = max(1 - factor**-2, 0.0)
        where = f"{WITNESS_LENGTH} tokens, {factor} of the size at which |n·q| = 1"
        gaps.append(Gap("piecewise", predicted, error, error, where))
    return gaps[0], gaps[1]


def compare_scales(*, eps: float = 1e-5, width: int = 4, seed: int = 0) -> Gap:
    """Compare how much a norm changes if its input is ten times as large with the bound (I)."""
    drawn = np.random.default_rng(seed).normal(size=(64, width))
    with jax.enable_x64(True):
        before, after = (np.asarray(rms_norm(jnp.asarray(s * drawn), 1.0, eps)) for s in (1, 10))
    changes = np.sqrt(np.mean((after - before) ** 2, axis=1))
    bounds = eps / (2 * np.mean(drawn**2, axis=1))
    worst = float(np.max(changes / bounds))
    # What is not normed becomes ten times as large: a change of nine times itself.
    return Gap("scale", 9.0, float(np.max(changes)), worst, f"{len(drawn)} inputs N(0, I), ×10")
