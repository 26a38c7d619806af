"""The pictures of README.md and idea.md: python docs/pictures.py [folder] draws them as SVG.

The README's picture shows a student whose weights are kept in results/reference/quick/figure2;
the others show networks that `uh.compile` builds. Background white and text dark, so that all can
be read on a dark page too; no date and a fixed salt, so that drawing again gives the same files.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Polygon, Rectangle

import underhood as uh
from underhood.common.decay import decay_from_nu
from underhood.common.tensors import read_tensors

FOLDER = Path(__file__).resolve().parent / "pictures"
# A student of figure2, and the keys that its teacher and its first weights were drawn from: those
# in experiments/protocols/students.py. The file shows seed 0.
STUDENT = FOLDER.parents[1] / "results/reference/quick/figure2/arrays.safetensors"
TEACHER_KEY, STUDENTS_KEY, SEED = 500, 501, 0

MEMORY, QUERY, GREY, INK = "#1f6fb4", "#c4571b", "#8a8f98", "#1b1f24"
STYLE = {
    "svg.hashsalt": "underhood",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def attention_of(d: int) -> uh.LinearAttention:
    """Return a random teacher, the same every time."""
    return uh.LinearAttention(*np.random.default_rng(3).normal(size=(3, d, d)) / np.sqrt(d))


def matrix(
    axes: Axes, values: np.ndarray, largest: float | None = None, numbers: bool = False
) -> None:
    """Draw a matrix: blue positive, red negative, white zero, thin lines between the entries."""
    largest = largest or float(np.max(np.abs(values)))
    rows, columns = values.shape
    filled = [(i, j) for (i, j), value in np.ndenumerate(values) if value]
    colours = plt.get_cmap("RdBu")([(values[place] / largest + 1) / 2 for place in filled])
    # Zeros are left out: half as many bytes.
    axes.add_collection(PatchCollection([Rectangle((j, i), 1, 1) for i, j in filled], fc=colours))
    axes.hlines(range(rows), 0, columns, color="#dfe2e6", lw=0.6)
    axes.vlines(range(columns), 0, rows, color="#dfe2e6", lw=0.6)
    axes.set(aspect="equal", xticks=[], yticks=[], xlim=(0, columns), ylim=(rows, 0))
    for spine in axes.spines.values():
        spine.set_visible(True)
    for (i, j), value in np.ndenumerate(values) if numbers else ():
        shade = "white" if abs(value) > 0.6 * largest else INK
        axes.text(
            j + 0.5, i + 0.5, f"{value:g}".replace("-", "−"), ha="center", va="center", color=shade
        )


def memory() -> Figure:
    """Draw three pairs that are written and one that is read; with unit keys columns fill."""
    values = np.array([[2, -1, 1], [-3, 1, 2], [1, 3, -2]])
    keys = np.eye(3)
    figure, rows = plt.subplots(2, 4, figsize=(8.6, 5.0))
    held = np.zeros((3, 3))
    for t, (axes, below) in enumerate(zip(rows[0, :3], rows[1, :3], strict=True)):
        written = np.outer(values[t], keys[t]) + 0.0
        held += written
        matrix(axes, written, 3, numbers=True)
        matrix(below, held, 3, numbers=True)
        now = str(t + 1).translate(SUBSCRIPTS)
        axes.set_title(f"token {t + 1} writes\nv{now} k{now}ᵀ")
        below.set_xticks(np.arange(3) + 0.5, ["k₁", "k₂", "k₃"])
        below.tick_params(length=0)
        below.set_xlabel(f"memory after {t + 1}")
    answer = held @ keys[1]
    question, read = rows[0, 3], rows[1, 3]
    matrix(question, keys[1][:, None], 3, numbers=True)
    question.set_title("token 4 asks\nq = k₂")
    matrix(read, answer[:, None], 3, numbers=True)
    read.set_xlabel("answer\nmemory · q = v₂")
    rows[1, 0].set_ylabel("rows: values")
    figure.tight_layout(h_pad=1.5)
    return figure


def circuit() -> Figure:
    """Draw a memory neuron, a query neuron, and the gate that multiplies them."""
    figure, axes = plt.subplots(figsize=(8.6, 3.9))
    axes.set(xlim=(0, 17.2), ylim=(0, 7.8), aspect="equal")
    axes.axis("off")

    def box(x: float, y: float, text: str, colour: str) -> None:
        axes.add_patch(
            FancyBboxPatch(
                (x - 1.15, y - 0.5),
                2.3,
                1,
                boxstyle="round,pad=0.08",
                fc="white",
                ec=colour,
                lw=1.8,
            )
        )
        axes.text(x, y, text, ha="center", va="center", color=colour)

    def arrow(start: tuple[float, float], end: tuple[float, float], bend: float = 0.0) -> None:
        style = {"arrowstyle": "-|>", "color": INK, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
        style["connectionstyle"] = f"arc3,rad={bend}"
        axes.annotate("", end, start, arrowprops=style)

    def times(x: float, y: float) -> None:
        axes.add_patch(Circle((x, y), 0.42, fc="white", ec=INK, lw=1.4))
        axes.text(x, y, "×", ha="center", va="center", fontsize=15)

    axes.text(0.4, 3.9, "x", fontsize=16, ha="center", va="center")
    for y, text, colour in (
        (6.4, "v = W_V x", MEMORY),
        (4.6, "k = W_K x", MEMORY),
        (2.6, "q = W_Q x", QUERY),
        (1.0, "1", QUERY),
    ):
        box(3, y, text, colour)
        if text != "1":
            arrow((0.75, 3.9), (1.7, y))
    times(5.6, 5.5)
    times(5.6, 1.8)
    for start, end in (
        ((4.25, 6.3), (5.25, 5.75)),
        ((4.25, 4.7), (5.25, 5.25)),
        ((4.25, 2.5), (5.25, 2.05)),
        ((4.25, 1.1), (5.25, 1.55)),
    ):
        arrow(start, end)
    for y, name, rule, colour in (
        (5.5, "memory", "λ = 1", MEMORY),
        (1.8, "query", "λ = 0", QUERY),
    ):
        axes.add_patch(Circle((8.6, y), 0.95, fc=colour, ec=colour, alpha=0.13))
        axes.add_patch(Circle((8.6, y), 0.95, fc="none", ec=colour, lw=1.8))
        axes.text(8.6, y + 0.22, name, ha="center", va="center", color=colour)
        axes.text(8.6, y - 0.32, rule, ha="center", va="center", color=colour)
        arrow((6.05, y), (7.6, y))
    arrow((8.2, 6.42), (9.0, 6.42), bend=-1.6)
    axes.text(8.6, 7.35, "keeps everything", ha="center", va="center", color=MEMORY)
    axes.text(8.6, 0.4, "keeps the current token", ha="center", va="center", color=QUERY)
    times(11.9, 3.65)
    arrow((9.5, 5.2), (11.6, 3.98))
    arrow((9.5, 2.1), (11.6, 3.32))
    axes.text(10.75, 5.05, "Σ v k", ha="left", va="center", color=MEMORY)
    axes.text(10.75, 2.2, "q", ha="left", va="center", color=QUERY)
    box(14.2, 3.65, "D adds up", INK)
    arrow((12.35, 3.65), (12.95, 3.65))
    arrow((15.45, 3.65), (16.3, 3.65))
    axes.text(16.65, 3.65, "y", fontsize=16, ha="center", va="center")
    for x, text in ((4.2, "input gate"), (8.6, "recurrence"), (12.9, "output gate")):
        axes.text(x, -0.45, text, ha="center", va="center", color="#5c636e")
    figure.tight_layout()
    return figure


def neurons() -> Figure:
    """Draw a memory neuron, a query neuron and their product in a compiled network."""
    attention = attention_of(2)
    layer = uh.compile(attention, form="full").layer
    xs = np.random.default_rng(5).normal(size=(16, 2))
    with jax.enable_x64(True):
        targets = np.asarray(attention(xs))
        state, states = layer.initial_state(), []
        for x in xs:
            state, _ = layer.step(state, x)
            states.append(np.asarray(state))
    states = np.array(states)
    times = np.arange(1, len(xs) + 1)
    v, k, q = (xs @ W.T for W in (attention.W_V, attention.W_K, attention.W_Q))
    figure, panels = plt.subplots(3, 1, figsize=(8.0, 7.6), sharex=True)
    panels[0].bar(times, v[:, 0] * k[:, 0], 0.5, color=GREY, label="written: v₁ k₁ of this token")
    panels[0].step(times, states[:, 0], where="mid", color=MEMORY, label="neuron, λ = 1: Σ v₁ k₁")
    panels[1].bar(times, q[:, 0], 0.5, color=GREY, label="q₁ of this token")
    panels[1].step(times, states[:, 4], where="mid", color=QUERY, label="neuron, λ = 0: q₁")
    parts = [states[:, 0] * states[:, 4], states[:, 1] * states[:, 5]]
    panels[2].step(times, parts[0], where="mid", color=MEMORY, lw=1, label="(Σ v₁ k₁) · q₁")
    panels[2].step(times, parts[1], where="mid", color=QUERY, lw=1, label="(Σ v₁ k₂) · q₂")
    panels[2].plot(times, sum(parts), color=INK, label="their sum, the network's y₁")
    panels[2].plot(times, targets[:, 0], "o", mfc="none", color=INK, label="attention's y₁")
    panels[2].set_xlabel("token")
    for axes in panels:
        axes.axhline(0, color="#d0d4d9", lw=0.8, zorder=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False)
    panels[0].set(xlim=(0.4, 16.6), xticks=times[::3])
    figure.tight_layout(h_pad=1.0)
    return figure


def blocks() -> Figure:
    """Draw every matrix of the compact network at d = 4, with the roles of rows and columns."""
    d = 4
    built = uh.compile(attention_of(d), form="compact")
    layer, held = built.layer, sum(role.kind == "memory" for role in built.roles)
    n, gates = built.neurons, built.gate_width
    figure = plt.figure(figsize=(9.0, 8.0))
    grid = figure.add_gridspec(2, 1, height_ratios=[n, gates + 1], hspace=0.22)
    upper = grid[0].subgridspec(1, 4, width_ratios=[d + 1, d + 1, 1.4, gates], wspace=0.28)
    lower = grid[1].subgridspec(1, 2, wspace=0.12)

    def titled(place: int, name: str, values: np.ndarray, where: object) -> Axes:
        axes = figure.add_subplot(where[place])  # type: ignore[index]
        matrix(axes, values)
        axes.set_title(name)
        axes.tick_params(length=0)
        return axes

    def roles_across(axes: Axes, down: bool, named: bool = True) -> None:
        line = axes.axhline if down else axes.axvline
        line(held, color=INK, lw=1.4)
        if not named:
            return
        middles = [held / 2, held + d / 2]
        names = [f"memory\n{held} neurons", f"query\n{d} neurons"]
        ticks = axes.set_yticks if down else axes.set_xticks
        ticks(middles, names)
        for text, colour in zip(
            axes.get_yticklabels() if down else axes.get_xticklabels(), (MEMORY, QUERY), strict=True
        ):
            text.set_color(colour)

    inputs = [*("x" + str(i + 1).translate(SUBSCRIPTS) for i in range(d)), "1"]
    for place, name in enumerate(("W_in_m", "W_in_x")):
        axes = titled(place, name, getattr(layer, name), upper)
        axes.set_xticks(np.arange(d + 1) + 0.5, inputs)
        roles_across(axes, down=True, named=place == 0)
    axes = titled(2, "λ", np.asarray(layer.decay)[:, None], upper)
    roles_across(axes, down=True, named=False)
    axes.text(0.5, held / 2, "1", color="white", ha="center", va="center", fontsize=14)
    axes.text(0.5, held + d / 2, "0", ha="center", va="center", fontsize=14)
    axes = titled(3, "D", layer.D, upper)
    axes.set_xlabel(f"{gates} gate outputs")
    axes.set_yticks(np.arange(d) + 0.5, ["y" + str(i + 1).translate(SUBSCRIPTS) for i in range(d)])
    for place, name in enumerate(("W_out_m", "W_out_x")):
        axes = titled(place, name, getattr(layer, name), lower)
        roles_across(axes, down=False)
        axes.set_ylabel(f"{gates} gate outputs" if place == 0 else "")
    return figure


def sizes() -> Figure:
    """Draw neurons and gate outputs of three forms against d, and of a teacher of rank 2."""
    dims = np.arange(1, 11)
    styles = {"full": ("s", GREY), "compact": ("^", QUERY), "minimal": ("o", MEMORY)}
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.9))
    for form, (marker, colour) in styles.items():
        built = [uh.compile(attention_of(d), form=form) for d in dims]
        for axes, name in zip(panels, ("neurons", "gate_width"), strict=True):
            counts = [getattr(construction, name) for construction in built]
            axes.plot(dims, counts, marker=marker, color=colour, label=form, mfc="white")
    low = [uh.compile(of_rank_two(d)) for d in dims[1:]]
    for axes, name in zip(panels, ("neurons", "gate_width"), strict=True):
        counts = [getattr(construction, name) for construction in low]
        axes.plot(dims[1:], counts, "--", color=MEMORY, label="minimal, M of rank 2")
        axes.set_xlabel("d, the dimension of a token")
        axes.set_xticks(dims[1::2])
        axes.grid(axis="y", color="#e4e7ea")
    panels[0].set_title("neurons")
    panels[1].set_title("gate outputs")
    panels[0].legend(frameon=False)
    panels[0].annotate("compact = minimal", (8, 44), (6.9, 25), color=INK, fontsize=10)
    panels[1].annotate("full = compact", (8, 64), (4.6, 72), color=INK, fontsize=10)
    figure.tight_layout()
    return figure


def of_rank_two(d: int) -> uh.LinearAttention:
    """Return an attention with W_V of full rank and M = W_KᵀW_Q of rank 2."""
    rng = np.random.default_rng(3)
    return uh.LinearAttention(rng.normal(size=(d, d)), *rng.normal(size=(2, 2, d)))


# The README's picture, in the units of its text: GitHub shows it about 850 wide, with 16 for words.
WIDE, HIGH, TOP, TALL, GAP, WORDS = 916, 492, 92, 290, 10, 18


@dataclass(frozen=True)
class Canvas:
    """A figure on which things are placed by x to the right and y downwards."""

    figure: Figure
    page: Axes

    def text(self, x: float, y: float, words: str, **style: str | float) -> None:
        """Write words, in the middle of (x, y) unless the style says otherwise."""
        given = {"ha": "center", "va": "center", "fontsize": WORDS} | style
        self.page.text(x, y, words, **given)

    def cells(self, x: float, y: float, wide: float, high: float, values: np.ndarray) -> None:
        """Draw a matrix in a box: blue positive, red negative, white zero."""
        axes = self.figure.add_axes((x / WIDE, 1 - (y + high) / HIGH, wide / WIDE, high / HIGH))
        axes.imshow(values, cmap="RdBu", vmin=-0.7, vmax=0.7, aspect="auto")
        axes.set(xticks=[], yticks=[])
        rows, columns = values.shape
        if rows < 20:
            axes.hlines(np.arange(rows) - 0.5, -0.5, columns - 0.5, color="#dfe2e6", lw=0.6)
            axes.vlines(np.arange(columns) - 0.5, -0.5, rows - 0.5, color="#dfe2e6", lw=0.6)
        for spine in axes.spines.values():
            spine.set(visible=True, color=GREY)

    def network(self, left: float, cell: float, model: uh.GatedRNN, colours: list[str]) -> float:
        """Draw input weights and λ, a row per neuron; return the right end."""
        wide, gap, below = 5 * cell, GAP * (2 if model.neurons < 20 else 1), TOP + TALL + 16
        for W, x in ((model.W_in_m, left), (model.W_in_x, left + wide + gap)):
            self.cells(x, TOP, wide, TALL, np.asarray(W))
            if model.neurons < 20:
                self.text(x + 2 * cell, below, "x")
                self.text(x + 4.5 * cell, below, "1")
        self.text(left + wide + gap / 2, below, "×" if model.neurons < 20 else "weights")
        zero = left + 2 * wide + gap + 18
        right = zero + 28
        self.page.vlines((zero, right), TOP, TOP + TALL, color="#e4e7ea", lw=1)
        down = TOP + (np.arange(model.neurons) + 0.5) * TALL / model.neurons
        size = 45 if model.neurons < 20 else 9
        decay = np.asarray(model.decay)
        self.page.scatter(zero + 28 * decay, down, s=size, c=colours, zorder=3)
        for x, y, words in ((zero + 14, TOP - 14, "λ"), (zero, below, "0"), (right, below, "1")):
            self.text(x, y, words)
        return right


def stage(arrays: dict[str, np.ndarray], name: str) -> uh.GatedRNN:
    """Return the student at one stage: trained, pruned or reduced."""
    weights = {path.split("/")[1]: W for path, W in arrays.items() if path.startswith(f"{name}/")}
    nu = weights.pop("nu").astype(float)
    return uh.GatedRNN(decay=np.asarray(decay_from_nu(nu)), **weights)


def arranged(model: uh.GatedRNN, order: np.ndarray, exchange: np.ndarray) -> uh.GatedRNN:
    """Return the model with neurons in this order, the input gate's factors exchanged in some."""
    m, x = np.asarray(model.W_in_m), np.asarray(model.W_in_x)
    swap = exchange[:, None]
    return uh.GatedRNN(
        W_in_m=np.where(swap, x, m)[order],
        W_in_x=np.where(swap, m, x)[order],
        decay=np.asarray(model.decay, float)[order],
        W_out_m=np.asarray(model.W_out_m)[:, order],
        W_out_x=np.asarray(model.W_out_x)[:, order],
        D=model.D,
    )


