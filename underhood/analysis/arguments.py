"""Arguments that the functions of an analysis share, refused in one line."""

from typing import TypeVar

from underhood.common.errors import BadInput, kind_of, refuse
from underhood.common.numbers import share_problems, whole_problems
from underhood.constructions import Construction
from underhood.layers import DenseGatedRNN, GatedRNN, SideGatedRNN

GatedNetwork = GatedRNN | SideGatedRNN
# Networks that `decompile` reads.
ReadableNetwork = GatedRNN | SideGatedRNN | DenseGatedRNN
# A network that comes back as the same kind.
Network = TypeVar("Network", bound=GatedNetwork)

# Sizes of functions are exact sums over pairs of tokens. Longer sequences do not fit in memory.
LONGEST = 256


def check_gated(
    model: object,
    about: str,
    *,
    time: object = 1,
    least: int = 1,
    dense: bool = False,
    **shares: object,
) -> None:
    """Refuse everything but a GatedRNN or a SideGatedRNN with inputs; then `check_numbers`.

    dense  whether a DenseGatedRNN will do too
    """
    if isinstance(model, Construction):
        raise BadInput(f"{about} takes a network: give the construction's .layer.")
    if not isinstance(model, ReadableNetwork if dense else GatedNetwork):
        more = ", a DenseGatedRNN" if dense else ""
        raise BadInput(
            f"{about} takes a GatedRNN{more} or a SideGatedRNN, not {kind_of(model)}; "
            "attention_score judges any layer."
        )
    if model.d_in == 0:
        raise BadInput(f"{about}: the network has no inputs, so there is nothing to find.")
    check_numbers(about, time=time, least=least, **shares)


def check_numbers(about: str, *, time: object, least: int = 1, **shares: object) -> None:
    """Refuse a length that is not from `least` to LONGEST, and shares outside of [0, 1)."""
    problems = share_problems(**shares) + whole_problems(least=least, most=LONGEST, time=time)
    refuse(problems, about=about)
