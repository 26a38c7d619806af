"""Figures made of curves and points: losses, λ, sizes, architectures, coefficients, errors."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from underhood.common.files import Json
from underhood.report.charts import Axis, Charts, Line, Plot, Series
from underhood.results.architectures import ARCHITECTURE_NAMES

Arrays = dict[str, np.ndarray]
# Name, colour, and whether it is dashed.
Look = tuple[str, int, bool]

POINTS = 150
# On a logarithmic axis an error of zero is shown as this.
LEAST_ERROR = 1e-17
# By architecture; two layers have the same colour, dashed.
COLOURS = (0, 7, 3, 1, 4, 2, 6)
ERROR = Axis("error / largest output", log=True)
# What table1's numbers are called in figures.
NUMBER_LABELS = {
    "score_kv": "1 − R² of key-values",
    "score_q": "1 − R² of queries",
    "polynomial_distance": "distance of polynomials",
}


def median_and_range(
    name: str, x: np.ndarray, groups: Iterable[Sequence[float] | np.ndarray], mark: str, colour: int
) -> Series:
    """Return medians with the range from lowest to highest; NaN for an empty group."""
    filled = [group if len(group) else [np.nan] for group in groups]
    medians, lowest, highest = (
        np.array([measure(group) for group in filled]) for measure in (np.median, np.min, np.max)
    )
    return Series(name, x, medians, lowest, highest, mark, colour)


def training_plot(
    steps: np.ndarray,
    losses: np.ndarray,
    looks: Iterable[Look],
    more: str = "",
    faint: bool = False,
) -> Plot:
    """Plot training loss against updates, at most POINTS of each curve; `more` ends the title."""
    kept = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).astype(int))
    series = tuple(
        Series(name, steps[kept], curve[kept], colour=colour, dashed=dashed, faint=faint)
        for (name, colour, dashed), curve in zip(looks, losses, strict=True)
    )
    axes = Axis("updates"), Axis("training loss", log=True)
    return Plot(f"Loss of every student{more}", *axes, series)


def loss_curves(arrays: Arrays) -> Plot:
    looks = ((f"seed {seed}", seed % 8, seed >= 8) for seed in range(len(arrays["losses"])))
    return training_plot(arrays["steps"], arrays["losses"], looks)


def spectrum(decay: np.ndarray) -> Plot:
    """Plot λ of every neuron, sorted, for every student."""
    neurons = np.arange(1, decay.shape[1] + 1)
    series = tuple(
        Series(f"seed {seed}", neurons, np.sort(row)[::-1], mark="points", colour=seed % 8)
        for seed, row in enumerate(decay)
    )
    return Plot("Where λ ended", Axis("neuron, sorted by λ"), Axis("λ"), series)


def stages_charts(arrays: Arrays, result: Json) -> Charts:
    """Show table1: the four numbers stage by stage, the losses, and λ."""
    rows = result["rows"]
    stages = tuple(dict.fromkeys(str(row["stage"]) for row in rows))
    x = np.arange(len(stages))
    series = []
    measured = {name for row in rows for name in row}
    numbers = [number for number in result["numbers"] if number["name"] in measured]
    for colour, number in enumerate(numbers):
        name, paper = number["name"], number.get("paper")
        groups = [
            [row[name] for row in rows if row["stage"] == stage and row.get(name) is not None]
            for stage in stages
        ]
        label = NUMBER_LABELS.get(name, name)
        series.append(median_and_range(label, x, groups, "points", colour))
        if isinstance(paper, int | float):
            level = np.full(len(stages), float(paper))
            series.append(Series(f"{label}, paper", x, level, colour=colour, dashed=True))
    untrained = sum(stage.startswith("untrained") for stage in stages)
    names = tuple(stage.split(", ")[-1] for stage in stages)
    x_axis = Axis(f"stage (the last {untrained} are untrained)", names=names)
    y_axis = Axis("value, lower is better", log=True)
    plot = Plot("The paper's four numbers at every stage", x_axis, y_axis, tuple(series))
    return (plot, loss_curves(arrays), spectrum(arrays["decay"]))


def sizes_charts(arrays: Arrays, result: Json) -> Charts:
    """Show figure3: loss against size along both axes, and the training losses."""
    size, excess, predicted = arrays["sizes"], arrays["excess"], arrays["predicted"]
    together = size[:, 0] == size[:, 1]
    alone = (size[:, 0] == 2 * predicted[0]) & ~together
    parts = [("Neurons and gate outputs together", "neurons", together, 0)]
    if np.sum(alone) > 1:
        title = f"Gate outputs alone, {2 * int(predicted[0])} neurons"
        parts.append((title, "gate outputs", alone, 1))
    plots = []
    for title, label, which, column in parts:
        count, values, theory = size[which, column], excess[which], float(predicted[column])
        cloud = tuple(
            Series("students", count, losses, mark="points", colour=7, faint=True)
            for losses in values.T
        )
        finite = [losses[np.isfinite(losses)] for losses in values]
        medians = median_and_range("median, from lowest to highest", count, finite, "both", 0)
        lines = Line("theory", theory, True), Line("twice that", 2 * theory, True)
        axes = Axis(label), Axis("excess loss / scale of the task", log=True)
        plots.append(Plot(title, *axes, (*cloud, medians), lines))
    looks = [
        (f"{n} neurons" + ("" if n == m else f", {m} gate outputs"), place % 8, place >= 8)
        for place, (n, m) in enumerate(size)
    ]
    seeds = len(arrays["losses"]) // len(size)
    of_students = (look for look in looks for _ in range(seeds))
    return (*plots, training_plot(arrays["steps"], arrays["losses"], of_students))


def label_of(place: int, depth: int) -> str:
    return ARCHITECTURE_NAMES[place] + ("" if depth == 1 else f", {depth} layers")


def quartile_plot(arrays: Arrays, against: str, measure: str, title: str) -> Plot:
    series = []
    for place, colour in enumerate(COLOURS):
        for depth in (1, 2):
            which = (arrays["architecture"] == place) & (arrays["depth"] == depth)
            which &= np.isfinite(arrays[measure])
            counts = np.unique(arrays[against][which])
            if not counts.size:
                continue
            losses = [arrays[measure][which & (arrays[against] == count)] for count in counts]
            quartiles = [np.quantile(values, (0.25, 0.5, 0.75)) for values in losses]
            low, middle, high = np.transpose(quartiles)
            # A band needs neighbours; a single width shows its quartiles as a bar.
            mark = "both" if len(counts) > 1 else "points"
            label = label_of(place, depth)
            series.append(Series(label, counts, middle, low, high, mark, colour, depth == 2))
    lines: tuple[Line, ...] = ()
    if "gradient_step" in arrays and measure == "validation":
        lines = (Line("one gradient step", float(np.ravel(arrays["gradient_step"])[0])),)
    axes = Axis(against, log=True), Axis(f"{measure} loss", log=True)
    return Plot(title, *axes, tuple(series), lines)


def one_width_plot(arrays: Arrays, measure: str) -> Plot:
    """Plot architectures side by side, where all students have one width."""
    width = int(np.max(arrays["width"]))
    plot = quartile_plot(arrays, "width", measure, f"At width {width}")
    present = np.unique(arrays["architecture"][np.isfinite(arrays[measure])]).tolist()
    names = tuple(ARCHITECTURE_NAMES[place] for place in present)
    labels = {label_of(place, depth): x for x, place in enumerate(present) for depth in (1, 2)}
    series = tuple(
        replace(curve, x=np.full(len(curve.y), labels[curve.name])) for curve in plot.series
    )
    return replace(plot, x=Axis("architecture", names=names), series=series)


def comparison_charts(arrays: Arrays, result: Json) -> Charts:
    """Show figure4a or figure4b: one task, all architectures."""
    depths, widths = arrays["depth"], arrays["width"]
    widest = widths == [np.max(widths[depths == depth]) for depth in depths]
    students = zip(arrays["architecture"][widest].tolist(), depths[widest].tolist(), strict=True)
    looks = [(label_of(place, depth), COLOURS[place], depth == 2) for place, depth in students]
    curves, more = arrays["curves"][widest], " of the largest width"
    by_width = quartile_plot(arrays, "width", "validation", "Against width")
    return (
        by_width if np.ptp(widths) else one_width_plot(arrays, "validation"),
        quartile_plot(arrays, "parameters", "validation", "Against parameters"),
        training_plot(arrays["curve_steps"], curves, looks, more, faint=True),
    )


def both_tasks_charts(arrays: Arrays, result: Json) -> Charts:
    """Show figure6: both tasks, training and validation."""
    plots = []
    for task in ("teacher-student", "regression"):
        # A name of the other task stays as it is, and no plot asks for it.
        columns = {name.removeprefix(f"{task}/"): array for name, array in arrays.items()}
        for measure in ("training", "validation"):
            title = f"{task.capitalize()}, {measure}"
            plots.append(quartile_plot(columns, "parameters", measure, title))
    return tuple(plots)


def monomial(powers: np.ndarray, half: int) -> str:
    """Return x₁²y₁ in letters that every font has; the first `half` powers are those of x."""
    names = (f"x{i + 1}" if i < half else f"y{i - half + 1}" for i in range(len(powers)))
    parts = zip(names, powers, strict=True)
    return " ".join(f"{name}^{int(p)}" if p > 1 else name for name, p in parts if p) or "1"


def coefficients_charts(arrays: Arrays, result: Json) -> Charts:
    """Show table2: learned coefficients beside those of one gradient step."""
    step, learned, powers = arrays["gradient_step"], arrays["coefficients"], arrays["powers"]
    largest = np.maximum(np.abs(step), np.abs(np.median(learned, axis=0)))
    order = np.argsort(-largest, kind="stable")[:12]
    x = np.arange(len(order))
    names = tuple(monomial(powers[place], powers.shape[1] // 2) for place in order)
    at_query = arrays["at_query"][:, order].T
    series = (
        Series("one gradient step", x, step[order], mark="bars", colour=7),
        median_and_range("learned", x, learned[:, order].T, "points", 2),
        median_and_range("learned, query's y zero", x, at_query, "points", 1),
    )
    axes = Axis("monomial", names=names), Axis("coefficient")
    bars = Plot("The largest coefficients of the first output", *axes, series)
    return (bars, loss_curves(arrays), spectrum(arrays["decay"]))


def layers_charts(arrays: Arrays, result: Json) -> Charts:
    """Show table3: the error of every construction on short and long sequences."""
    rows = [row for row in result["rows"] if isinstance(row.get("error, T=32"), float)]
    names = tuple(f"{row['network']} / {row['implements']}" for row in rows)
    errors = {
        f"{length} tokens": [float(row[f"error, T={length}"]) for row in rows]
        for length in (32, 256)
    }
    title, x = "Largest error of the compiled network", "network / what it implements"
    return (error_plot(title, Axis(x, names=names), errors, 1e-9),)


def shares_charts(arrays: Arrays, result: Json) -> Charts:
    """Show identifiability: a colour is a width d, a marker a rank; gradient descent is dashed."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for row in result["rows"]:
        groups.setdefault((row["teacher"], row["by"]), []).append(row)
    series = []
    for (teacher, by), rows in groups.items():
        d, rank = (int(number) for number in re.findall(r"\d+", teacher))
        second_order = by == "second order"
        series.append(
            Series(
                teacher if second_order else f"{teacher}, {by}",
                np.array([row["beyond theory"] for row in rows], float),
                np.array([row["share"] for row in rows], float),
                mark="both",
                colour=(d - 1) % 8,
                shape=(rank - 1) % 9,
                dashed=not second_order,
            )
        )
    axes = Axis("neurons beyond the theory's fewest"), Axis("share of starts that find it")
    title = "Starts from random weights that find their teacher"
    return (Plot(title, *axes, tuple(series), (Line("theory", 0.0, True),)),)


