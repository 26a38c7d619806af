"""underhood discover: from random weights to the teacher's attention, and what it refuses."""

import html
import json
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import underhood as uh
from underhood.cli.commands import COMMANDS
from underhood.cli.discover.command import Discover
from underhood.cli.discover.training import advice, starting_decay
from underhood.cli.entry import main
from underhood.report.loss_curve import CURVE_COLUMNS, CURVE_ROWS, LossCurve, curve_rows

SMALL = ["discover", "--d", "2", "--neurons", "8", "--length", "8"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_random_student_becomes_its_teacher_and_a_seed_repeats(capsys) -> None:
    assert main(SMALL) == 0
    said = capsys.readouterr().out
    assert "attention with 1 head" in said and "W_V, teacher" in said
    assert "8 → 5 neurons" in said and "attention up to" in said
    difference = said.split("largest difference of an entry: ")[1].split()[0]
    assert float(difference) < 1e-6
    assert Path("discover.png").stat().st_size > 10_000
    assert main([*SMALL, "--force"]) == 0
    assert capsys.readouterr().out == said


def test_json_has_both_attentions_and_the_picture_follows_its_ending(capsys) -> None:
    assert main([*SMALL, "--json", "--rank", "1", "--seed", "3", "--out", "x.svg"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["success"] and facts["verdict"] == "attention"
    for name in ("W_V", "M"):
        np.testing.assert_allclose(facts["student"][name], facts["teacher"][name], atol=1e-6)
        assert np.linalg.matrix_rank(facts["teacher"][name], tol=1e-5) == 1
    assert Path("x.svg").read_text().startswith("<?xml")


def test_heads_are_compared_one_by_one(capsys) -> None:
    words = ["discover", "--d", "3", "--neurons", "12", "--length", "8"]
    assert main([*words, "--heads", "2", "--html"]) == 0
    said, page = capsys.readouterr().out, Path("discover.html").read_text()
    assert "attention with 2 heads" in said
    for number in (1, 2):
        assert f"W_V of head {number}, teacher" in said and f"W_V of head {number}" in page
    assert float(said.split("largest difference of an entry: ")[1].split()[0]) < 1e-6


def test_a_page_holds_the_picture_and_what_is_printed(capsys) -> None:
    assert main([*SMALL, "--html"]) == 0
    said, page = capsys.readouterr().out, Path("discover.html").read_text()
    assert "picture: discover.html" in said and page.count("<svg") == 1
    for line in [*said.split("verdict")[0].split("\n")[:2], *said.split("verdict")[1].split("\n")]:
        assert html.escape(line.strip()) in page
    assert "$ underhood discover --d 2 --neurons 8 --length 8 --html" in page
    assert page.count('<span class="rows">') == 2
    assert "src=" not in page and "<script" not in page
    # The matrices are pictures inside the picture.
    assert "data:image/png" in page and "img-src data:" in page


def test_a_student_that_is_too_small_is_a_failure_with_a_picture(capsys) -> None:
    words = ["discover", "--d", "2", "--neurons", "2", "--length", "8", "--starts", "1"]
    assert main(words) == 1
    said = capsys.readouterr()
    assert "can need 5 neurons" in said.out
    assert "underhood: the student did not succeed: loss " in said.err
    assert "fewer than 5 neurons computes this teacher; use --neurons 5 or more.\n" in said.err
    assert Path("discover.png").stat().st_size > 10_000


def test_one_token_does_not_tell_memory_from_the_current_token(capsys) -> None:
    assert main(["discover", "--d", "2", "--neurons", "5", "--length", "1"]) == 1
    said = capsys.readouterr().err
    assert said.endswith("nothing tells memory from the current token; use --length 2 or more.\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"neurons": 13}, "no student with fewer than 14 neurons computes this teacher"),
        # r_V·r_M − k(k−1)/2 + r_M with r_V = r_M = 2 and k = 0.
        ({"neurons": 5, "rank": 2}, "no student with fewer than 6 neurons computes this teacher"),
        ({"neurons": 13, "heads": 2}, "a student can need 14 neurons here; use --neurons 14"),
        ({"neurons": 14}, "use more --starts or another --seed"),
        ({"neurons": 14, "method": "gradient"}, "use more --steps or --neurons"),
        ({"neurons": 13, "length": 1}, "use --length 2 or more"),
    ],
)
def test_advice_names_what_is_the_matter(options, words) -> None:
    asked = Discover(**options)
    assert words in advice(asked, asked.task(jax.random.key(0)))


def test_gradients_are_followed_by_polishing_and_the_output_says_so(capsys, monkeypatch) -> None:
    def untrained(ensemble):
        models = [student.joined() for student in ensemble.students]
        return uh.Run(({"loss": 1.0},), np.array([1, 2]), np.array([[2.0, 1.0]]), models)

    # Compiling the updates takes ten seconds, and other tests run them.
    monkeypatch.setattr("underhood.training.training.train_members", untrained)
    main([*SMALL, "--method", "gradient", "--steps", "300"])
    said = capsys.readouterr().out
    assert "after 300 updates by gradients" in said
    assert "polishing, which is further training by second-order steps" in said


def test_the_first_decays_are_those_that_fit_drew() -> None:
    options, key = Discover(d=2, neurons=8, starts=2), jax.random.key(1)
    task = uh.tasks.TeacherStudent.random(2, length=8, key=jax.random.key(0))
    result = uh.fit(options.student, task, key=key, width=8, restarts=2, progress=False)
    drawn = starting_decay(options, key, result.best_start.number)
    model = result.model
    # Neurons that nothing reads keep the weights they began with.
    unread = ~np.any(np.abs(model.W_out_m) + np.abs(model.W_out_x), axis=0)
    assert unread.any()
    distances = np.abs(np.asarray(model.decay)[unread][:, None] - drawn)
    assert np.all(distances.min(axis=1) < 1e-6)


def test_ctrl_c_ends_with_status_130_and_no_picture(capsys, monkeypatch) -> None:
    def press(display, start, step, loss):
        raise KeyboardInterrupt

    monkeypatch.setattr(LossCurve, "watch", press)
    assert main(SMALL) == 130
    assert capsys.readouterr().err.endswith("underhood: interrupted.\n")
    assert not list(Path().iterdir())


def test_ctrl_c_keeps_the_best_start_and_its_picture(capsys, monkeypatch) -> None:
    steps, watch = [], LossCurve.watch

    def press(display, start, step, loss):
        watch(display, start, step, loss)
        steps.append(step)
        if len(steps) == 6:
            # As a terminal does; the main thread hears it while it waits for the starts.
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.3)

    monkeypatch.setattr(LossCurve, "watch", press)
    # What runs the tests may have a handler of its own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["discover", "--d", "3", "--neurons", "9", "--length", "8"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr()
    assert "second-order steps" in said.out and "; interrupted\n" in said.out
    assert said.err.endswith("interrupted; discover.png shows the best start so far.\n")
    assert Path("discover.png").stat().st_size > 10_000


@pytest.mark.parametrize("pressed", ["decompile", "reduce"])
def test_ctrl_c_after_the_training_keeps_the_student(pressed, capsys, monkeypatch) -> None:
    whole, calls = getattr(uh, pressed), []

    def press(model):
        calls.append(model)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return whole(model)

    monkeypatch.setattr(uh, pressed, press)
    assert main(SMALL) == 130
    said = capsys.readouterr()
    assert "attention with 1 head" in said.out and "W_V, teacher" in said.out
    assert "not reduced, because of Ctrl-C" in said.out and "horizon" not in said.out
    assert said.err.endswith("interrupted; discover.png shows the student before it is reduced.\n")
    assert Path("discover.png").stat().st_size > 10_000


def test_an_interrupted_student_is_not_reduced(capsys, monkeypatch) -> None:
    def refuse(model):
        raise AssertionError("reducing an unfinished student can take minutes")

    fit = uh.training.fit
    monkeypatch.setattr(uh, "reduce", refuse)
    monkeypatch.setattr(
        "underhood.training.fit",
        lambda *given, **options: replace(fit(*given, **options), interrupted=True, loss=1.0),
    )
    assert main(SMALL) == 130
    assert "shows the best start so far" in capsys.readouterr().err


def test_titles_agree_with_the_verdict(monkeypatch) -> None:
    titles = {}

    def keep(page, *arguments, **options):
        parts = [page, *page.subfigs]
        texts = [part._suptitle.get_text() for part in parts if part._suptitle]
        titles["seen"] = texts + [axis.get_title() for axis in page.axes]

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
    main([*SMALL[:3], "--neurons", "2", "--length", "8", "--starts", "1", "--out", "a.png"])
    failed = " ".join(titles["seen"])
    assert "did not become attention" in failed
    for words in ("The loss falls", "find their memory", "It is the teacher's"):
        assert words not in failed
    main([*SMALL, "--out", "b.png"])
    for words in (
        "becomes attention",
        "The loss falls",
        "find their memory",
        "It is the teacher's",
    ):
        assert words in " ".join(titles["seen"])


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, 14),
        ({"rank": 2}, 6),
        ({"rank": 3}, 11),
        ({"rank": 1}, 2),
        ({"rank": 1, "heads": 3}, 6),
        ({"heads": 3}, 14),
    ],
)
def test_the_note_knows_the_rank(options, needed) -> None:
    few, enough = (Discover(neurons=n, **options).setting() for n in (needed - 1, needed))
    assert f"can need {needed} neurons" in few and "note" not in enough
    smallest = Discover(neurons=1, length=1).setting()
    assert "with 1 neuron and" in smallest and "1 token long" in smallest


