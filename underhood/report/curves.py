"""Figures made of curves: losses, λ, sizes, coefficients."""

from collections.abc import Iterable, Sequence

import numpy as np

from underhood.common.files import Json
from underhood.report.charts import Axis, Figure, Line, Plot, Series

Arrays = dict[str, np.ndarray]
# Name, colour, and whether it is dashed.
Look = tuple[str, int, bool]

POINTS = 150
# What table1's numbers are called in figures.
NUMBER_LABELS = {
    "loss": "loss",
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
    """Plot training loss against updates, a line for every seed."""
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


def stages_figure(arrays: Arrays, result: Json) -> Figure:
    """Show table1: the four numbers stage by stage, the losses, and λ."""
    rows = result["rows"]
    stages = tuple(dict.fromkeys(str(row["stage"]) for row in rows))
    x = np.arange(len(stages))
    series = []
    for colour, number in enumerate(result["numbers"]):
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
    axes = Axis("stage", names=stages), Axis("value, lower is better", log=True)
    plot = Plot("The paper's four numbers at every stage", *axes, tuple(series))
    return Figure(
        (plot, loss_curves(arrays), spectrum(arrays["decay"])),
        "Medians over students, with the range from lowest to highest. Dashed: the paper's "
        "numbers. Below: training losses, and λ after training; a neuron with λ = 1 never "
        "forgets, one with λ = 0 holds the present token only.",
    )


def sizes_figure(arrays: Arrays, result: Json) -> Figure:
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
    return Figure(
        (*plots, training_plot(arrays["steps"], arrays["losses"], of_students)),
        "Every point is a student. To the left of the first vertical line, theory allows no exact "
        "solution; the paper says that around the second one every student has found it. Excesses "
        "below 1e-12 are noise of the evaluation and shown as 1e-12.",
    )


def monomial(powers: np.ndarray, half: int) -> str:
    """Return x₁²y₁ in letters that every font has; the first `half` powers are those of x."""
    parts = []
    for i, power in enumerate(powers):
        name = f"x{i + 1}" if i < half else f"y{i - half + 1}"
        if power:
            parts.append(name if power == 1 else f"{name}^{int(power)}")
    return " ".join(parts) or "1"


def coefficients_figure(arrays: Arrays, result: Json) -> Figure:
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
    return Figure(
        (bars, loss_curves(arrays), spectrum(arrays["decay"])),
        "The polynomial that students compute on one token [x; y]: medians, with the range over "
        "students, beside one optimal gradient step, whose only terms are the first three.",
    )
