"""What each neuron is for, by its decay: `memory` keeps, `query` passes on, `other` does neither.

Memory has λ = 1 and a query neuron has λ = 0; trained neurons come within a few percent. Where the
attention has decays of its own, memory neurons have one of those decays.
"""

import numpy as np

from underhood.analysis.arguments import GatedNetwork
from underhood.common.decay import kinds
from underhood.common.errors import BadInput, with_article
from underhood.constructions import Role
from underhood.layers import LinearAttention, MultiHead


def roles(layer: GatedNetwork, keeps: tuple[float, ...] = (1.0,)) -> tuple[Role, ...]:
    """Return the role of every neuron, labelled with its decay.

    keeps  the decays of memory
    """
    decay = getattr(layer, "decay", None)
    if decay is None or np.ndim(decay) != 1:
        kind = type(layer).__name__
        raise BadInput(
            "Roles are read off the decays of a GatedRNN or SideGatedRNN, "
            f"not {with_article(kind)}."
        )
    return decay_roles(np.asarray(decay, float), keeps)


def decay_roles(decay: np.ndarray, keeps: tuple[float, ...]) -> tuple[Role, ...]:
    """Return the roles of neurons with these decays."""
    return tuple(
        Role(str(kind), f"λ={value:.6g}")
        for kind, value in zip(kinds(decay, keeps), decay, strict=True)
    )


def memory_decays(attention: LinearAttention | MultiHead) -> tuple[float, ...]:
    """Return the different decays of an attention's memory."""
    heads = attention.heads if isinstance(attention, MultiHead) else (attention,)
    return tuple(np.unique(np.concatenate([head.decays for head in heads])).tolist()) or (1.0,)
