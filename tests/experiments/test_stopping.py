"""Stopping at a deadline: what is finished has its result, and the same call goes on."""

import dataclasses
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

from underhood.cli.entry import main
from underhood.experiments.protocols.students import Protocol, StudentPlan
from underhood.experiments.registry import EXPERIMENTS, SCALES, Experiment
from underhood.experiments.running import rules, runner
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.planning import plan_experiments, plan_rows, plan_words
from underhood.experiments.running.runner import run_all
from underhood.experiments.running.setting import Setting, answers
from underhood.layers import GatedRNN
from underhood.sweeps.engines import Local
from underhood.tasks import TeacherStudent
from underhood.training import Recipe
from underhood.training.deadline import Deadline, OutOfTime
from underhood.training.storage.folder import checkpoints

TASK = TeacherStudent.random(2, length=4, key=jax.random.key(0))
STEPS = 40


def student(width, *, key):
    return GatedRNN.init(d_in=2, hidden=width, gated=width, d_out=2, key=key)


PLAN = StudentPlan("tiny", TASK, student, Protocol((3,), 2, Recipe(steps=STEPS, batch=2)), 1)


@dataclasses.dataclass(frozen=True)
class Counted(Deadline):
    """A deadline that is over after so many looks at it."""

    looks: list[int] = dataclasses.field(default_factory=list)

    @property
    def left(self) -> float:
        self.looks.append(1)
        return 1e9 if len(self.looks) < self.at else 0.0


class Concurrent(Local):
    concurrent = True


def outcome(_setting=None) -> Outcome:
    return Outcome(numbers=[rules.at_most("n", 0.5, 1.0, what="n", paper=1, seeds=4)])


@pytest.fixture
def made_up(monkeypatch):
    """Put other experiments in the places of all."""

    def put(**entries) -> None:
        monkeypatch.setattr(runner, "GRACE", 0.2)
        EXPERIMENTS.clear()
        for name, run in entries.items():
            made = run if isinstance(run, Experiment) else None
            EXPERIMENTS[name] = made or Experiment("is made up", run, dict.fromkeys(SCALES, 60))

    # Put back in their order, which commands show. `monkeypatch.delitem` would turn it around.
    everything = dict(EXPERIMENTS)
    yield put
    EXPERIMENTS.clear()
    EXPERIMENTS.update(everything)


def setting_of(folder, engine=None) -> Setting:
    return Setting("quick", None, folder, lambda done, total: None, engine or Local())


def test_training_stops_with_a_checkpoint_and_goes_on_to_the_same_students(tmp_path) -> None:
    # The first looks are before training and after the first chunk, a single step.
    with pytest.raises(OutOfTime, match=r"stopped after step \d+ of 40"):
        PLAN.train(setting_of(tmp_path, Local(Counted(3))))
    folder = tmp_path / "runs/tiny_quick"
    assert 0 < int(checkpoints(folder)[0].stem) < STEPS
    with pytest.raises(OutOfTime, match="not begun"):
        PLAN.train(setting_of(tmp_path, Local(Counted(1))))
    students = PLAN.train(setting_of(tmp_path))
    straight = PLAN.train(setting_of(tmp_path / "straight"))
    np.testing.assert_array_equal(students.run.losses, straight.run.losses)
    # A finished run needs no time.
    assert PLAN.train(setting_of(tmp_path, Local(Counted(1)))).run.rows == straight.run.rows


@pytest.mark.parametrize("concurrent", [False, True])
def test_what_is_finished_is_written_and_the_rest_is_named(
    concurrent, tmp_path, capsys, made_up
) -> None:
    over, never = Deadline.after(0.6), threading.Event()

    def stops(_setting):
        raise OutOfTime("stopped after step 3 of 9")

    made_up(table1=outcome, table2=stops, table3=lambda _setting: never.wait(20), reverse=outcome)
    engine = (Concurrent if concurrent else Local)(over)
    names = ["table1", "table2", "table3", "reverse"]
    ran = run_all(names, "quick", None, tmp_path, engine=engine)
    never.set()
    done = ["table1", "reverse"] if concurrent else ["table1"]
    assert [result["experiment"] for result in ran.results] == done
    assert sorted([*ran.unfinished, *done]) == sorted(names)
    assert (tmp_path / "table1/result.json").exists()
    said = capsys.readouterr().err
    assert "table2: out of time (stopped after step 3 of 9)" in said
    assert "table3: out of time (it was still busy)" in said


