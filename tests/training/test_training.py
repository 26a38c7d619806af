"""Ensembles: every member trains as it would alone, padded or not, beside healthy and lost ones."""

import dataclasses
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compilation import compiled_for_users

import underhood as uh
from underhood.common.errors import BadInput
from underhood.tasks import AssociativeRecall, InContextRegression, TeacherStudent
from underhood.training import Adam, Constant, Cosine, Fade, evaluate, evaluation
from underhood.training.arrangement import MOST_PADDING, arrange, cut, group, mask_of, pad
from underhood.training.ensemble import SplitStudent, make_ensemble

KEY = jax.random.key(3)
D = 2
TASK = TeacherStudent.random(D, length=5, key=jax.random.key(0))
# float64, so that equal means equal: ten steps of float32 would already hide small mistakes.
RECIPE = uh.Recipe(
    steps=12,
    batch=4,
    learning_rate=1e-2,
    schedule=Cosine(end=0.1, warmup=0.2),
    weight_decay=1e-2,
    decay_schedule=Fade(0.3, 0.8),
    clip=1.0,
    precision="float64",
)


def gated(width, *, key, kind=uh.GatedRNN):
    return kind.init(d_in=D, hidden=width, gated=width + 1, d_out=D, key=key)


def train(make_student=gated, task=TASK, recipe=RECIPE, *, widths=4, key=KEY, **more):
    return uh.train(make_student, task, recipe, widths=widths, key=key, **more)


def assert_same(model, expected, tolerance=1e-9):
    assert jax.tree.structure(model) == jax.tree.structure(expected)
    arrays = (jax.tree.leaves(eqx.filter(tree, eqx.is_array)) for tree in (model, expected))
    for left, right in zip(*arrays, strict=True):
        assert left.shape == right.shape
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


# --- one member against a loop that anybody would write


@pytest.mark.usefixtures("unjudged")
def test_a_member_is_what_a_plain_loop_gives():
    run = train(seeds=[5])
    with jax.enable_x64(True):
        first, data = jax.random.split(jax.random.fold_in(KEY, 5))
        student = gated(4, key=first)
        spared = jax.tree.map(lambda _: True, student)
        spared = eqx.tree_at(lambda tree: tree.nu, spared, False)
        adam = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())
        moments = adam.init(student)
        losses = []
        for step in range(RECIPE.steps):
            xs, ys = TASK.sample(jax.random.fold_in(data, step), RECIPE.batch)

            def loss_of(student, xs=xs, ys=ys):
                return 0.5 * jnp.mean((jax.vmap(student)(xs) - ys) ** 2)

            loss, slopes = jax.value_and_grad(loss_of)(student)
            directions, moments = adam.update(slopes, moments)
            done = step / RECIPE.steps
            warm = (done - 0.2) / 0.8
            rate = 1e-2 * min(done / 0.2, 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * max(warm, 0))))
            faded = np.clip((done - 0.3) / 0.5, 0, 1)
            decay = 1e-2 * 0.5 * (1 + np.cos(np.pi * faded))
            student = jax.tree.map(
                lambda w, u, decays, rate=rate, decay=decay: w - rate * u - decays * decay * w,
                student,
                directions,
                spared,
            )
            losses.append(float(loss))
    assert_same(run.models[0], student)
    np.testing.assert_allclose(run.losses[0], losses, rtol=1e-9)
    assert run.steps.tolist() == list(range(1, RECIPE.steps + 1))


