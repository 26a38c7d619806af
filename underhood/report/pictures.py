"""One picture per result, drawn from the arrays beside it: NAME/figure.png. Never trains.

figure2                 the weights after pruning as blocks, and the kernel of the gates that merge
figure3a, 3b, 3c        loss against size, all seeds, median, and the size that theory predicts
figure4a, 4b, figure6   loss against parameters for every architecture
table1, table2          loss against steps; learned coefficients beside those of gradient descent
recall_gated, _side     what neurons receive from every pair; the matrices M
"""

import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

# In the order of `experiments/architectures.py`, in colours that colour-blind readers tell apart.
ARCHITECTURES = (
    ("gated RNN", "#000000"),
    ("gated RNN, dense", "#666666"),
    ("LRU", "#56b4e9"),
    ("LRU In+Out", "#0072b2"),
    ("LRU In+Out MLP", "#cc79a7"),
    ("LSTM", "#d55e00"),
    ("GRU", "#e69f00"),
)
PREDICTED = "#d55e00"


def draw(folder: Path, result: dict[str, Any]) -> Path | None:
    """folder/NAME/figure.png, if the experiment has a picture."""
    name = result["experiment"]
    source = folder / name / "arrays.safetensors"
    if name not in PICTURES or not source.exists():
        return None
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = PICTURES[name](safetensors.numpy.load_file(source), result)
    figure.suptitle(f"{name} ({result['scale']} scale)", fontsize=10)
    page = io.BytesIO()
    figure.savefig(page, format="png", dpi=120, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    path = folder / name / "figure.png"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".figure.")
    with os.fdopen(handle, "wb") as file:
        file.write(page.getvalue())
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
    return path