def error_plot(title: str, x: Axis, errors: dict[str, list[float]], limit: float) -> Plot:
    """Plot errors, by the name of their series, as points at 0, 1, 2, …"""
    series = tuple(
        Series(name, np.arange(len(ys)), np.maximum(ys, LEAST_ERROR), mark="points", colour=colour)
        for colour, (name, ys) in enumerate(errors.items(), 1)
    )
    return Plot(title, x, ERROR, series, (Line("limit", limit),))


def lstm_charts(arrays: Arrays, result: Json) -> Charts:
    """Show lstm_weights: truncation falls with a power of ε, then rounding takes over."""
    colours, series = itertools.cycle((1, 5, 3, 2, 6, 4)), []
    for row, errors in zip(result["rows"], arrays["errors"], strict=True):
        name, dashed = f"{row['table']}, order {row['order']}", "two" in str(row["table"])
        y, colour = np.maximum(errors, LEAST_ERROR), next(colours)
        series.append(Series(name, arrays["epsilon"], y, mark="both", colour=colour, dashed=dashed))
    title = "Error against the scale of the small weights"
    return (Plot(title, Axis("ε", log=True), ERROR, tuple(series)),)


def reverse_charts(arrays: Arrays, result: Json) -> Charts:
    names = {"linear RNN, one head": "linear", "gated RNN, two layers": "gated"}
    errors = {label: arrays[name].tolist() for label, name in names.items()}
    title = "Error of attention against the RNN it implements"
    return (error_plot(title, Axis("network"), errors, 1e-12),)


def parabola_charts(arrays: Arrays, result: Json) -> Charts:
    """Show optimal_step: loss against the step, and where three searches end."""
    curve = Series("closed form", arrays["eta"], arrays["loss"])
    searched = arrays["searched"]
    bottom = np.full(len(searched), float(np.min(arrays["loss"])))
    ends = Series("ends of gradient searches", searched, bottom, mark="points", colour=2)
    steps = {str(row["by"]): float(row["η"]) for row in result["rows"]}
    lines = tuple(Line(by, step, vertical=True) for by, step in steps.items())
    plot = Plot("Loss of one gradient step", Axis("step η"), Axis("loss"), (curve, ends), lines[:2])
    return (plot,)
