"""What the theorems need to know about each target. A target without a line here has no theorem.

growth     |y| ≤ C (1 + α)^growth if all tokens are multiplied by α ≥ 1 (theorem N)
local      that holds only for what tokens further back add to y: a term of the last two is cubic
degree     y is a polynomial of the tokens of at most this degree (theorem D)
symmetric  a diagonal state, read linearly, with no gate of x_t behind it (theorem S)
coupled    a token that writes makes the memory fade (theorem C)
reach      tokens up to which a fixed number of heads leaves an error below 1e-6; None: any number
fixed      decays that the layer has or can have, all below 1 or near 1: others need a sum of them
"""

import math
from dataclasses import dataclass

from underhood import layers
from underhood.constructions.targets.registry import TARGETS
from underhood.layers import Layer, Mamba2, Stack

# A target that `compile` does not know: two minGRU layers.
TWO_MIN_GRUS = "min_gru_2"


@dataclass(frozen=True)
class Facts:
    """A target's class of layers and what is proved about it; the symbols above."""

    title: str
    kind: type[Layer] | None = None
    growth: float = math.inf
    local: bool = False
    degree: int | None = None
    symmetric: bool = False
    coupled: bool = False
    reach: int | None = None
    fixed: bool = False


FACTS = {
    "gated_rnn": Facts("gated RNN", layers.GatedRNN, degree=4, growth=4),
    "side_gated_rnn": Facts("side-gated RNN", layers.SideGatedRNN, degree=3, growth=3),
    "lru": Facts("LRU, 2 layers", layers.LRU, growth=1),
    "lru_in_out": Facts("LRU In+Out", layers.LRUInOut, growth=1),
    "lru_in_out_mlp": Facts("LRU In+Out, MLPs", layers.LRUInOutMLP, growth=1),
    "mamba": Facts("Mamba, simplified", layers.Mamba),
    "mamba_block": Facts("Mamba block", layers.MambaBlock, growth=5),
    "lstm": Facts("LSTM", layers.LSTM, growth=0),
    "gru": Facts("GRU", layers.GRU, growth=0),
    "decayed_attention": Facts("attention, 2 layers", degree=9, growth=9),
    "falcon_h1": Facts("Falcon-H1 mixer", growth=5),
    "mamba2": Facts("Mamba-2", layers.Mamba2, growth=0),
    "gated_deltanet": Facts("gated DeltaNet", layers.GatedDeltaNet, growth=1, coupled=True),
    "deltanet": Facts("DeltaNet", layers.DeltaNet, growth=0, coupled=True),
    "kda": Facts("KDA", layers.KDA, growth=0, coupled=True),
    "lightning": Facts(
        "lightning", layers.Lightning, growth=0, coupled=True, fixed=True, reach=65_536
    ),
    "gla": Facts("GLA", layers.GLA, growth=1),
    "retnet": Facts("RetNet", layers.RetNet, growth=1, coupled=True, fixed=True, reach=1_200),
    "rwkv6": Facts("RWKV-6", layers.RWKV6, growth=1),
    "rwkv7": Facts("RWKV-7", layers.RWKV7, growth=0, local=True, fixed=True),
    "mlstm": Facts("mLSTM", layers.MLSTM, growth=0, fixed=True, reach=65_536),
    "hgrn2": Facts("HGRN2", layers.HGRN2, growth=0, coupled=True),
    "rg_lru": Facts("RG-LRU block", layers.RGLRU, growth=2, coupled=True),
    "jamba": Facts("Jamba mixer", growth=2),
    "min_gru": Facts("minGRU", layers.MinGRU, growth=1, symmetric=True, coupled=True),
    TWO_MIN_GRUS: Facts("minGRU, 2 layers", growth=1),
}


def atlas_targets() -> list[str]:
    """Return the targets of the atlas: all that `compile` knows, and two minGRU layers."""
    return [*TARGETS, TWO_MIN_GRUS]


def facts_of(target: str) -> Facts:
    """Return what is known about a target."""
    return FACTS.get(target, Facts(target))


def target_name(layer: Layer) -> str | None:
    """Return the target that a layer or a stack of layers belongs to; None if there is none."""
    if isinstance(layer, Stack):
        names = {target_name(part) for part in layer.layers}
        if names == {"min_gru"} and len(layer.layers) == 2:
            return TWO_MIN_GRUS
        return names.pop() if len(names) == 1 else None
    if isinstance(layer, Mamba2) and layer.norm is None:
        return "falcon_h1"
    return next((name for name, facts in FACTS.items() if type(layer) is facts.kind), None)
