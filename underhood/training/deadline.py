"""A moment at which long work stops by itself, and keeps what it has done."""

import re
import time
from dataclasses import dataclass

from underhood.common.errors import BadInput

SECONDS = {"s": 1, "m": 60, "h": 3600}
DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smh]?)+", re.ASCII)
PART = re.compile(r"(\d+(?:\.\d+)?)([smh]?)", re.ASCII)


class OutOfTime(Exception):
    """Work has stopped at its deadline; what it has done is kept, and the same call goes on."""


@dataclass(frozen=True)
class Deadline:
    """A moment, in seconds since the epoch, so that other processes can be given it."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.time() + seconds)

    @property
    def left(self) -> float:
        """Seconds until then; 0 once it has passed."""
        return max(self.at - time.time(), 0.0)

    @property
    def over(self) -> bool:
        return self.left == 0.0


def parse_duration(text: str, *, about: str) -> float:
    """Return the seconds of a duration: 90, 90s, 8m, 1.5h or 1h30m; refuse anything else."""
    seconds = 0.0
    if DURATION.fullmatch(text):
        seconds = sum(float(number) * SECONDS[unit or "s"] for number, unit in PART.findall(text))
    if seconds <= 0:
        raise BadInput(f"{about} is {text!r}; give a duration such as 90s, 8m or 1h30m.")
    return seconds
