"""The tables of errors in the documentation: complete, as promised, and as measured now."""

import error_table
import pytest
from error_table import ELSEWHERE, NAMES, NETWORKS, PLACES, error, shown, written_rows

from underhood.constructions import TARGETS
from underhood.constructions.compiling import PROMISED

TEXT = error_table.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_a_row_in_both_precisions(name: str) -> None:
    rows = written_rows(TEXT, name)
    expected = [(net.source, net.name, dtype) for net in NETWORKS for dtype in PROMISED]
    assert list(rows) == expected and {network.target for network in NETWORKS} | ELSEWHERE == set(
        TARGETS
    )
    assert all(len(cells) == len(PLACES) == 6 for cells in rows.values())


def test_the_promise_holds_where_it_is_given_and_exact_networks_need_none() -> None:
    asked, default = (written_rows(TEXT, name) for name in NAMES)
    for cells in asked.values():
        assert not any("**" in cell for cell in cells)
    exact = {network.name for network in NETWORKS if TARGETS[network.target].exact}
    for (_, name, dtype), cells in default.items():
        assert cells[0][:2] != "**"
        if name in exact:
            limit = {"float64": 1e-13, "float32": 1e-5}[dtype]
            assert all(float(cell) <= limit for cell in cells)
    # What this page is for: networks that nobody asked to serve long sequences do not.
    assert default["attention", "`gru`", "float32"][-1] == "**1.0**"


CHECKED = [
    *((network, place, True) for network in (NETWORKS[9], NETWORKS[11]) for place in PLACES[-2:]),
    *((NETWORKS[8], place, False) for place in PLACES[:2]),
]


@pytest.mark.parametrize(("network", "place", "asked"), CHECKED)
def test_entries_are_what_is_measured(network, place, asked) -> None:
    """Within a factor of 5: most of these errors are rounding."""
    for dtype in PROMISED:
        row = written_rows(TEXT, NAMES[not asked])[network.source, network.name, dtype]
        then = float(row[PLACES.index(place)].strip("*"))
        assert then / 5 <= error(network, dtype, place, asked=asked) <= 5 * then


def test_how_an_error_is_shown() -> None:
    assert shown(1.4e-12, "float64") == "1e-12" and shown(3e-7, "float64") == "3e-7"
    assert shown(3e-6, "float64") == "**3e-6**" and shown(0.26, "float32") == "**0.3**"
    assert shown(None, "float32") == "refused"
