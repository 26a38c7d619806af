"""The rules that compare groups of seeds: which way they lie, how far apart, and enough of them."""

import numpy as np
import pytest

from underhood.experiments.running.rules import (
    apart,
    at_most,
    below,
    equal,
    median_at_least,
    median_at_most,
    median_near,
    near,
    no_more_than,
    ordered,
    similar,
)
from underhood.results.verdicts import overall

LOW, HIGH = [1.0, 1.1, 1.2, 1.3], [2.0, 2.2, 2.4, 2.6]
# From below LOW to above HIGH: its quartiles overlap with those of both.
WIDE = [0.5, 1.0, 2.5, 3.0]


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (LOW, HIGH, True),
        (HIGH, LOW, False),
        (LOW, WIDE, False),
        (WIDE, LOW, False),
        # Touching is not apart.
        ([1.0] * 4, [1.0] * 4, False),
        ([1.0] * 4, [1.0 + 1e-12] * 4, True),
        # An outlier among the seeds moves no quartile past the others.
        ([1.0, 1.1, 1.2, 1.3, 99.0], HIGH, True),
    ],
)
def test_groups_are_apart_where_their_quartiles_are(lower, upper, expected: bool) -> None:
    assert apart(lower, upper) is expected


@pytest.mark.parametrize(
    ("lower", "upper", "least", "expected"),
    [
        (LOW, HIGH, 1.0, "reproduced"),
        (HIGH, LOW, 1.0, "differs"),
        (LOW, WIDE, 1.0, "not judged"),
        (WIDE, LOW, 1.0, "not judged"),
        (LOW, LOW, 1.0, "not judged"),
        # 2.3 / 1.15 is about 2.
        (LOW, HIGH, 1.9, "reproduced"),
        (LOW, HIGH, 2.1, "differs"),
        # The wrong way round differs whatever is asked for.
        (HIGH, LOW, 0.1, "differs"),
        # Overlapping groups are not judged, however far their medians are from `least`.
        (LOW, WIDE, 99.0, "not judged"),
        # Three seeds on either side are too few, whatever they say.
        (LOW[:3], HIGH, 1.0, "not judged"),
        (LOW, HIGH[:3], 1.0, "not judged"),
        (HIGH[:3], LOW[:3], 1.0, "not judged"),
    ],
)
def test_an_order_holds_beyond_the_spread_of_the_seeds(lower, upper, least, expected) -> None:
    number = ordered("n", lower, upper, paper="above", least=least)
    assert number.verdict == expected
    assert number.value == pytest.approx(np.median(upper) / np.median(lower))
    assert number.seeds == min(len(lower), len(upper))
    assert f"> {least:g}" in number.rule
    assert (number.name, number.paper) == ("n", "above")


@pytest.mark.parametrize(
    ("first", "second", "factor", "expected"),
    [
        # Within the factor, apart or not, either way round.
        (LOW, HIGH, 2.1, "reproduced"),
        (HIGH, LOW, 2.1, "reproduced"),
        # Beyond the factor and apart, either way round.
        (LOW, HIGH, 1.9, "differs"),
        (HIGH, LOW, 1.9, "differs"),
        # Beyond the factor, but the quartiles overlap.
        (LOW, WIDE, 1.1, "reproduced"),
        (WIDE, LOW, 1.1, "reproduced"),
        (LOW, LOW, 1.0, "reproduced"),
        (LOW[:3], LOW, 2.0, "not judged"),
        (LOW, HIGH[:3], 1.0, "not judged"),
    ],
)
def test_groups_are_alike_within_a_factor_or_their_spread(first, second, factor, expected) -> None:
    number = similar("n", first, second, factor, paper="equal")
    assert number.verdict == expected
    assert number.value == pytest.approx(np.median(second) / np.median(first))
    assert number.seeds == min(len(first), len(second))


RULES = {
    "below": lambda values, line: below("n", values, line, paper=line),
    "equal": lambda values, count: equal("n", values, count),
    "near": lambda values, target: median_near("n", values, target, 0.02, paper=target),
    "at most": lambda values, limit: median_at_most("n", values, limit, paper=limit),
    "at least": lambda values, limit: median_at_least("n", values, limit, paper=limit),
    "no more": lambda values, paper: no_more_than("n", values, paper, what="n"),
}


