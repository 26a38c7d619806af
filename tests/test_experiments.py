"""Experiments at smoke scale, their files, and the rules that judge them."""

import json

import pytest

from underhood.cli import main
from underhood.experiments import verdicts
from underhood.experiments.registry import EXPERIMENTS

KEYS = {"experiment", "scale", "verdict", "numbers", "provenance"}


# Numbers at smoke scale are not judged, so few optimisations will do.
@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs_and_writes_its_result(name: str, tmp_path, capsys) -> None:
    assert main(["reproduce", name, "--scale", "smoke", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / name / "result.json").read_text())
    assert result.keys() >= KEYS
    assert result["verdict"] == "not judged"
    for number in result["numbers"]:
        assert number.keys() == {"name", "value", "paper", "rule", "verdict", "seeds"}
    provenance = result["provenance"]
    assert provenance.keys() == {"commit", "versions", "device", "seeds", "steps", "seconds"}
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 0
    assert name in capsys.readouterr().out


def test_a_failing_experiment_gives_status_1_and_the_others_still_run(
    tmp_path, capsys, monkeypatch
) -> None:
    broken = type(EXPERIMENTS["table3"])("breaks", lambda *_: 1 / 0, {})
    monkeypatch.setitem(EXPERIMENTS, "table3", broken)
    command = ["reproduce", "table3", "reverse", "--scale", "smoke", "--out", str(tmp_path)]
    assert main(command) == 1
    assert not (tmp_path / "table3").exists()
    assert (tmp_path / "reverse" / "result.json").exists()
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_strict_gives_status_1_when_a_claim_differs(tmp_path, monkeypatch, capsys) -> None:
    number = verdicts.at_most("n", 2.0, 1.0, what="n", paper=1, seeds=4)
    from underhood.experiments.results import Outcome

    differing = type(EXPERIMENTS["table3"])("differs", lambda *_: Outcome((number,)), {})
    monkeypatch.setitem(EXPERIMENTS, "table3", differing)
    command = ["reproduce", "table3", "--out", str(tmp_path)]
    assert main(command) == 0
    assert main([*command, "--strict"]) == 1
    assert "differs" in capsys.readouterr().out


def test_verdicts_follow_their_rules() -> None:
    assert verdicts.at_most("n", 1.0, 1.0, what="n", paper=1, seeds=1).verdict == "reproduced"
    assert verdicts.at_most("n", 1.1, 1.0, what="n", paper=1, seeds=1).verdict == "differs"
    assert verdicts.near("n", 2.1, 2, 0.2, what="n", paper=1, seeds=1).verdict == "reproduced"
    assert verdicts.near("n", 1.7, 2, 0.2, what="n", paper=1, seeds=1).verdict == "differs"
    assert verdicts.overall([]) == "not run"
    assert verdicts.overall(["better", "reproduced"]) == "reproduced"
    assert verdicts.overall(["reproduced", "refuted"]) == "refuted"
    assert verdicts.overall(["refuted", "differs"]) == "differs"
