"""Layers of today in the paper's comparison: what is trained, and how it is judged."""

import json

import numpy as np
import pytest

from underhood.cli.entry import main
from underhood.experiments.beyond import architectures2026 as experiment
from underhood.experiments.paper.figure4 import plan_figure4b
from underhood.results.architectures import ARCHITECTURE_NAMES


def rows_of(scores, losses, seeds=4):
    """Students of both tasks, an architecture per entry, with a little noise over seeds."""
    rng = np.random.default_rng(0)
    return [
        {
            "task": task,
            "architecture": f"layer {place}",
            "score": score + 1e-3 * rng.normal(),
            "loss": loss,
            "validation": loss * (1 + 1e-3 * rng.normal()),
        }
        for task in experiment.TASKS
        for place, (score, loss) in enumerate(zip(scores, losses, strict=True))
        for _ in range(seeds)
    ]


def test_the_protocol_is_that_of_figure4():
    modern, papers = experiment.plans_of("quick")["regression"]
    figure4b = plan_figure4b("quick")
    assert [kind.name for kind, *_ in papers.sizes()] == list(ARCHITECTURE_NAMES)
    assert (papers.name, papers.seeds) == (figure4b.name, figure4b.seeds)
    assert len(modern.sizes()) == 14 and modern.seeds >= 4
    for field in ("task", "key", "widths", "recipe", "rates", "search_steps"):
        assert getattr(modern, field) == getattr(figure4b, field)
    # As wide as the stream, whatever the layer.
    for kind, depth, width in modern.sizes():
        assert (depth, width) == (1, 32) and kind.depths == (1,)


def test_rank_correlation_and_its_rule():
    assert experiment.rank_correlation(np.arange(5.0), -(np.arange(5.0) ** 3)) == pytest.approx(-1)
    assert experiment.rank_correlation(np.arange(5.0), np.zeros(5)) == 0
    scores = np.linspace(0, 1, 12)
    falling = experiment.judge_closeness(rows_of(scores, np.exp(-scores)), 4, 0.5)
    closeness, error = falling[1:3]
    assert closeness.whose == "ours" and closeness.verdict == "reproduced"
    assert closeness.value == pytest.approx(-1) and 0 <= error.value < 0.1
    shuffled = np.random.default_rng(1).permutation(scores)
    other = experiment.judge_closeness(rows_of(scores, np.exp(-shuffled)), 4, 0.5)
    assert other[1].verdict == "differs" and other[2].value > 0.1
    # Losses on both tasks are the same here.
    assert other[3].verdict == "reproduced" and other[3].value == pytest.approx(1, abs=0.05)
    # Few seeds, or few architectures, say nothing.
    assert experiment.judge_closeness(rows_of(scores, scores), 2, 0.5)[1].verdict == "not judged"
    few = experiment.judge_closeness(rows_of(scores[:5], scores[:5]), 4, 0.5)
    assert [number.verdict for number in few] == ["not judged"] * 2 and few[1].value is None


def test_it_trains_scores_draws_and_resumes(tmp_path, capsys):
    command = ["reproduce", "architectures2026", "--scale", "smoke", "--out", str(tmp_path)]
    assert main(command) == 0
    path = tmp_path / "architectures2026" / "result.json"
    first = json.loads(path.read_text())
    capsys.readouterr()
    assert main([*command, "--plan"]) == 0
    assert "2 of 2 runs finished" in capsys.readouterr().out
    assert first["verdict"] == "not judged"
    assert {row["architecture"] for row in first["rows"]} == set(experiment.SMOKE_LAYERS)
    assert len(first["rows"]) == 2
    assert all(0 <= row["score"] <= 1 and row["of today"] for row in first["rows"])
    assert (path.parent / "figure.svg").stat().st_size > 5_000
    # Finished runs are read, and give the same.
    runs = sorted(run.name for run in (tmp_path / "runs").iterdir())
    assert runs == ["figure4a_2026_mingru_1_4_smoke", "figure4b_2026_mingru_1_4_smoke"]
    assert main([*command, "--resume"]) == 0
    again = json.loads(path.read_text())
    assert again["rows"] == first["rows"]
