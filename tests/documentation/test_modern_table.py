"""The table of errors of today's layers: complete, within its limits, and as measured now."""

import modern_table
import pytest

from underhood.constructions import TARGETS

ERRORS = modern_table.written_errors(modern_table.PAGE.read_text(encoding="utf-8"))


def test_every_layer_of_today_has_a_row() -> None:
    assert list(ERRORS) == list(modern_table.TARGETS)
    assert all(len(row) == len(modern_table.PLACES) == 4 for row in ERRORS.values())
    # Exact or below rounding, but for the two that make products by differences.
    for target, (short, _, single, _) in ERRORS.items():
        assert target in TARGETS
        rounds = target not in ("rg_lru", "hgrn2")
        assert short < (1e-14 if rounds else 1e-12) and single < (1e-6 if rounds else 1e-4)


@pytest.mark.parametrize("target", ["jamba", "hgrn2"])
def test_an_entry_is_what_is_measured(target: str) -> None:
    """Within a factor of 5: these errors are rounding."""
    then = ERRORS[target][0]
    assert then / 5 <= modern_table.measured(target, 32, "float64")[1] <= 5 * then
