"""The figure of every claim, from its arrays and rows; a new experiment is a line here.

Its caption is in `assets/captions.toml`.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path

from underhood.common.files import Json
from underhood.common.tensors import read_tensors
from underhood.report import curves, frontier, weights
from underhood.report.charts import Charts, Figure, NoFigure, encode_chart
from underhood.report.page import asset
from underhood.results.files import ARRAYS

FIGURES: dict[str, Callable[[curves.Arrays, Json], Charts]] = {
    "table1": curves.stages_charts,
    "figure2": weights.blocks_charts,
    "figure3a": curves.sizes_charts,
    "figure3b": curves.sizes_charts,
    "figure3c": curves.sizes_charts,
    "figure4a": curves.comparison_charts,
    "figure4b": curves.comparison_charts,
    "figure6": curves.both_tasks_charts,
    "table2": curves.coefficients_charts,
    "table3": curves.layers_charts,
    "lstm_weights": curves.lstm_charts,
    "reverse": curves.reverse_charts,
    "optimal_step": curves.parabola_charts,
    "recall_gated": weights.stored_charts,
    "recall_side": weights.recalled_charts,
    "identifiability": curves.shares_charts,
    "recall_memory": frontier.frontier_charts,
    "recall_training": frontier.rates_charts,
    "atlas": frontier.atlas_charts,
    "weight_decay": weights.readings_charts,
    "architectures2026": frontier.closeness_charts,
}
CAPTIONS = {
    name: caption["text"]
    for caption in tomllib.loads(asset("captions.toml"))["caption"]
    for name in caption["of"]
}
# The page opens with this figure's story.
STORY_FROM = "figure2"
# These are drawn from the rows of the result alone.
WITHOUT_ARRAYS = ("table3", "identifiability", "atlas")


def figure_of(folder: Path, result: Json) -> Figure:
    """Return the figure of the result in a folder; raise NoFigure if it cannot be made."""
    name = result["experiment"]
    if name not in FIGURES:
        raise NoFigure("no figure is known for it")
    source = folder / ARRAYS
    arrays: curves.Arrays = {}
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
        story = weights.story_of(arrays) if name == STORY_FROM else ()
        figure = Figure(FIGURES[name](arrays, result), CAPTIONS[name], story)
        # What cannot be sent to the page cannot be drawn either.
        for chart in figure.charts:
            encode_chart(chart)
        return figure
    except KeyError as error:
        raise NoFigure(f"it lacks {error.args[0]!r}") from error
    except Exception as error:
        # Files from elsewhere can be wrong in any way; the page says so and goes on.
        raise NoFigure(f"its data do not fit ({type(error).__name__}: {error})") from error
