"""Layers side by side: recall against state and rate, closeness to attention, and the atlas."""

from dataclasses import replace

import numpy as np

from underhood.common.files import Json
from underhood.report.charts import PALETTE, Axis, Charts, Grid, Line, Plot, Series, Sign
from underhood.report.curves import Arrays

# A number of the state takes four bytes.
NUMBER_BYTES = 4
CURVE_TITLES = {
    "dense_linear": "dense codes, formula",
    "hash_linear": "hash codes, formula",
    "hash_delta": "hash codes, delta rule, formula",
}
# With the shift counted as Zoology counts its convolution; in the colours of the codes.
COUNTED_TITLES = {
    "dense_counted": ("dense codes, convolution counted", 1),
    "hash_counted": ("hash codes, convolution counted", 2),
}
RUN_TITLES = {0.0: "dense codes, run", 1.0: "hash codes, run"}
# The state of the second panel; runs this near to it, as a share, are shown there.
SHOWN_STATE, SAME_STATE = 2240, 0.01
# Colours of random, compiled and noisy starts.
START_COLOURS = (7, 1, 2)
# The sign says the same as the colour; colours are places in the PALETTE.
ANSWER_SIGNS = {"exact": "=", "limit": "→", "impossible": "✕", "open": "?"}
# Columns of the rows that only the cells show; the page would grow by a tenth.
IN_CELLS = (
    *("source", "target", "source title", "target title", "answer", "order", "error", "gap"),
    *("tokens", "neurons", "parameters", "theorem", "how"),
    *("value of the source", "value of the layer"),
)
ANSWER_COLOURS = {"exact": 3, "limit": 5, "impossible": 2, "open": 7}


def frontier_charts(arrays: Arrays, result: Json) -> Charts:
    """Show recall_memory: mean accuracy against bytes, and accuracy against pairs."""
    curves = [
        in_bytes(Series(title, arrays["state"], arrays[name], colour=place + 1))
        for place, (name, title) in enumerate(CURVE_TITLES.items())
    ]
    curves += [
        in_bytes(Series(title, arrays["state"], arrays[name], colour=colour, dashed=True))
        for name, (title, colour) in COUNTED_TITLES.items()
        # Older results do not have them.
        if name in arrays
    ]
    floor = Series(
        "no recurrence is above", arrays["floor_bytes"], arrays["floor"], colour=7, dashed=True
    )
    axes = Axis("bytes of state", log=True), Axis("accuracy, mean of the test sets")
    series = (*trained_series(result), *curves, *run_series(arrays), floor)
    return (Plot("Recall against state", *axes, series), pairs_plot(arrays))


def in_bytes(series: Series) -> Series:
    """Return accuracies against numbers of state as accuracies against bytes.

    Each point says its name, its accuracy and its state.
    """
    texts = tuple(
        f"{series.name}: accuracy {recalled:.3f} with {number:,.0f} numbers of state, "
        f"{NUMBER_BYTES * number:,.0f} bytes"
        for number, recalled in zip(series.x, series.y, strict=True)
    )
    return replace(series, x=NUMBER_BYTES * series.x, texts=texts)


def trained_series(result: Json) -> list[Series]:
    """Return the trained points, a series per layer, each with a colour and a shape of its own."""
    layers: dict[str, list[Json]] = {}
    for row in result["rows"]:
        if row["run"] == "trained":
            layers.setdefault(row["layer"], []).append(row)
    return [
        in_bytes(
            Series(
                f"trained: {layer}",
                np.array([row["state"] for row in rows], float),
                np.array([row["accuracy"] for row in rows], float),
                mark="points",
                colour=place % len(PALETTE),
                shape=place % len(PALETTE),
                faint=True,
            )
        )
        for place, (layer, rows) in enumerate(layers.items())
    ]