def W_V_and_M(attention: uh.LinearAttention) -> tuple[np.ndarray, np.ndarray]:
    W_V, W_K, W_Q = (np.asarray(W, float) for W in (attention.W_V, attention.W_K, attention.W_Q))
    return W_V, W_K.T @ W_Q


def percent(share: float) -> str:
    """Write 0.97 as 97 %, 0.0001 as 0.01 %, and smaller shares with a power of ten."""
    if share > 1e-6:
        return f"{100 * share:.1g} %" if share < 0.01 else f"{100 * share:.0f} %"
    digit, power = f"{share:.0e}".split("e")
    return f"{digit}·10" + str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def story() -> Figure:
    """Draw one student: random, trained, pruned, and its attention beside the teacher's."""
    arrays = read_tensors(STUDENT).arrays
    trained, pruned, reduced = (stage(arrays, name) for name in ("trained", "pruned", "reduced"))
    task = uh.tasks.TeacherStudent.random(4, key=jax.random.key(TEACHER_KEY))
    # As training/members.py does it: a key for the first weights, and one for the sequences.
    first, _ = jax.random.split(jax.random.fold_in(jax.random.key(STUDENTS_KEY), SEED))
    random = uh.GatedRNN.init(d_in=4, hidden=100, gated=100, d_out=4, key=first)
    # The neurons that pruning kept come first, in its order; then the others.
    exchange = np.abs(trained.W_in_m[:, -1]) > np.abs(trained.W_in_x[:, -1])
    same = arranged(trained, np.arange(trained.neurons), exchange)
    kept = [int(np.argmin(np.sum((same.W_in_m - row) ** 2, axis=1))) for row in pruned.W_in_m]
    order = np.array([*kept, *(i for i in range(trained.neurons) if i not in kept)])

    figure = plt.figure(figsize=(WIDE / 72, HIGH / 72))
    page = figure.add_axes((0, 0, 1, 1))
    page.set(xlim=(0, WIDE), ylim=(HIGH, 0))
    page.axis("off")
    canvas, lefts = Canvas(figure, page), (14, 208, 414, 716)
    memory = int(np.sum(np.asarray(pruned.decay) > 0.5))
    roles = [MEMORY] * memory + [QUERY] * (pruned.neurons - memory)
    died = trained.neurons - pruned.neurons
    headings = (
        ("1  Random", f"{random.neurons} neurons", random, "residual"),
        ("2  Trained", f"{died} have died", trained, "residual"),
        ("3  Pruned", f"{pruned.neurons} neurons are left", pruned, "residual"),
        ("4  Decompiled", "the attention inside", reduced, "residual, polished"),
    )
    for left, (title, words, model, meaning) in zip(lefts, headings, strict=True):
        canvas.text(left, 22, title, fontsize=20, weight="bold", ha="left")
        canvas.text(left, 50, words, ha="left")
        opened = uh.decompile(model)
        canvas.text(left, 442, percent(opened.residual), fontsize=22, weight="bold", ha="left")
        canvas.text(left, 471, meaning, ha="left")
    everyone = [GREY] * random.neurons
    fates = roles + everyone[pruned.neurons :]
    right = canvas.network(lefts[0], 9.5, arranged(random, order, exchange), everyone)
    arrow = {"arrowstyle": "-|>", "color": GREY, "lw": 2, "mutation_scale": 18}
    page.annotate("", (lefts[1] - 6, 237), (right + 10, 237), arrowprops=arrow)
    right = canvas.network(lefts[1], 9.5, arranged(trained, order, exchange), fates)
    shown = TOP + TALL * pruned.neurons / trained.neurons
    zoom = [(right + 8, TOP), (lefts[2] - 5, TOP), (lefts[2] - 5, TOP + TALL), (right + 8, shown)]
    page.add_patch(Polygon(zoom, fc="#e9ecf0", ec="none"))
    right = canvas.network(lefts[2], 13.5, pruned, roles)
    row = TALL / pruned.neurons
    for start, stop, name, rule, colour in (
        (0, memory, "memory", "λ = 1", MEMORY),
        (memory, pruned.neurons, "query", "λ = 0", QUERY),
    ):
        words = f"{stop - start} for\n{name}\n{rule}"
        down = TOP + row * (start + stop) / 2
        canvas.text(right + 14, down, words, color=colour, ha="left")

    # The last one opened is the reduced student.
    (W_V, M), (teachers_W_V, teachers_M) = map(W_V_and_M, (opened.attention, task.attention))
    # W_V and M are determined up to one scale.
    scale = np.sum(W_V * teachers_W_V) / np.sum(W_V * W_V)
    side = 90
    left, second = lefts[3], lefts[3] + side + GAP
    for x, words in ((left, "found"), (second, "teacher")):
        canvas.text(x + side / 2, TOP - 14, words)
    for y, mine, teachers, name in (
        (TOP, scale * W_V, teachers_W_V, "$W_V$"),
        (TOP + TALL - side, M / scale, teachers_M, r"$M = W_K^\top W_Q$"),
    ):
        canvas.cells(left, y, side, side, mine)
        canvas.cells(second, y, side, side, teachers)
        canvas.text(left + side + GAP / 2, y + side + 16, name)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "story": story,
    "memory": memory,
    "circuit": circuit,
    "neurons": neurons,
    "blocks": blocks,
    "sizes": sizes,
}


def main(folder: Path = FOLDER) -> list[Path]:
    """Draw all pictures; return their paths."""
    folder.mkdir(exist_ok=True)
    drawn = []
    with plt.rc_context(STYLE):
        for name, draw in PICTURES.items():
            figure = draw()
            path = folder / f"{name}.svg"
            figure.savefig(path, dpi=288, metadata={"Date": None}, bbox_inches="tight")
            plt.close(figure)
            drawn.append(path)
    return drawn


if __name__ == "__main__":
    for made in main(*map(Path, sys.argv[1:2])):
        print(f"{made.name}: {made.stat().st_size / 1000:.0f} KB")
