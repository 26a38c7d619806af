"""Charts and figures for print: three formats, the same bytes, text alternatives."""

import json
import re
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pytest
import safetensors.numpy
from result_files import COMMITTED

from underhood.report.build import build
from underhood.report.charts import (
    PALETTE,
    Axis,
    Figure,
    Film,
    Line,
    Matrices,
    Matrix,
    Plot,
    Series,
    alt_text,
    encode_chart,
)
from underhood.report.curves import comparison_charts, stages_charts
from underhood.report.drawing import FORMATS, MARKERS, draw, lay_out
from underhood.report.figures import figure_of
from underhood.report.frontier import frontier_charts
from underhood.report.page import asset, packed_json
from underhood.report.weights import (
    merging_pictures,
    readings_charts,
    story_of,
)
from underhood.results.files import ARRAYS, find, read_result


def test_kernels_that_merge_are_shown_in_one_unit() -> None:
    """Gate outputs whose outer products are proportional give a kernel proportional to them."""
    rng = np.random.default_rng(0)
    m, x, u = rng.normal(size=3), rng.normal(size=3), rng.normal(size=2)
    arrays = {
        "pruned/nu": np.array([-20.0, -20.0, 5.0]),
        "pruned/W_out_m": np.stack([2 * m, m, -3 * m]),
        "pruned/W_out_x": np.stack([x, x, x]),
        "pruned/D": np.stack([u, 0.5 * u, -u], axis=1),
        "merging": np.arange(3),
    }
    *each, together = (panel.values for panel in merging_pictures(arrays).panels)
    product = (np.outer(m, x) + np.outer(x, m)) / 2
    for kernel, factor in zip(each, (2, 1, -3), strict=True):
        np.testing.assert_allclose(kernel, factor * product)
    # The strongest has weight 1, or −1 if the other sign was picked as the direction.
    np.testing.assert_allclose(np.abs(together), np.abs((2 + 0.5 + 3) * product))


def stored(name: str, scale: str = "quick") -> tuple[dict[str, np.ndarray], dict]:
    """The arrays and the contents of a committed result."""
    folder = COMMITTED[scale] / name
    return safetensors.numpy.load_file(folder / ARRAYS), read_result(folder / "result.json")


def test_the_story_counts_what_it_shows() -> None:
    arrays, _ = stored("figure2")
    random = {
        key.replace("trained", "untrained"): arrays[key] for key in arrays if "trained/" in key
    }
    steps = story_of(arrays | random)
    assert [step.pictures.title.split(":")[0] for step in steps] == [
        "Untrained",
        "Trained",
        "Pruned",
        "The attention in them",
    ]
    assert "14 neurons of the polished and reduced network" in steps[-1].sentence
    # Without the reduced network the memory was read from the pruned one, and nothing else is said.
    left = {key: array for key, array in arrays.items() if not key.startswith("reduced/")}
    kept = len(arrays["pruned/nu"])
    assert f"from the {kept} neurons. The" in story_of(left)[-1].sentence
    spoilt = arrays | {"memory/neurons": 2 * arrays["memory/attention"]}
    assert "difference is 1e+00 of the largest entry" in story_of(spoilt)[-1].sentence
    assert story_of({"memory/tokens": arrays["memory/tokens"]}) == ()


def test_readings_of_weight_decay_stand_side_by_side() -> None:
    arrays, _ = stored("figure2")
    networks = {
        key.replace("trained", name): array
        for name in ("coupled", "decoupled", "optax")
        for key, array in arrays.items()
        if key.startswith("trained/")
    }
    rows = [{"group": name, "neurons": count} for name, count in (("coupled", 14), ("optax", 90))]
    pictures, counts = readings_charts(networks, {"rows": rows})
    assert [panel.title for panel in pictures.panels] == ["coupled", "decoupled", "optax"]
    assert counts.x.names == ("coupled", "optax")
    np.testing.assert_array_equal(counts.series[0].y, [14, 90])


