"""The loss while starts of a fit run side by side: a curve on a terminal, lines elsewhere."""

from typing import TYPE_CHECKING

import numpy as np

from underhood.common.live import LiveDisplay, Speaker

if TYPE_CHECKING:
    import rich.console

# Characters of the curve, and its fewest steps from left to right.
CURVE_COLUMNS, CURVE_ROWS, FEWEST_STEPS = 56, 8, 40
# The dots of a Braille character by row and column, and the character without dots.
DOTS, BLANK = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80)), 0x2800


class LossCurve(LiveDisplay):
    """The curve of the start with the lowest loss, on a logarithmic axis.

    goal    the loss of a success: the lower end of the axis
    shown   whether to draw; None: where stderr is a terminal. If not, a line in two seconds
    """

    def __init__(self, goal: float, shown: bool | None = None):
        super().__init__(shown)
        self.goal = goal
        self.losses: dict[int, list[float]] = {}
        self.speaker = Speaker(False if self.shown else None)

    def watch(self, start: int, step: int, loss: float) -> None:
        """Add the loss after a step; starts may call this from threads of their own."""
        self.losses.setdefault(start, []).append(float(loss))
        self.speaker.say(f"discover: start {start}, step {step}, loss {loss:.3g}")

    def table(self) -> "rich.console.ConsoleRenderable":
        from rich.text import Text

        curves = {start: list(losses) for start, losses in list(self.losses.items())}
        if not curves:
            return Text("The student is made ready.")
        front = min(curves, key=lambda start: min(curves[start]))
        losses = np.array(curves[front])
        others = f" ({len(curves)} starts so far)" if len(curves) > 1 else ""
        head = f"loss {losses[-1]:.2e} after {len(losses) - 1} steps, start {front}{others}"
        text = Text(head + "\n", style="bold")
        for label, row in curve_rows(losses, self.goal):
            text.append(f"{label:>7} ", style="not bold bright_black")
            text.append(f"│{row}\n", style="not bold blue")
        text.append(" " * 8 + "└" + "─" * CURVE_COLUMNS, style="not bold bright_black")
        return text


def curve_rows(losses: np.ndarray, goal: float) -> list[tuple[str, str]]:
    """Return the curve as rows of a label and Braille characters, the largest losses first."""
    powers = np.log10(np.clip(losses, min(goal, 1e-300), 1e300))
    top = np.ceil(powers.max())
    bottom = min(np.floor(np.log10(goal)), np.floor(powers.min()), top - 1)
    wide, tall = 2 * CURVE_COLUMNS, 4 * CURVE_ROWS
    steps = max(FEWEST_STEPS, len(losses) - 1)
    x = np.arange(wide) * steps / (wide - 1)
    drawn = x <= len(losses) - 1
    levels = np.interp(x, np.arange(len(losses)), powers)
    heights = np.round((top - levels) / (top - bottom) * (tall - 1)).astype(int)
    cells = np.full((CURVE_ROWS, CURVE_COLUMNS), BLANK)
    last = heights[0]
    for column in np.flatnonzero(drawn):
        # A steep line is drawn without gaps.
        low, high = sorted((last, heights[column]))
        for row in range(low, high + 1):
            cells[row // 4, column // 2] |= DOTS[row % 4][column % 2]
        last = heights[column]
    named = {0: top, CURVE_ROWS // 2: (top + bottom) / 2, CURVE_ROWS - 1: bottom}
    return [
        (f"1e{named[row]:+03.0f}" if row in named else "", "".join(map(chr, cells[row])))
        for row in range(CURVE_ROWS)
    ]