@pytest.mark.usefixtures("unjudged")
@pytest.mark.parametrize("decay", ["coupled", "optax"])
def test_weight_decay_is_what_optax_does(decay):
    recipe = RECIPE.change(clip=None, schedule=Cosine(end=1e-3), decay_schedule=Constant())
    run = train(recipe=recipe.change(decay=decay), seeds=[5])
    rates = optax.cosine_decay_schedule(1e-2, recipe.steps, 1e-3)
    with jax.enable_x64(True):
        first, data = jax.random.split(jax.random.fold_in(KEY, 5))
        student = gated(4, key=first)
        decays = eqx.tree_at(lambda tree: tree.nu, jax.tree.map(lambda _: True, student), False)
        theirs = {
            "coupled": optax.chain(optax.add_decayed_weights(1e-2, decays), optax.adam(rates)),
            "optax": optax.adamw(rates, weight_decay=1e-2, mask=decays),
        }[decay]
        moments = theirs.init(student)
        for step in range(recipe.steps):
            xs, ys = TASK.sample(jax.random.fold_in(data, step), recipe.batch)

            def loss_of(student, xs=xs, ys=ys):
                return 0.5 * jnp.mean((jax.vmap(student)(xs) - ys) ** 2)

            steps, moments = theirs.update(jax.grad(loss_of)(student), moments, student)
            student = optax.apply_updates(student, steps)
    assert_same(run.models[0], student)


def test_the_first_steps_of_a_recipe_are_its_first_steps(tmp_path):
    with jax.enable_x64(True):
        arranged = arrange(make_ensemble(gated, TASK, RECIPE, widths=4, key=KEY), lanes=1)
        (state,) = arranged.by_member(arranged.advance(arranged.first_states(), 0, 5))
        expected = arranged.ensemble.students[0].joined(state.weights)
    # Twice, because the second reads the recipe that the first has kept.
    for _ in range(2):
        assert_same(train(recipe=RECIPE.first(5), out=tmp_path).models[0], expected)
    with pytest.raises(BadInput, match="part"):
        RECIPE.first(13)


# --- members do not notice each other


def stacked_layers(kind, **more):
    def make_student(width, *, key):
        def layer(width, *, key):
            sizes = {} if kind in (uh.LSTM, uh.GRU) else {"d_out": width}
            return kind.init(d_in=width, hidden=width, key=key, **sizes, **more)

        return uh.Stack.init(layer, d_in=D, hidden=width, d_out=D, key=key)

    return make_student


PADDED = {
    "gated": gated,
    "dense": partial(gated, kind=uh.DenseGatedRNN),
    "side": lambda width, *, key: uh.SideGatedRNN.init(d_in=D, hidden=width, d_out=D, key=key),
    "attention": lambda width, *, key: uh.LinearAttention.init(d_in=D, d_k=width, key=key),
    "mamba": lambda width, *, key: uh.Mamba.init(d_in=D, hidden=width, d_out=D, key=key),
    "lstm": stacked_layers(uh.LSTM),
    "gru": stacked_layers(uh.GRU),
    "lru in-out": stacked_layers(uh.LRUInOut),
    # softplus(0) ≠ 0, so that padded neurons are not silent and only the mask keeps them unread.
    "lru mlp": stacked_layers(uh.LRUInOutMLP, activation="softplus"),
}


@pytest.fixture
def unjudged(monkeypatch):
    """Leave out the losses on fresh sequences, which compile a program for every width."""
    monkeypatch.setattr(evaluation, "evaluate", lambda *_, **__: {"loss": 1.0})


@pytest.mark.usefixtures("unjudged")
@pytest.mark.parametrize("name", PADDED)
def test_padded_members_train_as_if_alone(name):
    together = train(PADDED[name], widths=(2, 3), seeds=2, lanes=4)
    assert len(together.settings["grouping"]) == 1
    alone = train(PADDED[name], widths=(2, 3), seeds=2, lanes=1)
    assert len(alone.settings["grouping"]) == 4
    assert_same(together.models, alone.models)
    np.testing.assert_allclose(together.losses, alone.losses, rtol=1e-9)
    assert together.members["width"].tolist() == [2, 2, 3, 3]