def test_one_width_shows_architectures_side_by_side_and_several_show_curves() -> None:
    titles = {}
    for scale in COMMITTED:
        arrays, result = stored("figure4a", scale)
        first = comparison_charts(arrays, result)[0]
        titles[scale] = first.title
        if scale == "quick":
            shown_at = {curve.name: first.x.names[int(curve.x[0])] for curve in first.series}
            assert len(shown_at) == len(result["rows"])
            assert all(name.split(", 2 layers")[0] == at for name, at in shown_at.items())
    assert titles == {"quick": "At width 16", "paper": "Against width"}


def test_table1_shows_the_numbers_that_its_rows_hold() -> None:
    arrays, result = stored("table1")
    more = {"name": "loss, polished", "value": 1.0, "paper": 2.0, "verdict": "better"}
    plot = stages_charts(arrays, result | {"numbers": [*result["numbers"], more]})[0]
    assert [curve.name for curve in plot.series] == [
        curve.name for curve in stages_charts(arrays, result)[0].series
    ]


def test_figures_come_in_three_formats_and_repeat_to_the_byte(tmp_path) -> None:
    source = COMMITTED["paper"] / "recall_gated"
    figure = figure_of(source, json.loads((source / "result.json").read_text(encoding="utf-8")))
    kept = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        paths = draw(folder, figure, "title")
        assert [path.suffix[1:] for path in paths] == list(FORMATS)
        kept.append([path.read_bytes() for path in paths])
    assert kept[0] == kept[1]
    starts = (b"%PDF", b"<?xml", b"\x89PNG")
    assert all(file.startswith(start) for file, start in zip(kept[0], starts, strict=True))


PLOT = Plot(
    "losses",
    Axis("updates"),
    Axis("loss", log=True),
    (
        Series("a", np.array([1.0, 2.0]), np.array([1e-3, np.nan])),
        Series("b", np.arange(2), np.array([2.0, 1 / 3]), np.zeros(2), np.ones(2), "both", 3),
    ),
    (Line("theory", 14.0, vertical=True),),
)


def test_plots_travel_with_short_numbers_and_gaps() -> None:
    sent = json.loads(json.dumps(encode_chart(PLOT), allow_nan=False))
    assert sent["series"][0]["y"] == [1e-3, None]
    assert sent["series"][1]["y"] == [2, 0.33333]
    assert sent["series"][0]["low"] is None and sent["series"][1]["high"] == [1, 1]
    assert sent["lines"] == [{"label": "theory", "at": 14.0, "vertical": True}]


def test_every_trained_layer_has_a_colour_and_a_shape_and_points_say_what_they_are() -> None:
    arrays, result = stored("recall_memory")
    less = {f"{codes}_counted": 0.9 * arrays[f"{codes}_linear"] for codes in ("dense", "hash")}
    plot, pairs = frontier_charts(arrays | less, result)
    trained = [curve for curve in plot.series if curve.name.startswith("trained: ")]
    assert len(trained) == 10
    assert len({curve.colour for curve in trained}) == len({curve.shape for curve in trained}) == 10
    marks = [(curve.colour, curve.shape) for curve in plot.series if curve.mark == "points"]
    assert len(set(marks)) == len(marks)
    (delta,) = (curve for curve in trained if curve.name == "trained: DeltaNet")
    said = "trained: DeltaNet: accuracy 0.793 with 2,240 numbers of state, 8,960 bytes"
    assert delta.texts[0] == said
    assert encode_chart(plot)["series"][plot.series.index(delta)]["texts"][0] == said
    # The caveats speak of these curves; a convolution counted takes from the state.
    curves = {curve.name: curve for curve in plot.series}
    counted = curves["hash codes, convolution counted"]
    assert counted.dashed and np.all(counted.y <= curves["hash codes, formula"].y + 1e-9)
    # What was run stands beside the formula, at the state of the panel alone.
    (run,) = (curve for curve in pairs.series if curve.name == "hash codes, run")
    assert list(run.x) == [4, 8, 16, 32, 64, 128, 256] and np.all(run.low <= run.y)


