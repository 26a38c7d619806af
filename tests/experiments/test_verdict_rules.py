"""The rules that compare groups of seeds: which way they lie, how far apart, and enough of them."""

from functools import partial

import numpy as np
import pytest

from underhood.experiments.running.rules import (
    apart,
    below,
    equal,
    median_at_least,
    median_at_most,
    median_near,
    no_more_than,
    ordered,
    similar,
)

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
        (LOW[:3], LOW, 2.0, "not judged"),
        (LOW, HIGH[:3], 1.0, "not judged"),
    ],
)
def test_groups_are_alike_within_a_factor_or_their_spread(first, second, factor, expected) -> None:
    number = similar("n", first, second, factor, paper="equal")
    assert number.verdict == expected
    assert number.value == pytest.approx(np.median(second) / np.median(first))
    assert number.seeds == min(len(first), len(second))


@pytest.mark.parametrize(
    ("values", "line", "expected"),
    [
        # Three quarters of LOW lie below 1.225.
        (LOW, 1.23, "reproduced"),
        (LOW, 1.22, "differs"),
        ([1.0] * 4, 1.0, "differs"),
        ([1.0, 1.0, 1.0, 1.0, 99.0], 1.5, "reproduced"),
        (LOW[:3], 99.0, "not judged"),
        (LOW[:3], 0.0, "not judged"),
    ],
)
def test_below_a_line_means_three_quarters_of_the_seeds(values, line, expected) -> None:
    number = below("n", values, line, paper="below")
    assert number.verdict == expected
    assert number.value == np.median(values)
    assert number.seeds == len(values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([14, 14, 14, 14], "reproduced"),
        ([13, 14, 14, 99], "reproduced"),
        ([14, 14, 15, 15], "differs"),
        ([13, 13, 13, 14], "differs"),
        ([14, 14, 14], "not judged"),
        ([99], "not judged"),
    ],
)
def test_a_count_is_equal_if_its_median_is(values, expected: str) -> None:
    number = equal("n", values, 14)
    assert number.verdict == expected
    assert (number.value, number.paper, number.seeds) == (np.median(values), 14, len(values))


@pytest.mark.parametrize(
    ("values", "target", "expected"),
    [
        ([2.0, 2.03, 2.03, 9.0], 2.0, "reproduced"),
        ([2.0, 1.97, 1.97, -9.0], 2.0, "reproduced"),
        ([2.0, 2.05, 2.05, 9.0], 2.0, "differs"),
        ([2.0, 1.95, 1.95, -9.0], 2.0, "differs"),
        # A share of a negative number is one of its size.
        ([-2.03] * 4, -2.0, "reproduced"),
        ([-2.05] * 4, -2.0, "differs"),
        ([2.0] * 4, -2.0, "differs"),
        ([2.0] * 3, 2.0, "not judged"),
        ([9.0] * 3, 2.0, "not judged"),
    ],
)
def test_a_median_is_near_within_a_share_of_the_target(values, target, expected) -> None:
    number = median_near("n", values, target, 0.02, paper=1)
    assert number.verdict == expected
    assert (number.value, number.seeds) == (np.median(values), len(values))
    assert f"spread {np.std(values):.1e}" in number.rule


def test_four_seeds_are_enough_everywhere() -> None:
    for count, judged in ((3, False), (4, True)):
        low, high = [1.0] * count, [2.0] * count
        numbers = [
            ordered("n", low, high, paper=""),
            similar("n", low, low, 1.0, paper=""),
            below("n", low, 2.0, paper=""),
            equal("n", low, 1),
            median_near("n", low, 1.0, 0.1, paper=1),
            no_more_than("n", low, 1.0, what="n"),
        ]
        assert [number.verdict == "reproduced" for number in numbers] == [judged] * len(numbers)
        assert [number.verdict == "not judged" for number in numbers] == [not judged] * len(numbers)


def test_a_median_is_held_against_its_limit_from_four_seeds_on() -> None:
    most = partial(median_at_most, "n", limit=2.0, paper=1)
    least = partial(median_at_least, "n", limit=2.0, paper=1)
    for values, at_most, at_least in (
        ([1.0, 2.0, 2.0, 9.0], "reproduced", "reproduced"),
        ([1.0, 1.0, 1.0, 9.0], "reproduced", "differs"),
        ([1.0, 9.0, 9.0, 9.0], "differs", "reproduced"),
        ([2.0, 2.0, 2.0], "not judged", "not judged"),
    ):
        assert (most(values=values).verdict, least(values=values).verdict) == (at_most, at_least)
        assert most(values=values).seeds == len(values)
