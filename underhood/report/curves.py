"""Figures made of curves: losses, λ, sizes, coefficients."""

from typing import Any

import numpy as np

from underhood.report.charts import Axis, Figure, Line, Plot, Series

Arrays = dict[str, np.ndarray]

POINTS = 150
UPDATES = Axis("updates")


# What table1's numbers are called in pictures.
NUMBERS = {
    "loss": "loss",
    "score_kv": "1 − R² of key-values",
    "score_q": "1 − R² of queries",
    "polynomial_distance": "distance of polynomials",
}


def thinned(steps: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most POINTS of each curve."""
    kept = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).astype(int))
    return steps[kept], losses[..., kept]


def losses(arrays: Arrays, title: str, lines: tuple[Line, ...] = ()) -> Plot:
    """Training loss against updates, one line for every student."""
    steps, curves = thinned(arrays["steps"], arrays["losses"])
    series = tuple(
        Series(f"seed {seed}", steps, curve, colour=seed % 8, dashed=seed >= 8)
        for seed, curve in enumerate(curves)
    )
    return Plot(title, UPDATES, Axis("training loss", log=True), series, lines)


def spectrum(decay: np.ndarray) -> Plot:
    """λ of every neuron, sorted, one line for every student."""
    neurons = np.arange(1, decay.shape[1] + 1)
    series = tuple(
        Series(
            f"seed {seed}",
            neurons,
            np.sort(one)[::-1],
            mark="points",
            colour=seed % 8,
        )
        for seed, one in enumerate(decay)
    )
    return Plot("Where λ ended", Axis("neuron, sorted by λ"), Axis("λ"), series)


def table1(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """The four numbers stage by stage, the losses, and λ."""
    rows = result["rows"]
    stages = tuple(dict.fromkeys(str(row["stage"]) for row in rows))
    numbers = {one["name"]: one.get("paper") for one in result["numbers"]}
    series = []
    for colour, (name, paper) in enumerate(numbers.items()):
        groups = [
            [row[name] for row in rows if row["stage"] == stage and row.get(name) is not None]
            for stage in stages
        ]
        middle, low, high = (
            np.array([of(one) if one else np.nan for one in groups])
            for of in (np.median, np.min, np.max)
        )
        x = np.arange(len(stages))
        label = NUMBERS.get(name, name)
        series.append(Series(label, x, middle, low, high, mark="points", colour=colour))
        if isinstance(paper, int | float):
            level = np.full(len(stages), float(paper))
            series.append(
                Series(f"{label}, paper", x, level, mark="line", colour=colour, dashed=True)
            )
    stage_plot = Plot(
        "The paper's four numbers at every stage",
        Axis("stage", names=stages),
        Axis("value, lower is better", log=True),
        tuple(series),
    )
    return Figure(
        (stage_plot, losses(arrays, "Loss of every student"), spectrum(arrays["decay"])),
        "Medians over students, with the range from lowest to highest. Dashed: the paper's "
        "numbers. Below: training losses, and the λ that training settled on; a neuron with "
        "λ = 1 never forgets, one with λ = 0 holds the present token only.",
    )


def sizes(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """Loss against size along both axes, and the training behind it."""
    size, excess, predicted = arrays["sizes"], arrays["excess"], arrays["predicted"]
    together = size[:, 0] == size[:, 1]
    alone = (size[:, 0] == 2 * predicted[0]) & ~together
    parts = [("Neurons and gate outputs together", "neurons", together, 0)]
    if np.sum(alone) > 1:
        title = f"Gate outputs alone, {2 * int(predicted[0])} neurons"
        parts.append((title, "gate outputs", alone, 1))
    plots = []
    for title, label, which, column in parts:
        count, values = size[which, column], excess[which]
        cloud = tuple(
            Series("students", count, values[:, seed], mark="points", colour=7, faint=True)
            for seed in range(values.shape[1])
        )
        rows = [one[np.isfinite(one)] for one in values]
        middle, low, high = (
            np.array([of(one) if one.size else np.nan for one in rows])
            for of in (np.median, np.min, np.max)
        )
        median = Series("median, from lowest to highest", count, middle, low, high, mark="both")
        theory = Line("theory", float(predicted[column]), vertical=True)
        twice = Line("twice that", 2 * float(predicted[column]), vertical=True)
        plots.append(
            Plot(
                title,
                Axis(label),
                Axis("excess loss / scale of the task", log=True),
                (*cloud, median),
                (theory, twice),
            )
        )
    steps, curves = thinned(arrays["steps"], arrays["losses"])
    per_size = curves.reshape(len(size), -1, curves.shape[-1])
    training = Plot(
        "Loss of every student",
        UPDATES,
        Axis("training loss", log=True),
        tuple(
            Series(
                f"{n} neurons" if n == m else f"{n} neurons, {m} gate outputs",
                steps,
                curve,
                colour=place % 8,
                dashed=place >= 8,
            )
            for place, ((n, m), members) in enumerate(zip(size, per_size, strict=True))
            for curve in members
        ),
    )
    return Figure(
        (*plots, training),
        "Every point is a student. Left of the first vertical line theory allows no exact "
        "solution; the paper says that around the second one every student has found it. Excesses "
        "below 1e-12 are noise of the evaluation and shown as that.",
    )


def monomial(powers: np.ndarray, half: int) -> str:
    """x₁²y₁ in letters that every font has."""
    names = [f"x{i + 1}" for i in range(half)] + [f"y{i + 1}" for i in range(len(powers) - half)]
    parts = [
        name if power == 1 else f"{name}^{int(power)}"
        for name, power in zip(names, powers, strict=True)
        if power
    ]
    return " ".join(parts) or "1"


def coefficients(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """Learned coefficients beside those of one gradient step."""
    step, learned, powers = arrays["gradient_step"], arrays["coefficients"], arrays["powers"]
    largest = np.maximum(np.abs(step), np.abs(np.median(learned, axis=0)))
    order = np.argsort(-largest, kind="stable")[:12]
    x = np.arange(len(order))
    names = tuple(monomial(powers[one], powers.shape[1] // 2) for one in order)
    series = [Series("one gradient step", x, step[order], mark="bars", colour=7)]
    for label, colour, name in (
        ("learned", 2, "coefficients"),
        ("learned, query's y zero", 1, "at_query"),
    ):
        own = arrays[name][:, order]
        low, middle, high = np.min(own, 0), np.median(own, 0), np.max(own, 0)
        series.append(Series(label, x, middle, low, high, mark="points", colour=colour))
    bars = Plot(
        "The largest coefficients of the first output",
        Axis("monomial", names=names),
        Axis("coefficient"),
        tuple(series),
    )
    return Figure(
        (bars, losses(arrays, "Loss of every student"), spectrum(arrays["decay"])),
        "The polynomial that students compute on one token [x; y]: medians, with the range over "
        "students, beside one optimal gradient step, whose only terms are the first three.",
    )
