"""The picture of a discovery: the loss, the neurons' λ, and the attention beside the teacher's.

Plain arrays come in; nothing here trains or judges.
"""

import html
import io
import itertools
import string
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from underhood.common.errors import BadInput
from underhood.common.files import Json, write_atomically
from underhood.common.numbers import quantity
from underhood.report.blocks import WIDTH
from underhood.report.charts import PALETTE
from underhood.report.drawing import FORMATS, METADATA, STYLE_SHEET, label_powers
from underhood.report.page import asset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as PrintedPage, SubFigure

GREY, BLUE, ORANGE = PALETTE[7], PALETTE[1], PALETTE[2]
# The entries of a matrix are written into it up to this many columns.
NUMBERED = 5
# Characters of the verdict in a line.
VERDICT_COLUMNS = 150
# The ending of one page with the picture and the words.
PAGE = "html"


@dataclass(frozen=True)
class StartCurve:
    """Losses after the steps of one start."""

    steps: np.ndarray
    losses: np.ndarray


@dataclass(frozen=True)
class Learning:
    """How a student was trained.

    summary      what came out, in words
    winner       the start that the student comes from; `others` are drawn thin
    polished     the loss after polishing; None: the student was not polished
    loss         the student's, on fresh sequences
    goal         the largest loss that counts as success
    before       λ of the student's neurons while its weights were random
    interrupted  whether Ctrl-C ended the training
    """

    summary: str
    winner: StartCurve
    others: tuple[StartCurve, ...]
    polished: float | None
    loss: float
    goal: float
    before: np.ndarray
    interrupted: bool = False

    @property
    def success(self) -> bool:
        return self.loss <= self.goal


@dataclass(frozen=True)
class Discovery:
    """What the picture shows.

    after       λ of the neurons of the trained and reduced student
    teacher     W_V and M of the teacher's heads, [heads, rows, columns] each
    student     those of the attention in the student; None: it has another number of heads
    difference  the largest difference of an entry between them
    became      whether the loss reached zero and the student is attention
    reduced     whether `after` is of the reduced student; after Ctrl-C it is of the whole one
    """

    title: str
    verdict: str
    learning: Learning
    after: np.ndarray
    teacher: tuple[np.ndarray, np.ndarray]
    student: tuple[np.ndarray, np.ndarray] | None
    difference: float | None
    became: bool
    reduced: bool = True


def picture_format(path: Path) -> str:
    """Return the format that a file's ending names; refuse others."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in (*FORMATS, PAGE):
        endings = ", ".join(f".{name}" for name in (*FORMATS, PAGE))
        raise BadInput(f"The output {path} must end in one of {endings}.")
    return kind


def draw_discovery(path: Path, discovery: Discovery, words: str) -> None:
    """Draw the picture into a file, whole or not at all; into a page together with the words."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ending, file = picture_format(path), io.BytesIO()
    kind = "svg" if ending == PAGE else ending
    with plt.rc_context(fname=STYLE_SHEET):
        try:
            page = lay_out_discovery(discovery)
            page.savefig(file, format=kind, dpi=220, metadata=METADATA[kind])
        finally:
            plt.close("all")
    drawn = file.getvalue()
    write_atomically(path, page_of(drawn, discovery.title, words) if ending == PAGE else drawn)


def page_of(picture: bytes, title: str, words: str) -> bytes:
    """Return a page that needs no other file: the picture as SVG, and the words."""
    svg = picture.decode()
    page = string.Template(asset("discovery.html")).substitute(
        title=html.escape(title), picture=svg[svg.index("<svg") :], words=marked(words.strip())
    )
    return page.encode()


def marked(words: str) -> str:
    """Return the words for a page; rows of matrices, which are indented, scroll in one block."""
    blocks = itertools.groupby(words.split("\n"), lambda line: line.startswith("  "))
    return "\n".join(
        f'<span class="rows">{text}</span>' if rows else text
        for rows, lines in blocks
        for text in [html.escape("\n".join(lines))]
    )


def lay_out_discovery(discovery: Discovery) -> "PrintedPage":
    import matplotlib.pyplot as plt

    page = plt.figure(figsize=(WIDTH + 0.6, 2.95), layout="constrained")
    page.suptitle(discovery.title, fontsize=9, fontweight="bold")
    verdict = textwrap.fill(discovery.verdict, VERDICT_COLUMNS)
    page.supxlabel(verdict, fontsize=6.5, color="#444444")
    bands = page.subfigures(1, 3, squeeze=False, width_ratios=(1.1, 0.85, 1.15), wspace=0.03)
    left, middle, right = bands[0]
    draw_losses(left.subplots(), discovery.learning)
    draw_decays(middle.subplots(), discovery)
    draw_attention(right, discovery)
    return page


