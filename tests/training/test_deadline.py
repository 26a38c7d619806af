"""Durations as people write them, and a moment that passes."""

import pytest

from underhood.common.errors import BadInput
from underhood.training.deadline import Deadline, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("8m", 480), ("1.5h", 5400), ("1h30m", 5400), ("1m30", 90)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, about="--stop-after") == seconds


@pytest.mark.parametrize("text", ["", "0", "0m", "-8m", "8 m", "8d", "m", "1e3", "nan", "٣m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"--stop-after is .*; give a duration such as 90s"):
        parse_duration(text, about="--stop-after")


def test_a_deadline_passes() -> None:
    assert Deadline.after(-1).over and Deadline.after(-1).left == 0
    assert not Deadline.after(60).over and 59 < Deadline.after(60).left <= 60
