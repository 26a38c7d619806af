"""Figures made of curves: losses, λ, sizes, coefficients."""

from collections.abc import Iterable, Sequence

import numpy as np

from underhood.common.files import Json
from underhood.report.charts import Axis, Figure, Line, Plot, Series

Arrays = dict[str, np.ndarray]

POINTS = 150
UPDATES, TRAINING_LOSS = Axis("updates"), Axis("training loss", log=True)


# What table1's numbers are called in figures.
NUMBER_LABELS = {
    "loss": "loss",
    "score_kv": "1 − R² of key-values",
    "score_q": "1 − R² of queries",
    "polynomial_distance": "distance of polynomials",
}


def thinned(steps: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most POINTS of each curve."""
    kept = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).astype(int))
    return steps[kept], losses[..., kept]


def median_and_range(
    groups: Iterable[Sequence[float] | np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return median, lowest and highest of each group; NaN for an empty group."""
    filled = [group if len(group) else [np.nan] for group in groups]
    medians, lowest, highest = (
        np.array([measure(group) for group in filled]) for measure in (np.median, np.min, np.max)
    )
    return medians, lowest, highest


def loss_curves(arrays: Arrays) -> Plot:
    """Plot training loss against updates, a line for every student."""
    steps, curves = thinned(arrays["steps"], arrays["losses"])
    series = tuple(
        Series(f"seed {seed}", steps, curve, colour=seed % 8, dashed=seed >= 8)
        for seed, curve in enumerate(curves)
    )
    return Plot("Loss of every student", UPDATES, TRAINING_LOSS, series)


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
        series.append(Series(label, x, *median_and_range(groups), mark="points", colour=colour))
        if isinstance(paper, int | float):
            level = np.full(len(stages), float(paper))
            series.append(Series(f"{label}, paper", x, level, colour=colour, dashed=True))
    stage_plot = Plot(
        "The paper's four numbers at every stage",
        Axis("stage", names=stages),
        Axis("value, lower is better", log=True),
        tuple(series),
    )
    return Figure(
        (stage_plot, loss_curves(arrays), spectrum(arrays["decay"])),
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
        medians = median_and_range(losses[np.isfinite(losses)] for losses in values)
        plots.append(
            Plot(
                title,
                Axis(label),
                Axis("excess loss / scale of the task", log=True),
                (*cloud, Series("median, from lowest to highest", count, *medians, mark="both")),
                (Line("theory", theory, True), Line("twice that", 2 * theory, True)),
            )
        )
    steps, curves = thinned(arrays["steps"], arrays["losses"])
    training = tuple(
        Series(
            f"{n} neurons" if n == m else f"{n} neurons, {m} gate outputs",
            steps,
            curve,
            colour=place % 8,
            dashed=place >= 8,
        )
        for place, (n, m) in enumerate(size)
        for curve in curves.reshape(len(size), -1, curves.shape[-1])[place]
    )
    return Figure(
        (*plots, Plot("Loss of every student", UPDATES, TRAINING_LOSS, training)),
        "Every point is a student. Left of the first vertical line theory allows no exact "
        "solution; the paper says that around the second one every student has found it. Excesses "
        "below 1e-12 are noise of the evaluation and shown as 1e-12.",
    )


def monomial(powers: np.ndarray, half: int) -> str:
    """Return x₁²y₁ in letters that every font has; the first `half` powers are those of x."""
    names = [f"x{i + 1}" for i in range(half)] + [f"y{i + 1}" for i in range(len(powers) - half)]
    parts = [
        name if power == 1 else f"{name}^{int(power)}"
        for name, power in zip(names, powers, strict=True)
        if power
    ]
    return " ".join(parts) or "1"


def coefficients_figure(arrays: Arrays, result: Json) -> Figure:
    """Show table2: learned coefficients beside those of one gradient step."""
    step, learned, powers = arrays["gradient_step"], arrays["coefficients"], arrays["powers"]
    largest = np.maximum(np.abs(step), np.abs(np.median(learned, axis=0)))
    order = np.argsort(-largest, kind="stable")[:12]
    x = np.arange(len(order))
    names = tuple(monomial(powers[place], powers.shape[1] // 2) for place in order)
    series = [Series("one gradient step", x, step[order], mark="bars", colour=7)]
    for label, colour, name in (
        ("learned", 2, "coefficients"),
        ("learned, query's y zero", 1, "at_query"),
    ):
        medians = median_and_range(arrays[name][:, order].T)
        series.append(Series(label, x, *medians, mark="points", colour=colour))
    bars = Plot(
        "The largest coefficients of the first output",
        Axis("monomial", names=names),
        Axis("coefficient"),
        tuple(series),
    )
    return Figure(
        (bars, loss_curves(arrays), spectrum(arrays["decay"])),
        "The polynomial that students compute on one token [x; y]: medians, with the range over "
        "students, beside one optimal gradient step, whose only terms are the first three.",
    )
