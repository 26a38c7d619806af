"""Logs of losses: the numbers of the run, none twice, also after an interruption."""

import sys
import types

import numpy as np
import pytest
import stored
from killable import STEPS, train

import underhood as uh
from underhood.training import logs

pytestmark = pytest.mark.usefixtures("unhooked", "cache")


def table(path):
    header, *rows = path.read_text().splitlines()
    assert header == "step,member,loss"
    return [(int(step), int(member), float(loss)) for step, member, loss in map(split, rows)]


def split(row):
    return row.split(",")


def expected_rows(run):
    """Steps and members in the order of the rows, and their losses."""
    pairs = [(int(step), member) for step in run.steps for member in (0, 1)]
    return pairs, run.losses.T.ravel()


def test_a_csv_file_has_the_curves_of_the_run(straight, cache, tmp_path):
    stored.assert_same(train(log=tmp_path / "losses.csv"), straight)
    rows, (pairs, losses) = table(tmp_path / "losses.csv"), expected_rows(straight)
    assert [row[:2] for row in rows] == pairs and rows[-1][0] == STEPS
    np.testing.assert_allclose([row[2] for row in rows], losses, rtol=1e-8)
    with pytest.raises(uh.BadInput, match="holds another run; remove it"):
        train(log=tmp_path / "losses.csv")


def test_after_ctrl_c_no_step_is_logged_twice(straight, cache, monkeypatch, tmp_path):
    log, seen = tmp_path / "losses.csv", []
    stored.chunks_of(monkeypatch, 1e9)
    stored.interrupted(monkeypatch, 4, out=tmp_path / "run", log=log)
    before = table(log)
    assert 0 < before[-1][0] <= 585
    # A kill while a row is written, or before it: the checkpoint knows better.
    log.write_text(log.read_text()[:-9] + "\n700,0,1\n701")
    train(out=tmp_path / "run", log=log)
    rows, (pairs, _) = table(log), expected_rows(straight)
    assert [row[:2] for row in rows] == pairs and rows[: len(before)] == before
    # A finished run is read and logs nothing.
    train(out=tmp_path / "run", log=lambda step, losses: seen.append(step))
    assert not seen


def test_a_function_hears_every_window_once(straight, cache, monkeypatch, tmp_path):
    heard = []
    stored.chunks_of(monkeypatch, 1e9)
    log = lambda step, losses: heard.append((step, losses))  # noqa: E731
    stored.interrupted(monkeypatch, 4, out=tmp_path, log=log)
    train(out=tmp_path, log=log)
    assert [step for step, _ in heard] == straight.steps.tolist()
    np.testing.assert_array_equal(np.array([losses for _, losses in heard]).T, straight.losses)


class Writer:
    """Stands for a SummaryWriter, which the tests have no package for."""

    made: list["Writer"] = []  # noqa: RUF012

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.scalars, self.closed = folder, purge_step, [], False
        self.made.append(self)

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def flush(self):
        pass

    def close(self):
        self.closed = True


def test_tensorboard_gets_a_curve_per_member(straight, cache, monkeypatch, tmp_path):
    module = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    train(log=tmp_path / "board")
    [writer] = Writer.made
    assert writer.closed and writer.purge_step == 1 and writer.folder == str(tmp_path / "board")
    for member in (0, 1):
        curve = [(value, step) for tag, value, step in writer.scalars if tag == f"loss/{member}"]
        assert [step for _, step in curve] == straight.steps.tolist()
        np.testing.assert_array_equal([value for value, _ in curve], straight.losses[member])


def test_wrong_logs_are_refused_before_training(monkeypatch, tmp_path):
    monkeypatch.setattr(logs, "WRITERS", ("no_such_package",))
    (tmp_path / "notes.csv").write_text("mine\n")
    (tmp_path / "notes").write_text("mine\n")
    for log, reason in (
        (3, "log is 3; give a path that ends in .csv"),
        ("", "log is ''"),
        (tmp_path / "board", "needs the package tensorboardX"),
        (tmp_path / "notes", "is a file"),
        (tmp_path / "notes.csv", "is not a log of losses"),
        (tmp_path / "nowhere/losses.csv", "does not exist; make it first"),
    ):
        with pytest.raises(uh.BadInput, match=reason):
            train(log=log)
    assert (tmp_path / "notes.csv").read_text() == "mine\n"
