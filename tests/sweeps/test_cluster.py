"""Sweeps on a real scheduler and real worker processes, and what happens when they die.

What takes longer is left to `make chaos`, here and in test_faults.py.
"""

import asyncio
import dataclasses
import json
import subprocess
import sys
from functools import partial

import jax
import numpy as np
import pytest
import swept

import underhood as uh
from underhood.experiments.running.runner import run_all
from underhood.sweeps.dask.cluster import Cluster
from underhood.sweeps.dask.dispatch import DIED, Call, Dispatcher, Job, Lost
from underhood.sweeps.engines import Local, UnitOutcome
from underhood.sweeps.store import Store
from underhood.sweeps.sweeping import sweep, train_in_units
from underhood.sweeps.units import plan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    with Cluster(count=2).opened() as opened:
        yield opened


def test_a_study_of_24_units_is_the_local_one(cluster, tmp_path) -> None:
    study = swept.small_study()
    here = sweep(study, tmp_path / "local", Local(), most=1)
    there = sweep(study, tmp_path / "dask", cluster, most=1)
    assert here.done == there.done == swept.UNITS and there.complete
    swept.all_there_once(tmp_path / "dask", study)
    losses, expected = swept.losses_in(tmp_path / "dask"), swept.losses_in(tmp_path / "local")
    assert losses.keys() == expected.keys() and len(set(expected.values())) == swept.UNITS
    for address, loss in losses.items():
        assert loss == pytest.approx(expected[address], rel=1e-6)
    # What one engine has finished the other does not do again.
    again = sweep(study, tmp_path / "dask", Local())
    assert (again.before, again.done) == (swept.UNITS, 0)


def test_studies_side_by_side_get_their_own_results(cluster, tmp_path) -> None:
    made = [dataclasses.replace(swept.small_study(seeds=3), key=key) for key in range(7, 10)]

    swept.all_at_once(
        partial(sweep, study, tmp_path / str(study.key), cluster, most=1) for study in made
    )
    for study in made:
        swept.all_there_once(tmp_path / str(study.key), study)


def test_a_run_that_workers_train_is_the_one_that_train_gives(cluster, tmp_path) -> None:
    study = swept.study_of(widths=(2,), axes={"learning_rate": (1e-3, 1e-2)})
    ticks = []
    run = cluster.train(study, tmp_path / "there", lambda done, of: ticks.append(done / of))
    expected = Local().train(study, tmp_path / "here", lambda done, of: None)
    assert len(run.rows) == len(expected.rows) == 6
    for row, other in zip(run.rows, expected.rows, strict=True):
        assert row.keys() == other.keys() and row["lost_at"] is other["lost_at"] is None
        del row["lost_at"], other["lost_at"]
        assert row == pytest.approx(other, rel=1e-6)
    np.testing.assert_array_equal(run.losses, expected.losses)
    assert ticks == sorted(ticks) and ticks[-1] == 1.0
    assert not (tmp_path / "there" / "sweep").exists()
    # And `train` itself finds its own settings there, and nothing left to do.
    options = {"widths": (2,), "seeds": 3, "axes": study.axes, "key": jax.random.key(0)}
    options |= {"out": tmp_path / "there", "progress": False}
    again = uh.train(swept.gated, swept.TASK, swept.RECIPE, **options)
    np.testing.assert_array_equal(again.losses, run.losses)


def test_a_sweep_that_is_left_does_not_keep_the_workers_busy(cluster, tmp_path) -> None:
    study = swept.small_study(seeds=3)
    outcomes = cluster.run(study, plan(study, workers=3), Store(tmp_path), lambda *_: None)
    next(outcomes)
    outcomes.close()
    # The next sweep finds nothing of it in its way, and nothing is left when that ends.
    assert sweep(study, tmp_path, cluster, most=1).complete
    assert not cluster.dispatcher.flying and not cluster.dispatcher.waiting


