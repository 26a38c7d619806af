"""Figures made of curves: losses, sizes, architectures, coefficients, errors."""

from typing import Any

import numpy as np

from underhood.report.charts import Axis, Figure, Line, Plot, Series

Arrays = dict[str, np.ndarray]

# In the order of `experiments/architectures.py`; two layers have the same colour, dashed.
ARCHITECTURES = (
    ("gated RNN", 0),
    ("gated RNN, dense", 7),
    ("LRU", 5),
    ("LRU In+Out", 1),
    ("LRU In+Out MLP", 4),
    ("LSTM", 2),
    ("GRU", 6),
)
POINTS = 150
UPDATES = Axis("updates")


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
        series.append(Series(name, x, middle, low, high, mark="both", colour=colour))
        if isinstance(paper, int | float):
            level = np.full(len(stages), float(paper))
            series.append(
                Series(f"{name}, paper", x, level, mark="line", colour=colour, dashed=True)
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
                faint=True,
            )
            for place, ((n, m), members) in enumerate(zip(size, per_size, strict=True))
            for curve in members
        ),
    )
    return Figure(
        (*plots, training),
        "Every point is a student. Left of the first vertical line theory allows no exact "
        "solution; the paper says that around the second one every student has found it.",
    )


def architectures(arrays: Arrays, against: str, measure: str, title: str) -> Plot:
    """Medians and quartiles of every architecture."""
    series = []
    for place, (name, colour) in enumerate(ARCHITECTURES):
        for depth in (1, 2):
            which = (arrays["architecture"] == place) & (arrays["depth"] == depth)
            counts = np.unique(arrays[against][which])
            groups = [arrays[measure][which & (arrays[against] == count)] for count in counts]
            groups = [one[np.isfinite(one)] for one in groups]
            kept = [place for place, one in enumerate(groups) if one.size]
            if not kept:
                continue
            low, middle, high = np.array(
                [np.quantile(groups[one], (0.25, 0.5, 0.75)) for one in kept]
            ).T
            label = name if depth == 1 else f"{name}, 2 layers"
            # A band needs neighbours; a single width shows its quartiles as a bar.
            mark = "both" if len(kept) > 1 else "points"
            series.append(Series(label, counts[kept], middle, low, high, mark, colour, depth == 2))
    lines: tuple[Line, ...] = ()
    if "gradient_step" in arrays and measure == "validation":
        step = float(np.ravel(arrays["gradient_step"])[0])
        lines = (Line("one gradient step", step),)
    return Plot(
        title, Axis(against, log=True), Axis(f"{measure} loss", log=True), tuple(series), lines
    )


def comparison(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """One task, all architectures."""
    kept = dict(arrays)
    steps, curves = thinned(arrays["curve_steps"], arrays["curves"])
    training = []
    for curve, place, depth, width in zip(
        curves, arrays["architecture"], arrays["depth"], arrays["width"], strict=True
    ):
        if width == np.max(arrays["width"][arrays["depth"] == depth]):
            name, colour = ARCHITECTURES[place]
            label = name if depth == 1 else f"{name}, 2 layers"
            training.append(
                Series(label, steps, curve, colour=colour, dashed=bool(depth == 2), faint=True)
            )
    return Figure(
        (
            architectures(kept, "width", "validation", "Against width"),
            architectures(kept, "parameters", "validation", "Against parameters"),
            Plot(
                "Loss of every student of the largest width",
                UPDATES,
                Axis("training loss", log=True),
                tuple(training),
            ),
        ),
        "Medians over seeds with quartiles as bands; two layers are dashed. Lower is better.",
    )


def comparisons(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """Both tasks, training and validation."""
    plots = []
    for task in ("teacher-student", "regression"):
        own = {
            name.removeprefix(f"{task}/"): array
            for name, array in arrays.items()
            if name.startswith(f"{task}/")
        }
        for measure in ("training", "validation"):
            title = f"{task.capitalize()}, {measure}"
            plots.append(architectures(own, "parameters", measure, title))
    return Figure(
        tuple(plots),
        "Medians over seeds with quartiles as bands, against the number of parameters; two "
        "layers are dashed.",
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


def layers_needed(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """The error of every construction on short and long sequences."""
    rows = [row for row in result["rows"] if isinstance(row.get("error, T=32"), float)]
    names = tuple(f"{row['network']} / {row['implements']}" for row in rows)
    x = np.arange(len(rows))
    series = tuple(
        Series(
            f"{length} tokens",
            x,
            np.array([max(float(row[f"error, T={length}"]), 1e-17) for row in rows]),
            mark="points",
            colour=colour,
        )
        for length, colour in ((32, 1), (256, 2))
    )
    plot = Plot(
        "Largest error of the compiled network",
        Axis("network / what it implements", names=names),
        Axis("error / largest output", log=True),
        series,
        (Line("limit", 1e-9),),
    )
    return Figure((plot,), "Every pair that can be built, compiled for random sources and run.")


def lstm_errors(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """Error against ε: truncation falls with its power, then rounding takes over."""
    rows = result["rows"]
    series = tuple(
        Series(
            f"{row['table']}, order {row['order']}",
            arrays["epsilon"],
            np.maximum(errors, 1e-17),
            mark="both",
            colour=(1, 5, 3, 2, 6, 4)[place % 6],
            dashed="two" in str(row["table"]),
        )
        for place, (row, errors) in enumerate(zip(rows, arrays["errors"], strict=True))
    )
    plot = Plot(
        "Error against the scale of the small weights",
        Axis("ε", log=True),
        Axis("error / largest output", log=True),
        series,
    )
    return Figure(
        (plot,),
        "On the right the nonlinearities' error falls as the second, fourth and sixth power of "
        "ε; on the left rounding grows. The compiler chooses the lowest point.",
    )


def reverse_errors(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """Errors of all networks."""
    series = tuple(
        Series(
            label,
            np.arange(len(arrays[name])),
            np.maximum(arrays[name], 1e-17),
            mark="points",
            colour=colour,
        )
        for label, name, colour in (
            ("linear RNN, one head", "linear", 1),
            ("gated RNN, two layers", "gated", 2),
        )
    )
    plot = Plot(
        "Error of attention against the RNN it implements",
        Axis("network"),
        Axis("error / largest output", log=True),
        series,
        (Line("limit", 1e-12),),
    )
    return Figure((plot,), "Every point is a random network, run on a fresh sequence in float64.")


def parabola(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """Loss against the step, and where three searches end."""
    found = {str(row["by"]): row["η"] for row in result["rows"]}
    curve = Series("closed form", arrays["eta"], arrays["loss"])
    searched = arrays["searched"]
    bottom = np.full(len(searched), float(np.min(arrays["loss"])))
    ends = Series("ends of gradient searches", searched, bottom, mark="points", colour=2)
    lines = tuple(Line(by, float(step), vertical=True) for by, step in found.items())
    plot = Plot("Loss of one gradient step", Axis("step η"), Axis("loss"), (curve, ends), lines[:2])
    return Figure((plot,), "Formula, Monte Carlo and gradient descent on η agree on the minimum.")