def test_nothing_begins_after_the_deadline(tmp_path, made_up) -> None:
    made_up(table1=lambda _setting: pytest.fail("it began"))
    ran = run_all(["table1"], "quick", None, tmp_path, engine=Local(Deadline.after(-1)))
    assert (ran.results, ran.unfinished) == ([], ["table1"])


def test_parts_that_run_out_of_time_are_all_waited_for() -> None:
    ended = []

    def part(name, error=None):
        def call():
            ended.append(name)
            if error is not None:
                raise error
            return name

        return call

    calls = {"a": part("a", OutOfTime("a")), "b": part("b"), "c": part("c", OutOfTime("c"))}
    with pytest.raises(OutOfTime):
        list(answers(calls, concurrent=True))
    assert sorted(ended) == ["a", "b", "c"]


@pytest.mark.usefixtures("unhooked")
def test_the_command_says_so_and_ends_with_status_75(tmp_path, capsys, made_up) -> None:
    def stops(_setting):
        raise OutOfTime("stopped after step 3 of 9")

    made_up(table1=stops)
    command = ["reproduce", "table1", "--scale", "paper", "--out", str(tmp_path / "out")]
    assert main([*command, "--stop-after", "5m"]) == 75
    said = capsys.readouterr().out
    assert "Out of time: table1. The same command goes on." in said
    # At paper scale the plan comes first.
    assert "about 60 s on one H200, one run after the other." in said
    assert main([*command, "--stop-after", "soon"]) == 2
    assert "--stop-after is 'soon'; give a duration" in capsys.readouterr().err
    assert main([*command, "--stop-after", "5m", "--engine", "dask", "--workers", "1"]) == 2
    assert "--stop-after is for --engine local or processes" in capsys.readouterr().err


def test_a_plan_knows_what_is_finished_and_what_is_begun(tmp_path, capsys, made_up) -> None:
    protocol = dataclasses.replace(PLAN.protocol, recipe=Recipe(steps=120, batch=2))
    long = dataclasses.replace(PLAN, name="long", protocol=protocol)

    def studies(*plans):
        return lambda setting: {plan.name: plan.studies(setting)[plan.name] for plan in plans}

    budget = {"paper": 1000}
    made_up(
        table1=Experiment("is made up", outcome, budget, studies(PLAN, long), judged=200),
        figure2=Experiment("is made up", outcome, budget, studies(PLAN), judged=300),
        reverse=outcome,
    )

    def plan(*names):
        return plan_experiments(names, "paper", None, tmp_path)

    first, second, third = plan("table1", "figure2", "reverse")
    # 40 and 120 updates share 800 seconds; the run of 40 counts for table1.
    assert [round(run.seconds) for run in first.runs] == [200, 600]
    assert (first.seconds, second.seconds, third.seconds) == (1000, 300, 60)
    assert second.words() == "1 run shared with those above" and third.words() == "no runs"
    # Alone, figure2 has to train it.
    (alone,) = plan("figure2")
    assert alone.seconds == 500 and alone.words() == "0 of 1 run finished"
    (tmp_path / "runs/tiny_paper").mkdir(parents=True)
    (tmp_path / "runs/tiny_paper/members.json").touch()
    (tmp_path / "runs/long_paper/checkpoints").mkdir(parents=True)
    (tmp_path / "runs/long_paper/checkpoints/0000000090.safetensors").touch()
    (now,) = plan("table1")
    assert now.words() == "1 of 2 runs finished, 1 begun"
    assert now.seconds == pytest.approx(200 + 600 / 4)
    rows = plan_rows([now])
    assert [row["seconds"] for row in rows] == [350, 150]
    assert rows[1]["what"] == "  long: 2 students, 120 updates, 90 made"
    assert plan_words([now], "paper", 3).endswith("; 3 processes share the device.")
    command = ["reproduce", "table1", "--scale", "paper", "--out", str(tmp_path), "--plan"]
    assert main(command) == 0
    assert "1 of 2 runs finished, 1 begun" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


JOB = """
import runpy, sys
for name in ("tyro", "rich", "jinja2", "sympy", "dask", "distributed", "cloudpickle"):
    sys.modules[name] = None
sys.argv = ["job", *sys.argv[1:]]
runpy.run_module("underhood.experiments", run_name="__main__")
"""


def test_a_job_needs_few_packages(tmp_path) -> None:
    words = ["lstm_weights", "--scale", "smoke", "--stop-after", "5m", "--out"]
    command = [sys.executable, "-c", JOB, *words, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "lstm_weights: not judged" in done.stdout
    assert (tmp_path / "lstm_weights/result.json").exists()
    command = [sys.executable, "-c", JOB, "lstm_wights"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "Did you mean 'lstm_weights'?" in done.stderr
