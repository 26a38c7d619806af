"""What the command discover prints: the verdict, the certificate, and matrices side by side."""

import numpy as np
from rich.text import Text

from underhood.common.files import Json
from underhood.report.discovery import Discovery

# Larger matrices are not printed.
WIDEST_PRINTED = 8


def discovery_text(facts: Json, discovery: Discovery) -> Text:
    """Return a line per fact, and W_V and M of the teacher beside those of the student."""
    bound = "none" if facts["bound"] is None else f"{facts['bound']:.2g}"
    lines = {
        "training": facts["training"],
        "verdict": facts["reason"],
        "reduced": facts["reduction"],
        "horizon": f"of the reduced network: {facts['promise']}",
        "bound": f"its outputs differ from attention's by at most {bound} for {facts['time']} "
        f"tokens of norm ≤ {facts['radius']:g}",
    }
    if facts["reduction"] is None:
        lines = {name: lines[name] for name in ("training", "verdict")}
        lines["reduced"] = "not reduced, because of Ctrl-C"
    colour = "green" if facts["verdict"] == "attention" else "red"
    text = Text("\n")
    for name, words in lines.items():
        text.append(f"{name:10}").append(
            f"{words}\n", f"bold {colour}" if name == "verdict" else ""
        )
    if discovery.student is None or discovery.difference is None:
        several = f"{facts['heads']} heads that compare with the teacher's"
        heads = "attention of one head to compare" if facts["heads"] == 1 else several
        text.append(f"\nThe student holds no {heads}.\n")
    else:
        shown = facts["d"] <= WIDEST_PRINTED
        several = facts["heads"] > 1
        for head in range(facts["heads"] if shown else 0):
            for name, place in (("W_V", 0), ("M = W_KᵀW_Q", 1)):
                pair = discovery.teacher[place][head], discovery.student[place][head]
                title = f"{name} of head {head + 1}" if several else name
                text.append("\n" + "\n".join(side_by_side(title, *pair)) + "\n")
        text.append(f"\nlargest difference of an entry: {discovery.difference:.2g}\n")
    return text.append(f"picture: {facts['picture']}")


def side_by_side(name: str, teacher: np.ndarray, student: np.ndarray) -> list[str]:
    """Return the lines of two matrices beside each other, under their names."""
    texts = [["  ".join(f"{entry:6.3f}" for entry in row) for row in W] for W in (teacher, student)]
    heads = [f"{name}, teacher", f"{name}, student"]
    width = max(len(line) for line in [*texts[0], heads[0]])
    pairs = [(heads[0], heads[1]), *zip(*texts, strict=True)]
    return [f"  {left:{width}}    {right}" for left, right in pairs]
