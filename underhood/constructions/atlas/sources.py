"""The sources of the atlas: a named example of each kind, and how each kind is run and compiled.

side-gated RNN    y_t = D((W_side x_t) ⊙ h_t) is attention with one head per neuron: value
                  W_in_m,n x, key W_in_x,n x, query W_side,n x, decay λ_n, and W_O = D
dense gated RNN   A = P diag(λ) P⁻¹ with 0 ≤ λ ≤ 1 is a gated RNN with n² neurons: H_ij fades by λ_i
                  and is written by gate j, and h = Σ_ij P_·i P⁻¹_ij H_ij
one gradient step ŷ_t = η Σ_s y_s (x_s·x_t) on tokens [x; y] is attention
delta rule        S_t = S_{t−1} + β (v_t − S_{t−1}k_t) k_tᵀ, y_t = S_t q_t, without norms
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.common.arrays import in_float64
from underhood.constructions.sources.heads import Source, read_attention
from underhood.constructions.sources.reference import reference
from underhood.layers import (
    LRU,
    DeltaNet,
    DenseGatedRNN,
    GatedRNN,
    Layer,
    LinearAttention,
    MultiHead,
    SideGatedRNN,
)

Made = TypeVar("Made")

# Numbers per token of the examples.
EXAMPLE_WIDTH = 3
# Programs here run a few times, and compiling them well takes longer than running them.
QUICK_COMPILE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
# Eigenvectors worse conditioned than this would lose the digits that an exact answer promises.
WORST_CONDITION = 1e6
# A sum over heads is zero if it is below this, relative to its terms.
HEADS_CANCEL = 1e-9


def quick_jit(function: Callable[..., Made]) -> Callable[..., Made]:
    """Return the function compiled in little time."""
    # Equinox passes options on to jax.jit, but its types do not say so.
    return eqx.filter_jit(function, compiler_options=QUICK_COMPILE)  # type: ignore[call-overload]


@dataclass(frozen=True)
class DeltaCore:
    """The delta rule with linear keys, queries and values, and no norm."""

    W_V: Float[np.ndarray, "d_v d_in"]
    W_K: Float[np.ndarray, "d_k d_in"]
    W_Q: Float[np.ndarray, "d_k d_in"]
    beta: float

    @property
    def d_in(self) -> int:
        return self.W_V.shape[1]

    def run(self, xs: Float[np.ndarray, "batch time d_in"]) -> Float[np.ndarray, "batch time d_v"]:
        """Return the outputs, token by token."""
        memory = np.zeros((len(xs), len(self.W_V), len(self.W_K)))
        outputs = []
        for now in np.moveaxis(xs, 1, 0):
            v, k, q = (now @ W.T for W in (self.W_V, self.W_K, self.W_Q))
            seen = np.einsum("bvk,bk->bv", memory, k)
            memory = memory + self.beta * (v - seen)[:, :, None] * k[:, None, :]
            outputs.append(np.einsum("bvk,bk->bv", memory, q))
        return np.stack(outputs, axis=1)


AnySource = Layer | DeltaCore


def weights_at(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) / 2


def example_attention(**extra: np.ndarray) -> LinearAttention:
    return LinearAttention(*weights_at(0, 3, EXAMPLE_WIDTH, EXAMPLE_WIDTH), **extra)


def example_heads() -> MultiHead:
    heads = [LinearAttention(*weights_at(seed, 3, EXAMPLE_WIDTH, EXAMPLE_WIDTH)) for seed in (1, 2)]
    return MultiHead(heads, weights_at(3, EXAMPLE_WIDTH, 2 * EXAMPLE_WIDTH))


def example_step() -> LinearAttention:
    """Return one gradient step of rate ½ on tokens [x₁, x₂; y]."""
    inputs, targets = np.eye(2, EXAMPLE_WIDTH), np.eye(EXAMPLE_WIDTH)[2:]
    return LinearAttention(targets / 2, inputs, inputs)


def example_gated() -> GatedRNN:
    gates = weights_at(4, 2, 4, EXAMPLE_WIDTH + 1)
    reads = weights_at(5, 2, 3, 4)
    return GatedRNN(
        W_in_m=gates[0],
        W_in_x=gates[1],
        decay=np.array([1.0, 0.9, 0.5, 0.0]),
        W_out_m=reads[0],
        W_out_x=reads[1],
        D=weights_at(6, EXAMPLE_WIDTH, 3),
    )


def example_side() -> SideGatedRNN:
    W_in_m, W_in_x, W_side = weights_at(7, 3, 4, EXAMPLE_WIDTH)
    decay = np.array([1.0, 1.0, 0.9, 0.6])
    return SideGatedRNN(
        W_in_m=W_in_m, W_in_x=W_in_x, decay=decay, W_side=W_side, D=weights_at(8, EXAMPLE_WIDTH, 4)
    )


def example_dense() -> DenseGatedRNN:
    gates, reads = weights_at(9, 2, 3, EXAMPLE_WIDTH + 1), weights_at(10, 2, 3, 3)
    A = np.diag([1.0, 0.8, 0.4]) + np.tril(weights_at(11, 3, 3), -1)
    return DenseGatedRNN(
        W_in_m=gates[0],
        W_in_x=gates[1],
        A=A,
        W_out_m=reads[0],
        W_out_x=reads[1],
        D=weights_at(12, EXAMPLE_WIDTH, 3),
    )


def example_lru() -> Layer:
    return in_float64(
        LRU.init(d_in=EXAMPLE_WIDTH, hidden=4, d_out=EXAMPLE_WIDTH, key=jax.random.key(13))
    )


def example_deltanet() -> Layer:
    sizes = {"d_in": EXAMPLE_WIDTH, "d_out": EXAMPLE_WIDTH, "heads": 2, "d_k": 2, "d_v": 2}
    return in_float64(DeltaNet.init(**sizes, key=jax.random.key(14)))


def example_delta() -> DeltaCore:
    W_V, W_K, W_Q = weights_at(15, 3, EXAMPLE_WIDTH, EXAMPLE_WIDTH)
    return DeltaCore(W_V, W_K, W_Q, 0.5)


@dataclass(frozen=True)
class NamedSource:
    """A kind of source: its title, and an example that stands for it."""

    title: str
    example: Callable[[], AnySource]


ATLAS_SOURCES = {
    "attention": NamedSource("linear attention", example_attention),
    "attention_with_decay": NamedSource(
        "attention with decay", lambda: example_attention(decay=np.array([1.0, 0.9, 0.6]))
    ),
    "multi_head": NamedSource("several heads", example_heads),
    "gradient_step": NamedSource("one gradient step", example_step),
    "side_gated_rnn": NamedSource("side-gated RNN", example_side),
    "gated_rnn": NamedSource("gated RNN", example_gated),
    "dense_gated_rnn": NamedSource("dense gated RNN", example_dense),
    "delta_rule": NamedSource("delta rule, no norms", example_delta),
    "deltanet": NamedSource("DeltaNet", example_deltanet),
    "lru": NamedSource("the paper's LRU", example_lru),
}

# The first that fits names a source that is given as a layer.
KINDS_OF_SOURCES: tuple[tuple[type, str], ...] = (
    (MultiHead, "multi_head"),
    (SideGatedRNN, "side_gated_rnn"),
    (DenseGatedRNN, "dense_gated_rnn"),
    (GatedRNN, "gated_rnn"),
    (DeltaCore, "delta_rule"),
    (DeltaNet, "deltanet"),
    (LRU, "lru"),
)


@cache
def example_of(name: str) -> AnySource:
    """Return the example that stands for a named source."""
    return ATLAS_SOURCES[name].example()


def source_name(source: AnySource) -> str | None:
    """Return the kind of a source; None if it is no source."""
    if isinstance(source, LinearAttention):
        return "attention" if np.all(source.decays == 1) else "attention_with_decay"
    return next((name for kind, name in KINDS_OF_SOURCES if isinstance(source, kind)), None)


def run_source(source: AnySource, xs: np.ndarray) -> np.ndarray:
    """Return the outputs of a source on a batch, in float64."""
    xs = np.asarray(xs, np.float64)
    if isinstance(source, DeltaCore):
        return source.run(xs)
    if isinstance(source, Source):
        return reference(source, xs)
    return run_wide(source, xs)


def run_wide(layer: Layer, xs: np.ndarray) -> np.ndarray:
    """Return the outputs of any layer on a batch, in float64."""
    with jax.enable_x64(True):
        return np.asarray(run_once(in_float64(layer), jnp.asarray(xs)), np.float64)


@quick_jit
def run_once(layer: Layer, xs: Array) -> Array:
    return jax.vmap(layer)(xs)


def compilable(source: AnySource) -> Source | None:
    """Return the source as something that `compile` takes; None if there is no such thing."""
    if isinstance(source, Source):
        return source
    if isinstance(source, SideGatedRNN):
        return heads_of(source)
    return diagonalised(source) if isinstance(source, DenseGatedRNN) else None


def adds_up(source: Source | None) -> bool:
    """Tell whether a source is attention that grows with time: some row of a value does not fade.

    That row's n·v_x(k_x·q_z) is what z reads after n times x (theorem C).
    """
    if source is None or isinstance(source, GatedRNN):
        return False
    attention = read_attention(source)
    xs = np.random.default_rng(0).normal(size=(2, attention.d_in))
    x, z = np.column_stack([xs, np.ones(2)]) if attention.biased else xs
    grown = np.zeros(attention.d_out)
    size = 0.0
    for head in attention.heads:
        kept = head.decay == 1
        added = head.out[:, kept] @ (head.W_V[kept] @ x) * ((head.W_K @ x) @ (head.W_Q @ z))
        grown, size = grown + added, size + float(np.max(np.abs(added), initial=0.0))
    return bool(np.max(np.abs(grown), initial=0.0) > HEADS_CANCEL * size)


def heads_of(rnn: SideGatedRNN) -> MultiHead:
    """Return a side-gated RNN as attention with one head per neuron."""
    rows = (np.asarray(W, np.float64)[:, None] for W in (rnn.W_in_m, rnn.W_in_x, rnn.W_side))
    decays = np.asarray(rnn.decay, np.float64)[:, None]
    heads = [
        LinearAttention(value, key, query, decay=decay)
        for value, key, query, decay in zip(*rows, decays, strict=True)
    ]
    return MultiHead(heads, np.asarray(rnn.D, np.float64))


def diagonalised(rnn: DenseGatedRNN) -> GatedRNN | None:
    """Return a dense gated RNN as a diagonal one, if its eigenvalues are decays."""
    A, W_in_m, W_in_x, W_out_m, W_out_x, D = (
        np.asarray(getattr(rnn, name), np.float64)
        for name in ("A", "W_in_m", "W_in_x", "W_out_m", "W_out_x", "D")
    )
    values, P = np.linalg.eig(A)
    decays = np.real(values)
    if np.any(np.imag(values)) or np.any((decays < 0) | (decays > 1)):
        return None
    P = np.real(P)
    if np.linalg.cond(P) > WORST_CONDITION:
        return None
    n = len(A)
    # Column (i, j) is P_·i P⁻¹_ij.
    mix = np.einsum("hi,ij->hij", P, np.linalg.inv(P)).reshape(n, n * n)
    return GatedRNN(
        W_in_m=np.tile(W_in_m, (n, 1)),
        W_in_x=np.tile(W_in_x, (n, 1)),
        decay=np.repeat(decays, n),
        W_out_m=W_out_m @ mix,
        W_out_x=W_out_x @ mix,
        D=D,
    )
