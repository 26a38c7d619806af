"""The atlas as an experiment: its rows, its rules, and its grid in the report."""

from dataclasses import replace
from pathlib import Path

import pytest

from underhood.constructions.atlas import can
from underhood.constructions.atlas.witnesses import Gap
from underhood.experiments.beyond import atlas
from underhood.experiments.running.setting import Setting
from underhood.report.charts import Grid, alt_text, encode_chart
from underhood.report.frontier import atlas_charts, cell_of


@pytest.fixture(scope="module")
def outcome():
    setting = Setting("smoke", seeds=None, folder=Path("results"), tick=lambda done, total: None)
    return atlas.reproduce_atlas(setting)


def test_every_pair_has_a_row_and_every_rule_holds(outcome) -> None:
    assert len(outcome.rows) == len(atlas.FEW_SOURCES) * len(atlas.FEW_TARGETS)
    assert {number.verdict for number in outcome.numbers} <= {"reproduced", "not judged"}
    assert all(number.whose == "ours" for number in outcome.numbers)
    for row in outcome.rows:
        assert (row["error"] is not None) == (row["answer"] in ("exact", "limit"))
        assert (row["answer"] == "impossible") <= (row["gap"] is not None)


def test_the_grid_has_a_sign_and_a_text_for_every_pair(outcome) -> None:
    (grid,) = atlas_charts({}, {"rows": outcome.rows})
    assert isinstance(grid, Grid) and len(grid.cells) == len(grid.rows) * len(grid.columns)
    assert len({sign for sign, *_ in grid.legend}) == 4
    texts = {cell.sign: " ".join(cell.text) for cell in grid.cells}
    assert "Error" in texts["="] and "theorem N" in texts["→"]
    assert "theorem S" in texts["✕"] and "gap" in texts["✕"]
    # The words of an open pair name its theorems once, and two theorems are theorems.
    row = next(row for row in outcome.rows if row["answer"] == "limit")
    both = cell_of(row | {"theorem": "NC"})
    assert "No exact weights: theorems N and C." in both.text
    once = cell_of(row | {"answer": "open", "how": "No weights are exact (theorem N)."})
    assert " ".join(once.text).count("theorem") == 1
    assert encode_chart(grid)["kind"] == "grid" and "impossible" in alt_text(grid)


def test_what_would_refute_a_theorem_is_not_held() -> None:
    answer = can("attention", "min_gru")
    broken = Gap("swap", 0.5, 1e-3, 1e-9, "somewhere")
    verdicts = [number.verdict for number in atlas.judge_witnesses([answer], [broken])]
    assert verdicts == ["differs", "differs"]
    (zero, least) = atlas.judge_witnesses([answer], [broken])
    assert "in 1 pair " in f"{zero.rule} " and "in 1 pair " in least.rule
    grown = Gap("norm", 3.0, 2.0, 0.1, "somewhere")
    limit = can("attention", "retnet")
    verdicts = [number.verdict for number in atlas.judge_witnesses([limit], [grown])]
    assert verdicts == ["differs", "differs"]
    # An error that is known, so that nothing runs.
    wrong = replace(can("attention", "gated_rnn"))
    wrong.__dict__["error"] = 1e-3
    assert [number.verdict for number in atlas.judge_networks([wrong])] == ["differs"]