@pytest.mark.usefixtures("unjudged")
@compiled_for_users()
def test_an_ensemble_equals_single_runs_in_float32():
    options = {"recipe": uh.Recipe.fast(steps=200, batch=8), "widths": (3, 5), "seeds": 3}
    together, alone = (train(**options, lanes=lanes) for lanes in (6, 1))
    for model, expected in zip(together.models, alone.models, strict=True):
        size = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(expected))
        assert_same(model, expected, 1e-5 * size)


def test_pad_and_cut_undo_each_other():
    weights = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(2)}
    shapes = ((4, 3), (5,))
    padded = pad(weights, shapes)
    assert [leaf.shape for leaf in jax.tree.leaves(padded)] == list(shapes)
    assert_same(cut(padded, ((2, 3), (2,))), weights)
    np.testing.assert_array_equal(mask_of(weights, shapes)["b"], [1, 1, 0, 0, 0])


def test_axes_equal_separate_runs():
    teachers = [TeacherStudent.random(D, key=jax.random.key(k)).attention for k in (1, 2)]
    axes = {"learning_rate": (1e-3, 1e-2), "weight_decay": (0.0, 0.1), "teacher": teachers}
    run = train(axes=axes, lanes=8)
    assert len(run.rows) == 8
    for row, model in list(zip(run.rows, run.models, strict=True))[1::3]:
        recipe = RECIPE.change(learning_rate=row["learning_rate"], weight_decay=row["weight_decay"])
        task = TeacherStudent(teachers[row["teacher"]], 5)
        alone = train(task=task, recipe=recipe)
        assert_same(model, alone.models[0])
        assert row["normalised_loss"] == pytest.approx(alone.rows[0]["normalised_loss"], rel=1e-6)


def test_every_width_may_have_a_rate_of_its_own():
    rates = {3: 1e-3, 4: 1e-2, 9: 1.0}
    axes = {"learning_rate": rates, "weight_decay": (0.0, 0.1)}
    run = train(widths=(4, 3), axes=axes, seeds=2, lanes=8)
    places = [(row["width"], row["learning_rate"], row["weight_decay"]) for row in run.rows[::2]]
    assert places == [(4, 1e-2, 0.0), (4, 1e-2, 0.1), (3, 1e-3, 0.0), (3, 1e-3, 0.1)]
    alone = train(widths=3, recipe=RECIPE.change(learning_rate=1e-3, weight_decay=0.1), seeds=[1])
    assert_same(run.models[-1], alone.models[0])


def test_a_lost_member_is_frozen_recorded_and_disturbs_nobody():
    rates = (1e-2, 1e200)
    recipe = RECIPE.change(clip=None)
    run = train(recipe=recipe, axes={"learning_rate": rates}, seeds=2, lanes=4)
    healthy = train(recipe=recipe, seeds=2, lanes=4)
    assert_same(run.models[:2], healthy.models)
    np.testing.assert_allclose(run.losses[:2], healthy.losses, rtol=1e-9)
    for number in (2, 3):
        lost_at = run.rows[number]["lost_at"]
        assert 0 < lost_at < recipe.steps
        assert np.all(np.isfinite(run.losses[number, :lost_at]))
        assert np.all(np.isnan(run.losses[number, lost_at:]))
        assert run.rows[number]["loss"] is None
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(run.models[number]))
    assert run.rows[0]["lost_at"] is None
    assert run.best() is run.models[int(np.argmin([row["loss"] for row in run.rows[:2]]))]
    assert "2 lost" in repr(run)
    with pytest.raises(uh.BadInput, match="All members of this run diverged"):
        dataclasses.replace(run, rows=run.rows[2:], models=run.models[2:]).best()


@pytest.mark.usefixtures("unhooked")
@compiled_for_users()
def test_the_same_call_twice_gives_the_same_bits():
    for lanes in (None, 4):
        # A key of the old kind is the same key.
        first, second = (
            train(seeds=2, widths=(2, 3), lanes=lanes, key=key)
            for key in (jax.random.PRNGKey(3), KEY)
        )
        assert first.rows == second.rows
        np.testing.assert_array_equal(first.losses, second.losses)
        for models in zip(first.models, second.models, strict=True):
            jax.tree.map(np.testing.assert_array_equal, *models)