def figure_of(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and its axes [rows, columns]."""
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)


def blocks(axis: Any, matrix: np.ndarray, title: str, split: int | None = None) -> None:
    """A matrix in blue (positive) and red, white at zero; `split` marks memory from queries."""
    largest = float(np.max(np.abs(matrix), initial=1e-12))
    axis.imshow(matrix, cmap="RdBu", vmin=-largest, vmax=largest, aspect="equal")
    if split is not None:
        axis.axvline(split - 0.5, color="black", linewidth=0.6)
    axis.set_title(title, fontsize=8)
    axis.set_xticks([])
    axis.set_yticks([])


def weights(arrays: dict[str, np.ndarray], result: dict[str, Any]) -> Any:
    """The blocks of the weights at each stage, and the kernel of the gates that merge."""
    stages = [one for one in ("pruned", "merged", "reduced") if f"{one}/nu" in arrays]
    figure, axes = figure_of(len(stages), 6, (11, 2.6 * len(stages)))
    for row, stage in zip(axes, stages, strict=True):
        decay = np.exp(-np.exp(arrays[f"{stage}/nu"]))
        memory = int(np.sum(decay > 0.5))
        for axis, name in zip(row, ("W_in_m", "W_in_x", "W_out_m", "W_out_x", "D"), strict=False):
            split = memory if name.startswith("W_out") else None
            blocks(axis, arrays[f"{stage}/{name}"], f"{name}, {stage}", split)
            if name.startswith("W_in"):
                axis.axhline(memory - 0.5, color="black", linewidth=0.6)
        row[5].axis("off")
        row[5].text(
            0, 0.5, f"{memory} neurons λ = 1\n{len(decay) - memory} neurons λ = 0", fontsize=8
        )
    kernel = arrays["kernels"]
    if kernel.ndim == 2 and kernel.size:
        axes[0, 5].axis("on")
        axes[0, 5].texts[0].remove()
        blocks(axes[0, 5], kernel, "kernel of gates that merge")
    return figure


def sizes(arrays: dict[str, np.ndarray], result: dict[str, Any]) -> Any:
    """Loss against size, along both axes."""
    size, excess = arrays["sizes"], arrays["excess"]
    together = size[:, 0] == size[:, 1]
    alone = size[:, 0] == 2 * arrays["predicted"][0]
    parts = [("neurons (as many gate outputs)", together, 0)]
    if np.sum(alone & ~together) > 1:
        neurons = 2 * int(arrays["predicted"][0])
        parts.append((f"gate outputs ({neurons} neurons)", alone & ~together, 1))
    figure, axes = figure_of(1, len(parts), (4.6 * len(parts), 3.2))
    for axis, (label, which, column) in zip(axes[0], parts, strict=True):
        count, losses = size[which, column], excess[which]
        axis.fill_between(count, np.nanmin(losses, 1), np.nanmax(losses, 1), alpha=0.15, color="k")
        axis.plot(count, losses, "o", color="0.6", markersize=3)
        axis.plot(count, np.nanmedian(losses, 1), "k-", label="median")
        predicted = int(arrays["predicted"][column])
        axis.axvline(predicted, color=PREDICTED, linestyle="--", label=f"theory: {predicted}")
        axis.set(yscale="log", xlabel=label, ylabel="excess loss / scale of the task")
        axis.legend(fontsize=7)
    return figure


def architectures(
    arrays: dict[str, np.ndarray], axis: Any, measure: str, line: float | None, title: str
) -> None:
    """Medians and quartiles of every architecture against its parameters."""
    for place, (name, colour) in enumerate(ARCHITECTURES):
        for depth, style in ((1, "o-"), (2, "s--")):
            which = (arrays["architecture"] == place) & (arrays["depth"] == depth)
            if not which.any():
                continue
            counts = np.unique(arrays["parameters"][which])
            groups = [arrays[measure][which & (arrays["parameters"] == count)] for count in counts]
            low, middle, high = np.array(
                [np.nanquantile(one, (0.25, 0.5, 0.75)) for one in groups]
            ).T
            label = name if depth == 1 else f"{name}, 2 layers"
            errors = (middle - low, high - middle)
            axis.errorbar(
                counts,
                middle,
                errors,
                fmt=style,
                color=colour,
                label=label,
                markersize=4,
                capsize=2,
                linewidth=1,
                markerfacecolor=colour if depth == 1 else "white",
            )
    if line is not None:
        axis.axhline(line, color="0.4", linestyle=":", label="one gradient step")
    axis.set(xscale="log", yscale="log", xlabel="parameters", ylabel=f"{measure} loss", title=title)


def comparison(arrays: dict[str, np.ndarray], result: dict[str, Any]) -> Any:
    """One task, all architectures."""
    figure, axes = figure_of(1, 1, (7, 4))
    line = float(np.ravel(arrays["gradient_step"])[0]) if "gradient_step" in arrays else None
    architectures(arrays, axes[0, 0], "validation", line, "")
    axes[0, 0].legend(fontsize=7, bbox_to_anchor=(1.01, 1), loc="upper left")
    return figure


def comparisons(arrays: dict[str, np.ndarray], result: dict[str, Any]) -> Any:
    """Both tasks, training and validation."""
    figure, axes = figure_of(2, 2, (11, 7))
    for row, task in zip(axes, ("teacher-student", "regression"), strict=True):
        own = {
            name.removeprefix(f"{task}/"): array
            for name, array in arrays.items()
            if name.startswith(f"{task}/")
        }
        for axis, measure in zip(row, ("training", "validation"), strict=True):
            line = own.get("gradient_step") if measure == "validation" else None
            architectures(
                own, axis, measure, None if line is None else float(np.ravel(line)[0]), task
            )
    axes[0, 1].legend(fontsize=7, bbox_to_anchor=(1.01, 1), loc="upper left")
    return figure


def curves(arrays: dict[str, np.ndarray], result: dict[str, Any]) -> Any:
    """Loss against steps, and where λ ended."""
    figure, axes = figure_of(1, 2, (9, 3.2))
    axes[0, 0].plot(arrays["steps"], arrays["losses"].T, linewidth=0.8)
    axes[0, 0].set(yscale="log", xlabel="updates", ylabel="training loss")
    axes[0, 1].hist(arrays["decay"].ravel(), bins=50, color="0.3")
    axes[0, 1].set(xlabel="λ, all neurons of all students", ylabel="neurons", yscale="log")
    return figure


def coefficients(arrays: dict[str, np.ndarray], result: dict[str, Any]) -> Any:
    """Learned coefficients against those of one gradient step."""
    figure, axes = figure_of(1, 1, (5, 4))
    step = arrays["gradient_step"]
    axis = axes[0, 0]
    for name, colour in (("coefficients", "0.7"), ("at_query", "black")):
        for learned in arrays[name]:
            axis.plot(step, learned, "o", color=colour, markersize=3)
    reach = 1.1 * float(np.max(np.abs(step)))
    axis.plot([0, reach], [0, reach], color=PREDICTED, linewidth=0.8)
    axis.set(xlabel="coefficient, one gradient step", ylabel="learned (black: query's y is zero)")
    return figure


def recalled(arrays: dict[str, np.ndarray], result: dict[str, Any]) -> Any:
    """What each neuron receives from every pair."""
    received = arrays["received"]
    columns = 4
    rows = -(-len(received) // columns)
    figure, axes = figure_of(rows, columns, (1.8 * columns, 1.9 * rows))
    decay = np.exp(-np.exp(arrays["pruned/nu"]))
    for axis in axes.ravel():
        axis.axis("off")
    for axis, matrix, value in zip(axes.ravel(), received, decay, strict=False):
        axis.axis("on")
        blocks(axis, matrix, f"λ = {value:.2f}, from (x, y)")
    return figure


def matrices(arrays: dict[str, np.ndarray], result: dict[str, Any]) -> Any:
    """M(x, y) for every pair, rows x and columns y."""
    M = arrays["M"][0]
    symbols = len(M)
    figure, axes = figure_of(symbols, symbols, (8, 8))
    for x in range(symbols):
        for y in range(symbols):
            blocks(axes[x, y], M[x, y], f"y = {y}" if x == 0 else "")
            if y == 0:
                axes[x, y].set_ylabel(f"x = {x}", fontsize=8)
    figure.supxlabel("each panel: rows y', columns query x'; blue positive, red negative; seed 0")
    return figure


PICTURES: dict[str, Callable[[dict[str, np.ndarray], dict[str, Any]], Any]] = {
    "table1": curves,
    "figure2": weights,
    "figure3a": sizes,
    "figure3b": sizes,
    "figure3c": sizes,
    "figure4a": comparison,
    "figure4b": comparison,
    "figure6": comparisons,
    "table2": coefficients,
    "recall_gated": recalled,
    "recall_side": matrices,
}
