"""Experiments of our own: what they train, and how they judge it."""

import dataclasses
import json

import pytest
from result_files import ROOT

from underhood.cli.entry import main
from underhood.experiments.beyond import identifiability, weight_decay
from underhood.experiments.paper.table3 import growth_of_parameters
from underhood.experiments.registry import EXPERIMENTS, SCALES, at_scale
from underhood.results.claims import PAPER_CLAIMS
from underhood.training import Recipe


def share(neurons: int, count: int) -> dict:
    return {"neurons": neurons, "share": count / 10}


@pytest.mark.parametrize(
    ("counts", "fewest", "verdict"),
    [
        ({8: 0, 9: 1, 10: 7}, 9, "reproduced"),
        # Below the theory's size nothing may be found, and at it something must.
        ({8: 1, 9: 1, 10: 7}, 8, "differs"),
        ({8: 0, 9: 0, 10: 7}, 10, "differs"),
        ({8: 0, 9: 0, 10: 0}, None, "differs"),
    ],
)
def test_the_fewest_neurons_must_be_the_theorys(counts, fewest, verdict) -> None:
    case = identifiability.Case(3, 3, 10)
    assert case.theory == 9
    rows = [share(neurons, count) for neurons, count in counts.items()]
    number = identifiability.judge_fewest(case, rows, 10)
    assert (number.value, number.verdict, number.whose) == (fewest, verdict, "ours")


def test_readings_differ_in_nothing_but_weight_decay() -> None:
    studies = weight_decay.plan_studies()
    assert list(weight_decay.RUN_NAMES) == [weight_decay.COUPLED, *studies]
    coupled = Recipe.paper()
    for reading in weight_decay.READINGS:
        recipe = studies[reading].recipe
        assert recipe.decay == reading
        like_coupled = {"decay": "coupled", "decay_schedule": coupled.decay_schedule}
        assert dataclasses.replace(recipe, **like_coupled) == coupled
    assert studies[weight_decay.WEAKER].recipe.weight_decay == coupled.weight_decay / 4
    assert len({study.key for study in studies.values()}) == 1


def group_rows(**neurons: int) -> list[dict]:
    names = {name.split()[-1]: name for name in weight_decay.RUN_NAMES}
    return [
        {"group": names[name], "neurons": count}
        for name, count in neurons.items()
        for _ in range(4)
    ]


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({}, 0),
        ({"coupled": 60}, 1),
        ({"decoupled": 20}, 1),
        ({"teachers": 15}, 1),
        ({"optax": 9}, 1),
    ],
)
def test_few_neurons_by_coupled_decay_alone(changed, failing) -> None:
    counts = {"coupled": 19, "decoupled": 90, "optax": 100, "quarter": 20, "teachers": 14}
    numbers = weight_decay.judge_groups(group_rows(**counts | changed))
    assert all(number.whose == "ours" for number in numbers)
    assert sum(number.verdict == "differs" for number in numbers) == failing


def test_an_experiment_without_a_budget_does_not_run_at_a_scale(capsys, tmp_path) -> None:
    papers = [claim.name for claim in PAPER_CLAIMS]
    assert at_scale("quick") == [*papers, "identifiability", "recall_memory", "atlas"]
    # What takes long runs by its name alone.
    by_name = {name: each.by_name for name, each in EXPERIMENTS.items() if each.by_name}
    assert by_name == {"architectures2026": SCALES, "recall_training": ("quick",)}
    assert at_scale("paper") == [name for name in EXPERIMENTS if name != "architectures2026"]
    trained_on_a_gpu = {name for name in EXPERIMENTS if "quick" not in EXPERIMENTS[name].budget}
    assert trained_on_a_gpu == {"weight_decay"}
    command = ["reproduce", "weight_decay", "--scale", "quick", "--out", str(tmp_path / "out")]
    assert main(command) == 2
    line = "underhood: weight_decay does not run at quick scale; use paper.\n"
    assert capsys.readouterr().err == line and not (tmp_path / "out").exists()


def test_the_table_of_the_page_is_that_of_the_result() -> None:
    result = json.loads((ROOT / "results/reference/quick/identifiability/result.json").read_text())
    page = (ROOT / "docs/discovery.md").read_text(encoding="utf-8")
    by_teacher: dict[str, list[dict]] = {}
    for row in result["rows"]:
        if row["by"] == "second order":
            by_teacher.setdefault(row["teacher"], []).append(row)
    assert len(by_teacher) == 3
    for teacher, rows in by_teacher.items():
        assert [row["beyond theory"] for row in rows] == [-1, 0, 1, 3]
        size, rank = teacher.split(", ")
        cells = " | ".join(row["found"] for row in rows)
        assert f"| ${size}$, {rank} | {rows[1]['neurons']} | {cells} |\n" in page


def test_parameters_grow_as_the_paper_says_which_is_shown_and_not_judged() -> None:
    constant, *growths = growth_of_parameters()
    assert constant.value == 3 * 32**2
    assert {number.rule for number in (constant, *growths)} == {"shown, not judged"}
    # 2d⁴ + 2d³ weights between neurons dominate; side gates have no such square.
    assert growths[0].value > 3.75 > 3.25 > growths[1].value > 2.75