def parts_of(*widths):
    return [SplitStudent.of(gated(width, key=KEY)) for width in widths]


def test_members_share_programs_up_to_a_limit_of_padding():
    assert group(parts_of(3, 4, 3), None) == ((0, 2, 1),)
    assert group(parts_of(3, 4, 3), 2) == ((0, 2), (1,))
    assert group(parts_of(2, 40), None) == ((0, 1),)
    small = [2] * 20
    assert group(parts_of(*small, 40), None) == (tuple(range(20)), (20,))
    assert MOST_PADDING == 8.0


@compiled_for_users()
def test_memory_is_predicted_and_groups_are_made_to_fit():
    ensemble = make_ensemble(gated, TASK, RECIPE, widths=4, seeds=8, key=KEY)
    with jax.enable_x64(True):
        whole = arrange(ensemble, lanes=8)
        assert [len(numbers) for numbers in whole.groups] == [8]
        program = whole.programs[0].memory_analysis()
        needed = program.argument_size_in_bytes + program.temp_size_in_bytes
        split = arrange(ensemble, lanes=8, memory=int(0.8 * needed)).groups
        assert len(split) > 1
        assert sorted(number for numbers in split for number in numbers) == list(range(8))
        with pytest.raises(uh.BadInput, match="reduce the recipe's batch or length"):
            arrange(ensemble, lanes=8, memory=1000)


# --- tasks and students of all kinds


@pytest.mark.parametrize(
    ("task", "d_in", "d_out"), [(InContextRegression(2, 1, 3), 3, 1), (AssociativeRecall(3), 6, 3)]
)
def test_tasks_that_read_the_last_output(task, d_in, d_out):
    def make_student(width, *, key):
        return uh.GatedRNN.init(d_in=d_in, hidden=width, gated=width, d_out=d_out, key=key)

    run = train(make_student, task, uh.Recipe.fast(steps=400, batch=32), widths=6, seeds=2)
    assert all(row["loss"] < task.zero_loss for row in run.rows)
    assert ("validation_loss" in run.rows[0]) == isinstance(task, InContextRegression)
    assert ("accuracy" in run.rows[0]) == isinstance(task, AssociativeRecall)


class Foreign(eqx.Module):
    """A student of somebody else's: a normalised window over the last two tokens."""

    A: jax.Array
    B: jax.Array
    calls: jax.Array
    name: str = "mine"

    @classmethod
    def init(cls, width, *, key):
        keys, sizes = jax.random.split(key), ((width, D), (D, width))
        weights = (jax.random.normal(k, s) for k, s in zip(keys, sizes, strict=True))
        return cls(*weights, jnp.asarray(2))

    def __call__(self, xs):
        hidden = jnp.tanh((xs + jnp.roll(xs, self.calls, axis=0)) @ self.A.T)
        return (hidden - jnp.mean(hidden, axis=1, keepdims=True)) @ self.B.T


@pytest.mark.usefixtures("unjudged")
def test_a_foreign_student_trains_grouped_by_shape():
    run = train(Foreign.init, widths=(2, 3), seeds=2, lanes=4)
    assert sorted(map(len, run.settings["grouping"])) == [2, 2]
    alone = train(Foreign.init, widths=(2, 3), seeds=2, lanes=1)
    assert_same(run.models, alone.models)
    assert all(int(model.calls) == 2 for model in run.models)


def test_attention_learns_one_step_of_gradient_descent():
    task = InContextRegression(1, 1, 3)

    def attention(width, *, key):
        return uh.LinearAttention.init(d_in=2, d_v=1, d_k=width, key=key)

    run = train(attention, task, uh.Recipe.noisy(steps=3000, batch=128), widths=1, seeds=2)
    best = min(row["loss"] for row in run.rows)
    assert task.best_loss - 1e-4 < best < 1.01 * task.best_loss
    attention = run.best()
    step = float(attention.W_V[0, 1] * attention.W_K[0, 0] * attention.W_Q[0, 0])
    assert step == pytest.approx(1 / (3 + 1 - 0.2), rel=0.03)


