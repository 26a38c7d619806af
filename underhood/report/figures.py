"""The figure of every claim, from its arrays and rows; a new experiment is a line here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from underhood.report import architectures, curves, errors, weights
from underhood.report.charts import Figure, NoFigure, encoded

FIGURES: dict[str, Callable[[dict[str, np.ndarray], dict[str, Any]], Figure]] = {
    "table1": curves.table1,
    "figure2": weights.blocks,
    "figure3a": curves.sizes,
    "figure3b": curves.sizes,
    "figure3c": curves.sizes,
    "figure4a": architectures.comparison,
    "figure4b": architectures.comparison,
    "figure6": architectures.comparisons,
    "table2": curves.coefficients,
    "table3": errors.layers_needed,
    "lstm_weights": errors.lstm_errors,
    "reverse": errors.reverse_errors,
    "optimal_step": errors.parabola,
    "recall_gated": weights.stored,
    "recall_side": weights.recalled,
}
# These are drawn from the rows of the result alone.
WITHOUT_ARRAYS = ("table3",)


def figure_of(folder: Path, result: dict[str, Any]) -> Figure:
    """The figure of the result in a folder."""
    name = result["experiment"]
    if name not in FIGURES:
        raise NoFigure("no figure is known for it")
    source = folder / "arrays.safetensors"
    arrays: dict[str, np.ndarray] = {}
    if source.exists():
        try:
            arrays = safetensors.numpy.load_file(source)
        except Exception as error:
            raise NoFigure(f"{source.name} cannot be read ({type(error).__name__})") from error
    elif name not in WITHOUT_ARRAYS:
        raise NoFigure(f"{source.name} is not there")
    declared = result.get("arrays", {})
    other = [
        key for key, one in arrays.items() if declared.get(key, list(one.shape)) != list(one.shape)
    ]
    if other:
        raise NoFigure(f"{source.name} has another shape of {other[0]!r} than the result says")
    try:
        figure = FIGURES[name](arrays, result)
        # What cannot be sent to the page cannot be drawn either.
        for chart in figure.charts:
            encoded(chart)
        return figure
    except KeyError as error:
        raise NoFigure(f"it lacks {error.args[0]!r}") from error
    except Exception as error:
        # Files from elsewhere can be wrong in any way; the page says so and goes on.
        raise NoFigure(f"its data do not fit ({type(error).__name__}: {error})") from error