def test_a_lower_number_need_not_be_a_better_one() -> None:
    best, capped = (
        no_more_than("n", [1e-9] * 4, 1.0, what="n", highest=highest)
        for highest in ("better", "reproduced")
    )
    assert (best.verdict, best.rule) == ("better", "n ≤ 3; better ≤ 0.1")
    assert (capped.verdict, capped.rule) == ("reproduced", "n ≤ 3")
    high = no_more_than("n", [4.0] * 4, 1.0, what="n", highest="reproduced")
    assert high.verdict == "differs"


@pytest.mark.parametrize(
    ("rule", "values", "line", "expected"),
    [
        # Below a line means three quarters of the seeds; those of LOW lie below 1.225.
        ("below", LOW, 1.23, "reproduced"),
        ("below", LOW, 1.22, "differs"),
        ("below", [1.0] * 4, 1.0, "differs"),
        ("below", [1.0, 1.0, 1.0, 1.0, 99.0], 1.5, "reproduced"),
        ("below", LOW[:3], 99.0, "not judged"),
        ("below", LOW[:3], 0.0, "not judged"),
        ("equal", [14, 14, 14, 14], 14, "reproduced"),
        ("equal", [13, 14, 14, 99], 14, "reproduced"),
        ("equal", [14, 14, 15, 15], 14, "differs"),
        ("equal", [13, 13, 13, 14], 14, "differs"),
        ("equal", [14, 14, 14], 14, "not judged"),
        ("equal", [99], 14, "not judged"),
        ("near", [2.0, 2.03, 2.03, 9.0], 2.0, "reproduced"),
        ("near", [2.0, 1.97, 1.97, -9.0], 2.0, "reproduced"),
        ("near", [2.0, 2.05, 2.05, 9.0], 2.0, "differs"),
        ("near", [2.0, 1.95, 1.95, -9.0], 2.0, "differs"),
        # A share of a negative number is one of its size.
        ("near", [-2.03] * 4, -2.0, "reproduced"),
        ("near", [-2.05] * 4, -2.0, "differs"),
        ("near", [2.0] * 4, -2.0, "differs"),
        ("near", [2.0] * 3, 2.0, "not judged"),
        ("near", [9.0] * 3, 2.0, "not judged"),
        ("at most", [1.0, 2.0, 2.0, 9.0], 2.0, "reproduced"),
        ("at most", [1.0, 1.0, 1.0, 9.0], 2.0, "reproduced"),
        ("at most", [1.0, 9.0, 9.0, 9.0], 2.0, "differs"),
        ("at most", [2.0] * 3, 2.0, "not judged"),
        ("at least", [1.0, 2.0, 2.0, 9.0], 2.0, "reproduced"),
        ("at least", [1.0, 1.0, 1.0, 9.0], 2.0, "differs"),
        ("at least", [1.0, 9.0, 9.0, 9.0], 2.0, "reproduced"),
        ("at least", [2.0] * 3, 2.0, "not judged"),
        ("no more", [0.05, 0.1, 0.1, 9.0], 1.0, "better"),
        ("no more", [0.05, 2.9, 2.9, 9.0], 1.0, "reproduced"),
        ("no more", [0.05, 3.1, 3.1, 9.0], 1.0, "differs"),
        ("no more", [0.05] * 3, 1.0, "not judged"),
    ],
)
def test_a_median_is_held_against_a_line(rule, values, line, expected) -> None:
    number = RULES[rule](values, line)
    assert (number.verdict, number.paper, number.seeds) == (expected, line, len(values))
    assert number.value == np.median(values)
    assert rule != "near" or number.rule == f"median = {line:.4g} within 2%"


def test_a_single_value_and_all_verdicts_together() -> None:
    for value, expected in ((1.0, "reproduced"), (1.1, "differs")):
        assert at_most("n", value, 1.0, what="n", paper=1, seeds=1).verdict == expected
    for value, expected in ((2.1, "reproduced"), (1.7, "differs")):
        assert near("n", value, 2, 0.2, what="n", paper=1, seeds=1).verdict == expected
    assert overall([]) == "not run"
    assert overall(["better", "reproduced"]) == "reproduced"
    assert overall(["reproduced", "refuted"]) == "refuted"
    assert overall(["refuted", "differs"]) == "differs"
