"""The figure of every claim, from its arrays and rows; a new experiment is a line here."""

from collections.abc import Callable
from pathlib import Path

from underhood.common.files import Json
from underhood.common.tensors import read_tensors
from underhood.report.architectures import both_tasks_figure, comparison_figure
from underhood.report.charts import Figure, NoFigure, encode_chart
from underhood.report.curves import Arrays, coefficients_figure, sizes_figure, stages_figure
from underhood.report.errors import layers_figure, lstm_figure, parabola_figure, reverse_figure
from underhood.report.weights import blocks_figure, recalled_figure, stored_figure
from underhood.results.files import ARRAYS

FIGURES: dict[str, Callable[[Arrays, Json], Figure]] = {
    "table1": stages_figure,
    "figure2": blocks_figure,
    "figure3a": sizes_figure,
    "figure3b": sizes_figure,
    "figure3c": sizes_figure,
    "figure4a": comparison_figure,
    "figure4b": comparison_figure,
    "figure6": both_tasks_figure,
    "table2": coefficients_figure,
    "table3": layers_figure,
    "lstm_weights": lstm_figure,
    "reverse": reverse_figure,
    "optimal_step": parabola_figure,
    "recall_gated": stored_figure,
    "recall_side": recalled_figure,
}
# These are drawn from the rows of the result alone.
WITHOUT_ARRAYS = ("table3",)


def figure_of(folder: Path, result: Json) -> Figure:
    """Return the figure of the result in a folder; raise NoFigure if it cannot be made."""
    name = result["experiment"]
    if name not in FIGURES:
        raise NoFigure("no figure is known for it")
    source = folder / ARRAYS
    arrays: Arrays = {}
    if source.exists():
        try:
            arrays = read_tensors(source).arrays
        except Exception as error:
            raise NoFigure(f"{source.name} cannot be read ({type(error).__name__})") from error
    elif name not in WITHOUT_ARRAYS:
        raise NoFigure(f"{source.name} is not there")
    declared = result.get("arrays", {})
    for key, array in arrays.items():
        if declared.get(key, list(array.shape)) != list(array.shape):
            raise NoFigure(f"{source.name} has another shape of {key!r} than the result says")
    try:
        figure = FIGURES[name](arrays, result)
        # What cannot be sent to the page cannot be drawn either.
        for chart in figure.charts:
            encode_chart(chart)
        return figure
    except KeyError as error:
        raise NoFigure(f"it lacks {error.args[0]!r}") from error
    except Exception as error:
        # Files from elsewhere can be wrong in any way; the page says so and goes on.
        raise NoFigure(f"its data do not fit ({type(error).__name__}: {error})") from error