REFUSED = {
    "--d 100000": "--d is 100000; give a whole number from 1 to 16",
    "--method gradient --d 65": "--d is 65; give a whole number from 1 to 64",
    "--neurons 100000": "--neurons is 100000; give a whole number from 1 to 1000",
    "--out /proc/a.png": "The folder /proc cannot be written to",
    "--d 0": "--d is 0; give a whole number from 1 to 16",
    "--d two": "--d needs a whole number",
    "--d 2 --rank 3": "--rank is 3; give a whole number from 1 to 2",
    "--rank 0": "--rank is 0",
    "--heads 0": "--heads is 0; give a whole number from 1 to 4",
    "--neurons 0": "--neurons is 0",
    "--length -1": "--length is -1",
    "--seed -1": "--seed is -1",
    "--starts 0": "--starts is 0",
    "--method adam": "Unknown method 'adam'; use one of second-order, gradient",
    "--steps 10": "--steps is for --method gradient",
    "--method gradient --steps 0": "--steps is 0",
    "--out there.png": "there.png exists; add --force",
    "--out absent/x.png": "The folder absent does not exist",
    "--out x.png --html": "--html writes a page; let --out x.png end in .html",
    "--out x.gif": "must end in one of .pdf, .svg, .png, .html",
    "--widht 3": "Unknown option --widht",
}


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("words", REFUSED)
def test_bad_options_are_one_line_and_nothing_is_written(words, capsys) -> None:
    Path("there.png").touch()
    assert main(["discover", *words.split()]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert REFUSED[words] in said.err
    assert [path.name for path in Path().iterdir()] == ["there.png"]
    assert Path("there.png").stat().st_size == 0


def test_the_curve_on_a_terminal_falls_from_corner_to_corner() -> None:
    rows = curve_rows(10.0 ** -np.arange(0, 41), 1e-40)
    assert len(rows) == CURVE_ROWS and all(len(row) == CURVE_COLUMNS for _, row in rows)
    assert (rows[0][0], rows[-1][0]) == ("1e+00", "1e-40")
    blank = chr(0x2800)
    assert rows[0][1][0] != blank and rows[-1][1][-1] != blank
    assert rows[0][1][-1] == blank == rows[-1][1][0]
    display = LossCurve(1e-16, shown=True)
    assert "made ready" in str(display.table())
    for start, loss in ((0, 1.0), (1, 2.0), (0, 0.0), (1, 1e-3)):
        display.watch(start, 0, loss)
    assert "start 0 (2 starts so far)" in str(display.table())


def test_the_command_is_listed() -> None:
    assert "attention" in COMMANDS["discover"]
