"""Checks of a state dict's names and shapes against those that a kind of layer has."""

from collections.abc import Iterable

import numpy as np

from underhood.bridges.weight_files import NamedArrays, listed
from underhood.common.errors import BadInput, did_you_mean, refuse

Shape = tuple[int, ...]


def check_names(
    arrays: NamedArrays, needed: Iterable[str], optional: Iterable[str] = (), *, about: str
) -> None:
    """Refuse missing and unknown names; all are listed, with those that are there."""
    needed, optional = list(needed), list(optional)
    missing = [name for name in needed if name not in arrays]
    unknown = [name for name in arrays if name not in needed and name not in optional]
    problems = [f"{listed(missing)} missing"] if missing else []
    if unknown:
        problems.append(f"{listed(unknown)} not known")
    if not problems:
        return
    hint = did_you_mean(unknown[0], missing) if missing and unknown else ""
    prefix = prefix_before(missing[0], arrays) if missing else None
    if prefix:
        hint = f" Use prefix={prefix!r}."
    wanted = listed(needed) + (f" (optional {listed(optional)})" if optional else "")
    raise BadInput(f"{about}: {'; '.join(problems)}. It takes {wanted}.{hint}")


def prefix_before(name: str, arrays: NamedArrays) -> str | None:
    """Return what stands before a name that is missing, if it is the end of another name."""
    longer = [other for other in arrays if other.endswith(f".{name}")]
    return longer[0][: -len(name)] if longer else None


def check_shapes(arrays: NamedArrays, expected: dict[str, Shape], *, about: str) -> None:
    """Refuse arrays of other shapes; say so where one is merely transposed.

    A name that is not there was optional: `check_names` comes first.
    """
    problems = []
    for name, shape in expected.items():
        given = arrays[name].shape if name in arrays else shape
        if given != shape:
            hint = f", its transpose: give {name}.T" if given == shape[::-1] else ""
            problems.append(f"{name} has shape {given} but must be {shape}{hint}")
    refuse(problems, about=about)


def check_dimensions(arrays: NamedArrays, dimensions: dict[str, int], *, about: str) -> None:
    """Refuse arrays that have another number of axes, or none of something."""
    refuse(
        [
            f"{name} has shape {arrays[name].shape} but must have {count} axes, none empty"
            for name, count in dimensions.items()
            if arrays[name].ndim != count or 0 in arrays[name].shape
        ],
        about=about,
    )


def in_memory_order(array: np.ndarray) -> np.ndarray:
    """Return a copy whose rows lie one after the other, as files need it."""
    return np.array(array, order="C")