class Summed(eqx.Module):
    """A linear layer, in disguise where C and i are imaginary: Re[i C] Σ x."""

    C: jax.Array
    i: complex

    def __call__(self, xs):
        return (self.i * (jnp.cumsum(xs, axis=0) @ self.C.T)).real


@pytest.mark.usefixtures("unjudged")
def test_complex_weights_go_downhill():
    start = jnp.arange(4.0, dtype="float32").reshape(2, 2)
    recipe = uh.Recipe(steps=50, batch=8, learning_rate=0.05, schedule=Constant())
    real = train(lambda width, *, key: Summed(start, -1.0), recipe=recipe)
    disguised = train(lambda width, *, key: Summed(1j * start, 1j), recipe=recipe)
    np.testing.assert_allclose(disguised.models[0].C.imag, real.models[0].C, atol=1e-4)


@pytest.mark.usefixtures("unjudged")
def test_training_in_float32_while_the_caller_uses_float64():
    with jax.enable_x64(True):
        teacher = TeacherStudent.random(D, length=5, key=KEY)
        assert teacher.attention.W_V.dtype == "float64"
        run = train(task=teacher, recipe=RECIPE.change(precision="float32"))
    assert run.models[0].D.dtype == "float32"


def test_the_loss_on_fresh_sequences_is_unbiased_and_exact_for_the_best_attention():
    task = InContextRegression(2, 2, 4)
    with jax.enable_x64(True):
        scores = evaluate(task.best_attention(), task, key=KEY)
        assert float(scores["loss"]) == pytest.approx(task.best_loss, rel=1e-12)
        student = uh.GatedRNN.init(d_in=4, hidden=3, gated=3, d_out=2, key=KEY)
        xs, ys = task.sample(jax.random.key(9), 2**16)
        plain = task.losses(jax.vmap(student)(xs)[:, -1], ys)
        error = float(jnp.std(plain)) / 2**8
        loss = float(evaluate(student, task, key=KEY)["loss"])
        assert abs(loss - float(jnp.mean(plain))) < 4 * np.sqrt(5) * error
    # A loss far below the best attention's is not lost in rounding.
    task = AssociativeRecall(3)
    best = task.best_attention()
    sharp = uh.LinearAttention(30 * best.W_V, best.W_K, best.W_Q)
    assert 0 <= float(evaluate(sharp, task, key=KEY)["loss"]) < 1e-11


def test_the_table_names_members_and_losses_and_the_bar_counts_steps(capfd):
    options = {"seeds": (4, 7), "widths": (2, 3), "axes": {"learning_rate": (1e-3,)}}
    run = train(**options, progress=True)
    assert "12/12" in capfd.readouterr().err
    train(**options, progress=False)
    assert capfd.readouterr().err == ""
    table = run.members
    assert table["seed"].tolist() == [4, 7, 4, 7]
    assert {"width", "learning_rate", "loss", "normalised_loss", "lost_at"} <= set(table.columns)
    assert run.provenance.keys() >= {"commit", "versions", "device", "seconds"}
    assert run.provenance["predicted_bytes"] > 0
    assert "4 members" in repr(run)


@pytest.mark.usefixtures("unjudged")
def test_an_optimiser_of_ones_own():
    @dataclasses.dataclass(frozen=True)
    class Signs:
        def direction(self):
            return optax.scale_by_sign()

    run = train(recipe=RECIPE.change(optimiser=Signs()))
    assert run.settings["recipe"]["optimiser"] == {"kind": "Signs"}
    assert np.isfinite(run.rows[0]["loss"])
    assert Adam(b2=0.9).direction() is not None
