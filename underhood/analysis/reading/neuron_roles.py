"""What each neuron is for, by its decay: `memory` keeps, `query` passes on, `other` does neither.

Perfect memory has λ = 1 and perfect forgetting λ = 0; trained neurons come within a few percent.
Where attention with a decay was found, memory is what has that decay.
"""

from typing import Any

import numpy as np

from underhood.common.decay import kinds
from underhood.common.errors import BadInput
from underhood.constructions import Role


def roles(layer: Any, keeps: tuple[float, ...] = (1.0,)) -> tuple[Role, ...]:
    """The role of every neuron, labelled with its decay."""
    decay = getattr(layer, "decay", None)
    if decay is None or np.ndim(decay) != 1:
        kind = type(layer).__name__
        raise BadInput(
            f"Roles are read off the decays of a GatedRNN or SideGatedRNN, not a {kind}."
        )
    decay = np.asarray(decay, float)
    return tuple(
        Role(str(kind), f"λ={value:.6g}")
        for kind, value in zip(kinds(decay, keeps), decay, strict=True)
    )