def test_the_page_has_every_colour_and_every_shape() -> None:
    style, marks = asset("page.css"), asset("chart_marks.js")
    for place in range(len(PALETTE)):
        # Light, dark by the system, dark by the button.
        assert len(re.findall(rf"--c{place}: #", style)) >= 3
        assert f".c{place} {{ --colour: var(--c{place}); }}" in style
    shapes = re.search(r"const SHAPES = \[(.*?)\n\];", marks, re.S)
    assert shapes is not None
    kinds = re.findall(r"regular\(|PLUS|\[\]", shapes[1])
    assert len(kinds) == len(MARKERS) == len(PALETTE)


def test_charts_have_text_alternatives() -> None:
    assert alt_text(PLOT) == (
        "losses: loss against updates; a, b; values from 0.001 to 2; lines: theory at 14."
    )
    panels = (Matrix("W", np.zeros((2, 3))), Matrix("", np.eye(2)))
    assert alt_text(Matrices("weights", panels, 2)) == "weights: W (2 by 3), panel (2 by 2)."
    film = Film("memory", (panels, panels), ("1", "2"))
    assert alt_text(film) == "memory: W (2 by 3), panel (2 by 2), in 2 frames."


# Sizes too near to each other, or too many, have powers of ten and what is between them.
@pytest.mark.parametrize(
    ("x", "each"),
    [
        ([8, 16, 32, 64, 128], True),
        ([32], True),
        ([6560, 7584, 8640], False),
        ([*2.0 ** np.arange(12)], False),
    ],
)
def test_few_sizes_have_a_tick_each(x: list[float], each: bool) -> None:
    values = np.array(x, float)
    plot = Plot("t", Axis("width", log=True), Axis("loss"), (Series("a", values, values),))
    figure = lay_out(Figure((plot,), ""), "t")
    (axis,) = figure.axes
    figure.canvas.draw()
    assert (list(axis.get_xticks()) == x) == each
    low, high = axis.get_xlim()
    assert low < min(x) <= max(x) < high
    plt.close(figure)


@pytest.mark.parametrize("count", [1, 30])
def test_degenerate_charts_can_be_drawn(count: int, tmp_path) -> None:
    nothing = Plot("none", Axis("x", log=True), Axis("y", log=True), ())
    empty = Series("empty", np.zeros(0), np.zeros(0))
    missing = Series("missing", np.ones(2), np.full(2, np.nan), mark="points")
    bare = Plot("bare", Axis("x", names=("one", "two")), Axis("y"), (empty, missing))
    zeros = Matrices("zeros", (Matrix("0", np.zeros((1, 1))),) * count, min(count, 8))
    assert len(draw(tmp_path, Figure((nothing, bare, zeros), ""), "title")) == 3
    packed_json({"charts": [encode_chart(chart) for chart in (nothing, bare, zeros)]})


def test_figures_for_print_are_renewed_where_asked_and_where_older(tmp_path) -> None:
    for name in ("reverse", "optimal_step"):
        (tmp_path / name).mkdir()
        for file in ("result.json", "arrays.safetensors"):
            shutil.copy(COMMITTED["quick"] / name / file, tmp_path / name)

    def renewed(renew) -> list[str]:
        built = build(find(tmp_path), tmp_path / "report.html", renew=renew)
        return [f"{path.parent.name}/{path.name}" for path in built.figures]

    ours = [f"reverse/figure.{kind}" for kind in FORMATS]
    assert renewed(["reverse"]) == ours and renewed(["reverse"]) == []
    assert not list((tmp_path / "optimal_step").glob("figure.*"))
    # A result that was written since, a figure that is gone.
    (tmp_path / "reverse/result.json").touch()
    assert renewed(["reverse"]) == ours
    (tmp_path / "reverse/figure.svg").unlink()
    assert renewed(["reverse"]) == ours
    assert len(renewed(["reverse", "optimal_step"])) == 3
    assert len(renewed(None)) == 6
