"""Students that shrink between two recipes: the function stays, runs resume, others are refused."""

import equinox as eqx
import jax
import numpy as np
import pytest
import stored
from killable import make_student, make_task

import underhood as uh
from underhood.training import Exponential
from underhood.training.shrinking.cutting import Activity, shrink

PLAN = uh.Shrinking(uh.Recipe.fast(20, batch=4), uh.Recipe.fast(30, batch=4), tolerance=0.05)


def train(plan=PLAN, **changes):
    settings = {"widths": 6, "key": jax.random.key(0), "progress": False}
    return uh.train(make_student, make_task(), plan, **(settings | changes))


def with_idle_parts(student, idle):
    """The same student; neurons from `idle` on are not read, and gate outputs are not used."""
    if isinstance(student, uh.SideGatedRNN):
        return eqx.tree_at(
            lambda m: m.D, student, np.asarray(student.D).copy() * mask(student, idle)
        )
    fields = (student.W_out_m * mask(student, idle), student.W_out_x * mask(student, idle))
    student = eqx.tree_at(lambda m: [m.W_out_m, m.W_out_x], student, list(fields))
    return eqx.tree_at(lambda m: m.D, student, student.D * mask(student, idle))


def mask(student, idle):
    return (np.arange(student.neurons) < idle).astype(np.float32)


def side_student(width, *, key):
    return uh.SideGatedRNN.init(d_in=2, hidden=width, d_out=2, key=key)


@pytest.mark.parametrize("make", [make_student, side_student])
@pytest.mark.parametrize("settle", [0.0, 0.3])
def test_idle_parts_go_and_the_function_stays(make, settle) -> None:
    student, task = with_idle_parts(make(10, key=jax.random.key(3)), 3), make_task()
    plan = uh.Shrinking(PLAN.wide, PLAN.narrow, tolerance=1e-6, settle=settle)
    (small,), (note,) = shrink([student], [task], plan, key=jax.random.key(0))
    assert note["needed"] == [3, 3]
    # Widths are multiples of four.
    assert (small.neurons, small.gate_width) == (4, 4)
    assert note["change"] < 1e-6
    near = np.minimum(student.decay, 1 - student.decay)[:4] <= settle
    assert note["settled"] == near.sum()
    assert np.all(np.isin(small.decay[near], [0.0, 1.0]))
    if settle == 0:
        xs = jax.random.normal(jax.random.key(1), (5, 2))
        np.testing.assert_allclose(small(xs), student(xs), rtol=1e-4, atol=1e-5)


def test_the_measured_outputs_and_influences_are_those_of_the_layer() -> None:
    student = make_student(5, key=jax.random.key(1))
    xs = np.asarray(jax.random.normal(jax.random.key(2), (3, 4, 2)))
    activity = Activity.of(student, xs, last=False)
    everything = activity.outputs(np.arange(5), np.arange(5))
    expected = np.asarray(jax.vmap(student)(xs)).reshape(-1, 2)
    np.testing.assert_allclose(everything, expected, rtol=1e-4, atol=1e-4)
    for part in range(5):
        rest = np.delete(np.arange(5), part)
        for influences, kept in zip(
            activity.influences(), ((rest, np.arange(5)), (np.arange(5), rest)), strict=True
        ):
            moved = np.sum(np.mean((activity.outputs(*kept) - everything) ** 2, axis=0))
            assert influences[part] == pytest.approx(moved)


def test_members_of_one_width_share_the_largest_that_one_needs() -> None:
    plan = uh.Shrinking(PLAN.wide, PLAN.narrow, tolerance=1e-6)
    makers = [with_idle_parts(make_student(10, key=jax.random.key(3)), idle) for idle in (2, 7)]
    small, notes = shrink(makers, [make_task()] * 2, plan, key=jax.random.key(0))
    assert [note["needed"] for note in notes] == [[2, 2], [7, 7]]
    assert [student.neurons for student in small] == [8, 8]


def test_a_run_is_stored_and_goes_on_after_ctrl_c(monkeypatch, tmp_path) -> None:
    straight = train(out=tmp_path / "straight")
    assert straight.steps[-1] == PLAN.steps
    assert straight.losses.shape == (1, PLAN.steps)
    assert straight.provenance["wide"]["shrunk"][0]["change"] <= PLAN.tolerance
    assert straight.rows[0]["neurons"] == straight.models[0].neurons
    stored.assert_same(uh.Run.load(tmp_path / "straight"), straight)
    for chunk in (2, 6):
        out = tmp_path / str(chunk)
        stored.chunks_of(monkeypatch, 1e9)
        done = []

        def stop(step, steps, chunk=chunk, done=done):
            done.append(step)
            if len(done) == chunk:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(out=out, progress=stop)
        stored.assert_same(train(out=out), straight)


def test_progress_counts_the_steps_of_both_recipes() -> None:
    calls = []
    train(progress=lambda *call: calls.append(call))
    assert calls[-1] == (PLAN.steps, PLAN.steps)
    assert {steps for _, steps in calls} == {PLAN.steps}


def test_a_lost_member_stays_lost_and_spoils_no_other() -> None:
    teachers = [
        make_task().attention,
        uh.LinearAttention(*(np.full((2, 2), np.float32(1e15)),) * 3),
    ]
    run = train(axes={"teacher": teachers})
    assert run.rows[0]["lost_at"] is None
    assert np.isfinite(run.rows[0]["loss"])
    assert (run.rows[1]["lost_at"], run.rows[1]["loss"]) == (0, None)


def linear_student(width, *, key):
    return uh.LRU.init(d_in=2, hidden=width, d_out=2, key=key)


REFUSED = {
    "cannot shrink a LRU; give a GatedRNN or a SideGatedRNN": lambda: uh.train(
        linear_student, make_task(), PLAN, widths=4, key=jax.random.key(0)
    ),
    "the axis learning_rate changes one Recipe": lambda: train(axes={"learning_rate": [0.1]}),
    "log= follows one Recipe": lambda: train(log=lambda step, losses: None),
    "settle is 0.7; give 0.5 or less": lambda: uh.Shrinking(PLAN.wide, PLAN.narrow, settle=0.7),
    "tolerance is -1": lambda: uh.Shrinking(PLAN.wide, PLAN.narrow, tolerance=-1),
    "different precisions": lambda: uh.Shrinking(PLAN.wide, uh.Recipe(3, precision="float64")),
    "Exponential needs 0 < end": lambda: Exponential(0.0),
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_refused_in_one_line(words) -> None:
    with pytest.raises(uh.BadInput, match=words.replace("(", r"\(")) as refusal:
        REFUSED[words]()
    assert "\n" not in str(refusal.value)


def test_a_folder_of_another_run_is_refused_before_any_work(tmp_path) -> None:
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(uh.BadInput, match="holds a run of one Recipe; choose another folder"):
        train(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]
