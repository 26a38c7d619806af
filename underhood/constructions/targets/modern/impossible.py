"""minGRU holds no attention, not even in a limit.

Its state is diagonal and read linearly, with no gate of x_t behind it. So the part of y_3 that
depends on x_1 is Σ_j c_j F_j(x_1) a_j(x_2) a_j(x_3), with a = 1 − z. It does not change if x_2 and
x_3 change places. Attention's part, v_1 (k_1·q_3), does unless it is zero. Functions with this
symmetry are a closed set, so no limit leaves it. docs/modern.md has a computed example.
"""

from typing import NoReturn

from underhood.constructions.target import Blueprint

SYMMETRY = (
    "A minGRU has a diagonal state without a gate behind it: what the first of three tokens adds "
    "to the output stays the same if the other two change places. Attention's v₁(k₁·q₃) does not, "
    "unless it is zero or its query is constant. So one layer cannot come near it even in a limit; "
    "uh.can(source, 'min_gru') tells whether this holds for a source."
)


def swap_symmetry(plan: Blueprint) -> list[str]:
    """List the reason."""
    return [SYMMETRY]


def refuse_min_gru(plan: Blueprint) -> NoReturn:
    """Never run: every plan is refused before."""
    raise AssertionError("minGRU is refused by its plan")
