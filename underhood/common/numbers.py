"""Checks on numbers that callers give, and numbers as JSON has them."""

import math
import operator
from typing import Any

import numpy as np

# Checks take whatever the caller gave: Any.


def is_whole(value: Any) -> bool:  # Any: see above
    """Tell whether a value is one whole number of Python, NumPy or JAX."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool | np.bool_)


def is_number(value: Any) -> bool:  # Any: see above
    """Tell whether a value is one real number of Python or NumPy; NaN and infinity are."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def whole_problems(*, least: int = 1, most: float = math.inf, **values: Any) -> list[str]:  # Any
    """List what stops the named values from being whole numbers from `least` to `most`."""
    wanted = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    return [
        f"{name} is {value!r}; give a whole number {wanted}"
        for name, value in values.items()
        if not is_whole(value) or not least <= value <= most
    ]


def number_problems(
    *,
    least: float = 0.0,
    most: float = math.inf,
    above: bool = False,
    **values: Any,  # Any: see above
) -> list[str]:
    """List what stops the named values from being finite, from (or `above`) `least` to `most`."""
    start = f"above {least:g}" if above else f"of at least {least:g}"
    wanted = start if most == math.inf else f"from {least:g} to {most:g}"
    return [
        f"{name} is {value!r}; give a number {wanted}"
        for name, value in values.items()
        if not is_number(value)
        or not math.isfinite(value)
        or not least <= value <= most
        or (above and value == least)
    ]


def share_problems(**values: Any) -> list[str]:  # Any: see above
    """List what stops the named values from being shares: 0 or more, and less than 1."""
    return [
        f"{name} is {value!r}; give a share of at least 0 and below 1"
        for name, value in values.items()
        if not isinstance(value, int | float | np.number) or not 0 <= value < 1
    ]


def finite_or_none(value: float) -> float | None:
    """Return a number for JSON, which has no infinity and no NaN: None for those."""
    return float(value) if np.isfinite(value) else None


def quantity(count: int, name: str) -> str:
    """Return "1 token" or "3 tokens"."""
    return f"{count} {name}{'' if count == 1 else 's'}"
