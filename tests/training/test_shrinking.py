"""Students that shrink between two recipes: the function stays, runs resume, others are refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stored
from killable import make_student, make_task

import underhood as uh
from underhood.common.decay import NU_ONE, NU_ZERO
from underhood.training import Exponential
from underhood.training.second_order.examples import sample
from underhood.training.second_order.stages import TOKENS
from underhood.training.shrinking.cutting import Activity, shrink
from underhood.training.shrinking.settled_loss import SettledLoss

PLAN = uh.Shrinking(uh.Recipe.fast(20, batch=4), uh.Recipe.fast(30, batch=4), tolerance=0.05)
# The second recipe with exact gradients over a fixed set of sequences.
EXACT = uh.Shrinking(PLAN.wide, PLAN.narrow, tolerance=0.05, sequences=100)


def train(plan=PLAN, *, task=None, **changes):
    settings = {"widths": 6, "key": jax.random.key(0), "progress": False}
    return uh.train(make_student, task or make_task(), plan, **(settings | changes))


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


def gated_student(width, *, key, d=2):
    return uh.GatedRNN.init(d_in=d, hidden=width, gated=width, d_out=d, key=key)


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


SETTLED = {
    "gated": (
        lambda: uh.GatedRNN.init(d_in=2, hidden=6, gated=5, d_out=2, key=jax.random.key(4)),
        uh.tasks.TeacherStudent.random(2, length=12, key=jax.random.key(5)),
    ),
    "side gate": (
        lambda: uh.SideGatedRNN.init(d_in=2, hidden=6, d_out=2, key=jax.random.key(4)),
        uh.tasks.TeacherStudent.random(2, length=12, key=jax.random.key(5)),
    ),
    "the last token counts": (
        lambda: uh.GatedRNN.init(d_in=3, hidden=6, gated=5, d_out=1, key=jax.random.key(4)),
        uh.tasks.InContextRegression(d_x=2, d_y=1, pairs=4),
    ),
}


@pytest.mark.parametrize("case", SETTLED)
def test_the_settled_loss_and_its_gradient_are_those_of_the_sequences(case) -> None:
    make, task = SETTLED[case]
    key, decay = jax.random.key(6), np.array([0, 1, 1, 0, 1, 0])
    data = sample(task, key, 700, TOKENS)
    with jax.enable_x64(True):
        student = jax.tree.map(lambda leaf: np.asarray(leaf, float), make())
        nu = np.where(decay == 1, NU_ONE, NU_ZERO)
        student = eqx.tree_at(lambda m: m.nu, student, nu)
        settled = SettledLoss.of(task, sequences=700, key=key, precision="float64")

        def loss_on_sequences(student):
            outputs = jax.vmap(student)(data.tokens).swapaxes(0, 1)
            flat = outputs.reshape(-1, task.d_out)[data.places]
            return 0.5 * jnp.mean((flat - data.targets) ** 2)

        loss, slopes = jax.jit(jax.value_and_grad(settled))(student)
        reference = jax.jit(jax.value_and_grad(loss_on_sequences))
        expected, expected_slopes = reference(student)
        np.testing.assert_allclose(loss, expected, rtol=1e-10)
        assert not np.any(slopes.nu)
        for name in set(vars(student)) - {"nu"}:
            ours, theirs = getattr(slopes, name), getattr(expected_slopes, name)
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9, err_msg=name)


def test_each_teacher_has_a_set_of_its_own() -> None:
    teachers = [make_task(seed).attention for seed in (0, 1)]
    plan = uh.Shrinking(PLAN.wide, PLAN.narrow, tolerance=0, sequences=100)
    together = train(plan, axes={"teacher": teachers})
    for number, model in enumerate(together.models):
        task = uh.tasks.TeacherStudent(teachers[number], length=4)
        alone = train(plan, task=task).models[0]
        for ours, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_exact_gradients_reach_a_small_loss_in_few_updates() -> None:
    task = uh.tasks.TeacherStudent.random(2, length=8, key=jax.random.key(2))
    run = uh.train(
        gated_student,
        task,
        uh.Shrinking.fast(20_000, sequences=200),
        widths=20,
        key=jax.random.key(0),
        progress=False,
    )
    assert run.rows[0]["loss"] < 1e-9 * task.scale


@pytest.mark.parametrize("plan", [PLAN, EXACT])
def test_a_run_is_stored_and_goes_on_after_ctrl_c(plan, monkeypatch, tmp_path) -> None:
    straight = train(plan, out=tmp_path / "straight")
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
            train(plan, out=out, progress=stop)
        stored.assert_same(train(plan, out=out), straight)


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


def recalling_student(width, *, key):
    return uh.GatedRNN.init(d_in=4, hidden=width, gated=width, d_out=2, key=key)


def nine_inputs(width, *, key):
    return gated_student(width, key=key, d=9)


REFUSED = {
    "cannot shrink an LRU; give a GatedRNN or a SideGatedRNN": lambda: uh.train(
        linear_student, make_task(), PLAN, widths=4, key=jax.random.key(0)
    ),
    "the axis learning_rate changes one Recipe": lambda: train(axes={"learning_rate": [0.1]}),
    "log= follows one Recipe": lambda: train(log=lambda step, losses: None),
    "settle is 0.7; give 0.5 or less": lambda: uh.Shrinking(PLAN.wide, PLAN.narrow, settle=0.7),
    "sequences needs every decay at 0 or 1; use settle=0.5": lambda: uh.Shrinking(
        PLAN.wide, PLAN.narrow, settle=0.4, sequences=100
    ),
    "58 sequences are too few to decide 78 coefficients; give sequences=59 or more": lambda: train(
        uh.Shrinking(PLAN.wide, PLAN.narrow, sequences=58)
    ),
    "at most 8 inputs and the task has 9": lambda: uh.train(
        nine_inputs,
        uh.tasks.TeacherStudent.random(9, key=jax.random.key(0)),
        EXACT,
        widths=4,
        key=jax.random.key(0),
    ),
    "sequences= is for squared errors, but AssociativeRecall has a different loss": lambda: (
        uh.train(
            recalling_student,
            uh.tasks.AssociativeRecall(symbols=2),
            EXACT,
            widths=4,
            key=jax.random.key(0),
        )
    ),
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