def draw_losses(axis: "Axes", learning: Learning) -> None:
    for place, curve in enumerate(learning.others):
        label = None if place else "other starts"
        axis.plot(curve.steps, positive(curve.losses), color=GREY, alpha=0.6, lw=0.7, label=label)
    winner = learning.winner
    axis.plot(winner.steps, positive(winner.losses), color=BLUE, lw=2, label="this student")
    axis.axhline(learning.goal, color=ORANGE, ls="--", lw=0.8, label="success")
    if learning.polished is not None:
        end, loss = winner.steps[-1:], positive(np.array([learning.polished]))
        axis.plot(
            end, loss, "*", color=BLUE, ms=7, label="after polishing (second-order)", clip_on=False
        )
    axis.set_yscale("log")
    label_powers(axis.yaxis)
    steps = "training steps"
    if learning.polished is None:
        steps += "\nbelow the line: stages for one output or more neurons"
    axis.set(xlabel=steps, title="The loss falls" if learning.success else "The loss")
    axis.set_ylabel("loss", labelpad=1)
    axis.legend(frameon=False, loc="lower left")


def positive(losses: np.ndarray) -> np.ndarray:
    """Return losses for a logarithmic axis, which has no zero."""
    return np.maximum(losses, 1e-40)


def draw_decays(axis: "Axes", discovery: Discovery) -> None:
    """Draw λ in rising order; both networks span the axis, whatever their number of neurons."""
    before, after = np.sort(discovery.learning.before), np.sort(discovery.after)
    trained = "trained, reduced" if discovery.reduced else "trained"
    for decay, colour, mark, size in ((before, GREY, "o", 3.0), (after, BLUE, "D", 3.5)):
        when = "random" if colour == GREY else trained
        face = "white" if colour == GREY else colour
        axis.plot(
            (np.arange(len(decay)) + 0.5) / max(len(decay), 1),
            decay,
            mark,
            ms=size,
            color=colour,
            markerfacecolor=face,
            markeredgewidth=0.7,
            label=f"{when}: {quantity(len(decay), 'neuron')}",
            clip_on=False,
        )
    remember, forget = np.sum(after > 1 - 1e-6), np.sum(after < 1e-6)
    words: Json = {"fontsize": 6, "color": BLUE, "ha": "left", "va": "center"}
    if remember:
        verb = "remembers" if remember == 1 else "remember"
        axis.text(0.02, 1.075, f"{remember} {verb} all: λ = 1", **words)
    if forget:
        verb = "sees" if forget == 1 else "see"
        axis.text(0.02, -0.075, f"{forget} {verb} the last token: λ = 0", **words)
    axis.set(xlim=(0, 1), ylim=(-0.14, 1.14), xticks=[], yticks=[0, 0.5, 1])
    title = "The neurons find their memory" if discovery.became else "The neurons' λ"
    axis.set(xlabel="neurons in order of λ", title=title)
    axis.set_ylabel("λ", rotation=0)
    # Between two ticks, where there is room.
    axis.yaxis.set_label_coords(-0.06, 0.7)
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(0.0, 0.78), handletextpad=0.1)


def draw_attention(band: "SubFigure", discovery: Discovery) -> None:
    """Draw W_V and M, the teacher's above and the student's below, in common colours."""
    rows = [("teacher", discovery.teacher)]
    if discovery.student is not None:
        rows.append(("student", discovery.student))
    reach = max(float(np.max(np.abs(matrix))) for _, pair in rows for matrix in pair) or 1.0
    heads = len(discovery.teacher[0])
    axes = band.subplots(2, 2 * heads, squeeze=False)
    for axis in axes.ravel():
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    shown = None
    for (name, (values, scores)), places in zip(rows, axes, strict=False):
        matrices = [matrix for head in zip(values, scores, strict=True) for matrix in head]
        for matrix, axis in zip(matrices, places, strict=True):
            shown = axis.imshow(matrix, cmap="RdBu", vmin=-reach, vmax=reach, aspect="equal")
            if heads == 1:
                write_entries(axis, matrix, reach)
        places[0].set_ylabel(name, fontsize=7)
    names = ["$W_V$", "$M = W_K^\\top W_Q$"]
    if heads > 1:
        names = [
            f"${name}^{{{number}}}$" for number in range(1, heads + 1) for name in ("W_V", "M")
        ]
    for name, axis in zip(names, axes[0], strict=True):
        axis.set_title(name)
    if discovery.student is None:
        wanted = "one-head attention" if heads == 1 else "heads like these"
        axes[1, 0].text(0, 0.5, f"the student holds no\n{wanted}", fontsize=7)
    assert shown is not None
    bar = band.colorbar(shown, ax=axes, shrink=0.7, aspect=30, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, width=0.5)
    title = "The teacher's attention"
    if discovery.difference is not None:
        title = f"Attention nearest to the student, {discovery.difference:.0e} from the teacher's"
        if discovery.became:
            title = f"It is the teacher's attention, up to {discovery.difference:.0e}"
    band.suptitle(title, fontsize=7)


def write_entries(axis: "Axes", matrix: np.ndarray, reach: float) -> None:
    if matrix.shape[1] > NUMBERED:
        return
    for (row, column), entry in np.ndenumerate(matrix):
        colour = "white" if abs(entry) > 0.6 * reach else "black"
        axis.text(
            column,
            row,
            f"{entry:.2f}".replace("-", "−"),
            ha="center",
            va="center",
            fontsize=4.5,
            color=colour,
        )
