"""Arguments that the functions of an analysis share, refused in one line."""

from typing import Any

import numpy as np

from underhood.common.errors import BadInput
from underhood.constructions import Construction
from underhood.layers import GatedRNN, SideGatedRNN

# Sizes of functions are exact sums over pairs of tokens; longer sequences would not fit in memory.
LONGEST = 256


def check_gated(model: Any, what: str) -> None:
    """A GatedRNN or a SideGatedRNN with inputs."""
    kind = type(model).__name__
    if isinstance(model, Construction):
        raise BadInput(f"{what} takes a network: give the construction's .layer.")
    if not isinstance(model, GatedRNN | SideGatedRNN):
        raise BadInput(
            f"{what} takes a GatedRNN or a SideGatedRNN, not a {kind}; attention_score judges any "
            "layer."
        )
    if model.d_in == 0:
        raise BadInput(f"{what}: the network has no inputs, so there is nothing to find.")


def check_time(time: Any, what: str, least: int = 1) -> None:
    """A length for sizes of functions."""
    whole = isinstance(time, int | np.integer) and not isinstance(time, bool)
    if not whole or not least <= time <= LONGEST:
        raise BadInput(f"{what}: time is {time!r}; give a whole number from {least} to {LONGEST}.")


def check_share(value: Any, what: str, name: str = "tolerance") -> None:
    """A number from 0 up to, not including, 1."""
    if not isinstance(value, int | float | np.number) or not 0 <= value < 1:
        raise BadInput(f"{what}: {name} is {value!r}; give a share from 0 to 1.")
