"""A layer as notebooks show it: its sizes, and a row with a picture for each array."""

import jax
import numpy as np
from jaxtyping import PyTree

from underhood.common.arrays import Weight
from underhood.common.decay import decay_from_nu
from underhood.layers.base.markup import Content, html_picture, html_table

# A stack of hundreds of layers would fill the page.
MOST_ARRAYS = 60


def layer_html(layer: PyTree, title: str | None = None) -> str:
    """Return a layer as a table: name, shape, type, range and picture of each array.

    title  stands above the table; by default kind and sizes
    """
    leaves = jax.tree_util.tree_flatten_with_path(layer)[0]
    arrays = [(path, leaf) for path, leaf in leaves if isinstance(leaf, Weight)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in arrays]
    rows = [array_row(name, leaf) for name, (_, leaf) in zip(names, arrays, strict=True)]
    if len(rows) > MOST_ARRAYS:
        more = f"{len(rows) - MOST_ARRAYS} more arrays"
        rows = [*rows[:MOST_ARRAYS], {**dict.fromkeys(rows[0]), "array": more}]
    return html_table(layer_title(layer) if title is None else title, rows).text


def layer_title(layer: PyTree) -> str:
    kind = type(layer).__name__
    sizes = {name: getattr(layer, name, None) for name in ("d_in", "d_out", "neurons")}
    known = ", ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
    return f"{kind}: {known}" if known else kind


def array_row(name: str, array: Weight) -> dict[str, Content]:
    """Return a row of the table; λ stands in place of ν."""
    row: dict[str, Content] = {
        "array": name,
        "shape": " × ".join(map(str, array.shape)) or "number",
        "type": str(array.dtype),
    }
    if isinstance(array, jax.core.Tracer) or not array.size:
        return row | {"smallest": None, "largest": None, "picture": None}
    values = np.asarray(array)
    if name.split(".")[-1] == "nu":
        values, row["array"] = np.asarray(decay_from_nu(values)), f"{name[:-2]}decay"
    values = np.real(values)
    ends = {"smallest": float(np.min(values)), "largest": float(np.max(values))}
    # A vector is a row; more than two axes are laid side by side.
    flat = values.reshape(1, -1) if values.ndim < 2 else values.reshape(len(values), -1)
    return row | ends | {"picture": html_picture(name, flat)}