def run_series(arrays: Arrays) -> list[Series]:
    """Return the mean accuracies of the networks that were run, a series per kind of codes."""
    series = []
    for kind, title in RUN_TITLES.items():
        which = arrays["run_hash"] == kind
        states = np.unique(arrays["run_state"][which])
        means = [
            float(np.mean(arrays["run_accuracy"][which & (arrays["run_state"] == state)]))
            for state in states
        ]
        if len(states):
            points = Series(
                title, states, np.array(means), mark="points", colour=1 + int(kind), shape=0
            )
            series.append(in_bytes(points))
    return series


def pairs_plot(arrays: Arrays) -> Plot:
    """Plot accuracy against the number of pairs at one state: by formula, and of networks run."""
    curves = [
        Series(title, arrays["panel_pairs"], arrays[f"panel_{name}"], colour=place + 1)
        for place, (name, title) in enumerate(CURVE_TITLES.items())
    ]
    near = np.abs(arrays["run_state"] - SHOWN_STATE) <= SAME_STATE * SHOWN_STATE
    for kind, title in RUN_TITLES.items():
        which = near & (arrays["run_hash"] == kind)
        if np.any(which):
            accuracy, error = arrays["run_accuracy"][which], 2 * arrays["run_error"][which]
            band = accuracy, accuracy - error, accuracy + error
            pairs = arrays["run_pairs"][which]
            curves.append(Series(title, pairs, *band, "points", 1 + int(kind), shape=0))
    title = f"Recall against pairs, {SHOWN_STATE:,} numbers of state"
    return Plot(title, Axis("pairs", log=True), Axis("accuracy"), tuple(curves))


def rates_charts(arrays: Arrays, result: Json) -> Charts:
    """Show recall_training: accuracy against the rate for each layer, and how many rates gain."""
    rows = result["rows"]
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    # The largest memory that every layer has.
    memory = max(
        set.intersection(*({r["memory"] for r in rows if r["layer"] == x} for x in layers))
    )
    starts = list(dict.fromkeys(row["start"] for row in rows))
    plots = []
    for layer in layers:
        places = [p for p, r in enumerate(rows) if (r["layer"], r["memory"]) == (layer, memory)]
        shapes = {e: 3 + i for i, e in enumerate(sorted({arrays["epsilon"][p] for p in places}))}
        series = tuple(
            rates_series(
                rows[place],
                arrays["rates"],
                arrays["after"][place],
                colour=START_COLOURS[starts.index(rows[place]["start"])],
                shape=shapes[arrays["epsilon"][place]] if rows[place]["epsilon"] else 0,
            )
            for place in places
        )
        reference = Line("formula, without training", float(arrays["formula"][places[0]]))
        axes = Axis("learning rate", log=True), Axis("accuracy, mean of the test sets")
        plots.append(Plot(f"{layer}, memory of {memory}", *axes, series, (reference,)))
    return (*plots, windows_plot(rows, layers, starts))


def rates_series(
    row: Json, rates: np.ndarray, after: np.ndarray, *, colour: int, shape: int
) -> Series:
    """Return the accuracies of a start after training; the band is the range over seeds."""
    name = row["start"] + (f", ε = {row['epsilon']:g}" if row["epsilon"] else "")
    band = np.median(after, axis=1), after.min(axis=1), after.max(axis=1)
    return Series(name, rates, *band, "both", colour, row["start"] == "noisy", shape=shape)


def windows_plot(rows: list[Json], layers: list[str], starts: list[str]) -> Plot:
    """Plot at how many rates each start gains, over all states; of several ε the best one's."""
    series = []
    for place, start in enumerate(starts):
        counts = []
        for layer in layers:
            best: dict[int, Json] = {}
            for row in rows:
                if (row["layer"], row["start"]) == (layer, start):
                    best[row["memory"]] = max(
                        best.get(row["memory"], row), row, key=lambda other: other["after"]
                    )
            words = [row["rates that gain"] for row in best.values()]
            counts.append(float(sum(len(said.split()) for said in words if said != "none")))
        # Beside each other, so that equal numbers are seen.
        across = np.arange(len(layers)) + 0.12 * (place - 1)
        texts = tuple(
            f"{start}: {n:g} rates, {layer}" for n, layer in zip(counts, layers, strict=True)
        )
        y, colour = np.array(counts), START_COLOURS[place]
        series.append(
            Series(start, across, y, mark="points", colour=colour, shape=place, texts=texts)
        )
    x = Axis("layer", names=tuple(layers))
    return Plot("Rates that gain", x, Axis("rates, all states"), tuple(series))


