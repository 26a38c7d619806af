"""Sources that are a special case of a target, without `compile`: weights copied, gates constant.

DeltaNet → gated DeltaNet   decay 1 (A_log = −inf), gate silu(W_z [x;1]) = silu(1) constant
DeltaNet → KDA              decay 1, gate σ(0) = ½
LRU → LRU In+Out            gate σ(0) = ½ before the recurrence: u = σ(0)·2x = x
zero → every target         a readout of zeros
Everything else here is the layer itself.
"""

import math

import jax
import numpy as np

from underhood.constructions.atlas.adversaries import MAKERS
from underhood.constructions.atlas.sources import AnySource, compilable
from underhood.constructions.compiling import compile
from underhood.constructions.construction import ImpossibleConstruction
from underhood.constructions.sources.gated_rnn import append_constant
from underhood.constructions.sources.heads import Source, read_attention
from underhood.constructions.sources.minimal import minimal
from underhood.constructions.targets.registry import TARGETS
from underhood.layers import (
    KDA,
    LRU,
    DeltaNet,
    GatedDeltaNet,
    GatedRNN,
    Layer,
    LinearAttention,
    LRUInOut,
    SideGatedRNN,
    Stack,
)

# silu(1).
OPEN_GATE = 1 / (1 + math.exp(-1.0))
ITSELF: tuple[tuple[type[Layer], str], ...] = (
    (GatedRNN, "gated_rnn"),
    (SideGatedRNN, "side_gated_rnn"),
    (LRU, "lru"),
    (DeltaNet, "deltanet"),
)


def embedding_of(source: AnySource, target: str) -> tuple[Layer, str] | None:
    """Return the target layer that is the source, and how; None if there is no such embedding."""
    if any(isinstance(source, kind) and target == name for kind, name in ITSELF):
        assert isinstance(source, Layer)
        return source, "It is one already."
    if isinstance(source, LRU) and target == "lru_in_out":
        return lru_in_out(source), "W_in_m = 0 and W_in_x = 2I: the gate before is σ(0)·2x = x."
    if isinstance(source, DeltaNet) and target == "gated_deltanet":
        return gated(source), "A_log = −inf is decay 1, and the gate reads the constant 1."
    if isinstance(source, DeltaNet) and target == "kda":
        return per_channel(source), "A_log = −inf is decay 1, and the gate is σ(0) = ½."
    written = compilable(source)
    if written is not None and is_zero(written):
        return zero_network(target, written.d_in, written.d_out), "A readout of zeros."
    return None


def is_zero(source: Source) -> bool:
    """Tell whether a source is zero for every sequence, by its weights."""
    if isinstance(source, GatedRNN):
        return not all(np.any(W) for W in (source.D, source.W_out_m, source.W_out_x))
    return len(minimal(read_attention(source), True).values) == 0


def zero_network(target: str, d_in: int, d_out: int) -> Layer:
    """Return a network of the target that is zero for every sequence."""
    nothing = LinearAttention(np.zeros((d_out, d_in)), np.zeros((1, d_in)), np.zeros((1, d_in)))
    if target in TARGETS:
        try:
            return compile(nothing, target).layer
        except ImpossibleConstruction:
            pass
    made = MAKERS[target](d_in, d_out, jax.random.key(0))
    return jax.tree.map(lambda W: np.zeros(W.shape), made)


def lru_in_out(lru: LRU) -> LRUInOut:
    fields = {name: np.asarray(getattr(lru, name)) for name in vars(lru)}
    d_in = lru.d_in
    return LRUInOut(W_in_m=np.zeros((d_in, d_in)), W_in_x=2 * np.eye(d_in), **fields)


def delta_weights(net: DeltaNet, gain: float) -> dict[str, np.ndarray]:
    """Return the weights that all delta rules share, over [x;1], with the readout times `gain`."""
    fields = {name: np.asarray(value) for name, value in vars(net).items() if name != "eps"}
    for name in ("W_q", "W_k", "W_v", "W_b"):
        nothing = np.zeros_like(fields[name][..., :1])
        fields[name] = np.concatenate([fields[name], nothing], axis=-1)
    return fields | {"W_out": gain * fields["W_out"]}


def gated(net: DeltaNet) -> Stack:
    heads, width = net.heads, net.d_in + 1
    gate = np.zeros((heads, net.d_v, width))
    gate[..., -1] = 1
    layer = GatedDeltaNet(
        **delta_weights(net, 1 / OPEN_GATE),
        eps=net.eps,
        W_a=np.zeros((heads, width)),
        A_log=np.full(heads, -np.inf),
        dt_bias=np.zeros(heads),
        W_z=gate,
    )
    return Stack(append_constant(net.d_in), [layer], None)


def per_channel(net: DeltaNet) -> Stack:
    heads, width = net.heads, net.d_in + 1
    layer = KDA(
        **delta_weights(net, 2.0),
        eps=net.eps,
        W_f1=np.zeros((1, width)),
        W_f2=np.zeros((heads, net.d_k, 1)),
        A_log=np.full(heads, -np.inf),
        dt_bias=np.zeros((heads, net.d_k)),
        W_g1=np.zeros((1, width)),
        W_g2=np.zeros((heads, net.d_v, 1)),
    )
    return Stack(append_constant(net.d_in), [layer], None)