@pytest.mark.chaos
def test_workers_and_the_scheduler_are_killed(tmp_path) -> None:
    study = swept.small_study()

    def killer(cluster, stop):
        for name in ("worker-0", "worker-1", "scheduler", "worker-0"):
            if stop.wait(0.9):
                return
            swept.kill(cluster, name)

    with Cluster(count=2, work=swept.tiny).opened() as cluster:
        with swept.beside(killer, cluster):
            done = sweep(study, tmp_path, cluster, most=1)
        restarts = cluster.processes.restarts
    assert done.complete and restarts >= 2
    swept.all_tiny_there_once(tmp_path, study)


def test_units_that_always_fail_are_reported_and_the_rest_completes(tmp_path) -> None:
    study = swept.small_study(seeds=10)
    with Cluster(count=2, work=swept.crashing, rounds=3).opened() as cluster:
        done = sweep(study, tmp_path, cluster, most=1)
    reasons = {unit.seeds[0]: reason for unit, reason in done.failed.items()}
    died = "its worker died every time it was tried"
    assert reasons == {5: died, 7: "ValueError: seven is not wanted"}
    swept.all_tiny_there_once(tmp_path, study, without=2)


@pytest.mark.chaos
def test_experiments_on_workers_give_the_same_results(tmp_path) -> None:
    # A process of its own, because checked functions, as all are in tests, cannot travel.
    words = "reproduce figure3b optimal_step --scale smoke --out there --engine dask --workers 2"
    command = [sys.executable, "-m", "underhood", *words.split()]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, **options)
    assert done.returncode == 0 and "2 of 2 experiments" in done.stdout, done.stderr
    (expected,) = run_all(["figure3b"], "smoke", None, tmp_path / "here").results
    result = json.loads((tmp_path / "there" / "figure3b" / "result.json").read_text())
    assert result["verdict"] == expected["verdict"]
    for number, local in zip(result["numbers"], expected["numbers"], strict=True):
        assert (number["value"], number["verdict"]) == (local["value"], local["verdict"])
    for row, other in zip(result["rows"], expected["rows"], strict=True):
        assert row["compute it"] == other["compute it"]
        assert row["median"] == pytest.approx(other["median"], rel=1e-4)
    # What workers have trained is a run like any other: the local engine reads it.
    again = run_all(["figure3b"], "smoke", None, tmp_path / "there")
    assert again.results[0]["numbers"] == result["numbers"]


class Broken:
    """An engine that cannot train."""

    workers, memory, concurrent, deadline = 1, None, True, None

    def run(self, study, units, store, tell):
        for unit in units:
            yield UnitOutcome(unit, None, "not today")

    def train(self, study, folder, progress):
        return train_in_units(self, study, folder, progress)


def test_an_experiment_whose_units_fail_does_not_stop_the_others(tmp_path, capsys) -> None:
    names = ["figure3b", "figure3c"]
    assert run_all(names, "smoke", None, tmp_path, engine=Broken()).results == []
    said = capsys.readouterr().err
    for name in names:
        assert f"{name} failed" in said
    assert said.count("units failed, the first, student") == 2 and "not today" in said


class Gone:
    """A future whose result was there, until its worker died."""

    status = "finished"

    def __init__(self, error: BaseException):
        self.error = error

    def result(self, timeout):
        raise self.error


def test_a_result_that_dies_with_its_worker_is_computed_again() -> None:
    from distributed.scheduler import KilledWorker

    dispatcher = Dispatcher(lambda: None, retries=2, rounds=5, needs={})
    (unit, *_) = plan(swept.small_study(seeds=1))
    job = Job(Call(b"", lambda *_: None), unit)
    died = dispatcher.outcome_of(Gone(KilledWorker("unit", None, 0)), job)
    assert died.files is None and died.reason == DIED and dispatcher.again(job, died.reason)
    # As it is when the scheduler had it computed again elsewhere, and there it raises.
    raised = dispatcher.outcome_of(Gone(ValueError("no")), job)
    assert raised.reason == "ValueError: no"
    with pytest.raises(Lost):
        dispatcher.outcome_of(Gone(asyncio.CancelledError()), job)
    with pytest.raises(TimeoutError):
        dispatcher.outcome_of(Gone(TimeoutError()), job)