def atlas_charts(arrays: Arrays, result: Json) -> Charts:
    """Show the atlas: sources down, targets across."""
    rows = result["rows"]
    sources = dict.fromkeys(row["source title"] for row in rows)
    targets = dict.fromkeys(row["target title"] for row in rows)
    places = {(row["source title"], row["target title"]): row for row in rows}
    cells = tuple(cell_of(places[source, target]) for source in sources for target in targets)
    legend = tuple(
        (ANSWER_SIGNS[answer], ANSWER_COLOURS[answer], answer) for answer in ANSWER_SIGNS
    )
    title = "Sources (down) in recurrent layers (across)"
    return (Grid(title, tuple(sources), tuple(targets), cells, legend, IN_CELLS),)


def cell_of(row: Json) -> Sign:
    """Return the cell of a pair, with what a click shows; the page names the pair."""
    answer = row["answer"]
    facts = [row["how"]]
    if row["order"] is not None:
        facts.append(f"Order {row['order']}.")
    if row["neurons"] is not None:
        facts.append(f"{row['neurons']} neurons.")
        facts.append(f"{row['parameters']} parameters.")
    if row["error"] is not None:
        facts.append(f"Error {row['error']:.0e} on {row['tokens']} fresh tokens.")
    # The words of an open answer name them already.
    if row["theorem"] is not None and answer != "open":
        kind = "No weights, and no limit" if answer == "impossible" else "No exact weights"
        plural = "s" * (len(row["theorem"]) > 1)
        facts.append(f"{kind}: theorem{plural} {' and '.join(row['theorem'])}.")
    if row["gap"] is not None:
        facts.append(
            f"Witness: {row['value of the source']:.2g} in the source, "
            f"{row['value of the layer']:.0e} in the layer; gap {row['gap']:.2g}."
        )
    return Sign(ANSWER_SIGNS[answer], ANSWER_COLOURS[answer], tuple(facts))


def closeness_charts(arrays: Arrays, result: Json) -> Charts:
    """Show architectures2026: loss on regression against the attention score."""
    rows = [row for row in result["rows"] if row["task"] == "regression"]
    names = list(dict.fromkeys(row["architecture"] for row in rows))
    places = range(len(names))
    scores = [float(np.median(arrays["score"][arrays["architecture"] == p])) for p in places]
    losses = [arrays["validation"][arrays["architecture"] == p] for p in places]
    today = [bool(np.max(arrays["of_today"][arrays["architecture"] == p])) for p in places]
    low, middle, high = np.transpose([np.quantile(each, (0.25, 0.5, 0.75)) for each in losses])
    order = np.argsort(scores)
    by_score, by_name = [], []
    for title, wanted, colour in (("layers of today", True, 1), ("the paper's", False, 2)):
        chosen = [place for place in order if today[place] == wanted]
        if not chosen:
            continue
        band = middle[chosen], low[chosen], high[chosen]
        by_score.append(Series(title, np.array(scores)[chosen], *band, "points", colour))
        ranks = np.flatnonzero([today[place] == wanted for place in order]).astype(float)
        by_name.append(Series(title, ranks, *band, "points", colour))
    line = (Line("one gradient step", float(np.ravel(arrays["gradient_step"])[0])),)
    loss = Axis("validation loss", log=True)
    named = Axis("architecture, by score", names=tuple(names[place] for place in order))
    return (
        Plot("Closeness to attention", Axis("attention score"), loss, tuple(by_score), line),
        Plot("By name", named, loss, tuple(by_name), line),
    )
