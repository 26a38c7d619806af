"""What training takes and refuses: recipes, schedules, members, students."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import killable
import numpy as np
import pytest
from refusals import refused

import underhood as uh
from underhood.tasks import AssociativeRecall
from underhood.training import Constant, Cosine, Fade, First
from underhood.training.members import combine

KEY = jax.random.key(3)
D = 2
TASK, RECALL = killable.make_task(), AssociativeRecall(3)
WIDE = uh.LinearAttention.init(d_in=3, key=KEY)


def test_the_papers_recipe_is_adamw():
    recipe = uh.Recipe.paper(steps=1000)
    assert (recipe.batch, recipe.learning_rate, recipe.weight_decay) == (64, 1e-3, 1e-4)
    # 50,000 sequences an epoch, 1,000 epochs.
    assert uh.Recipe.paper().steps == 50_000 * 1_000 // 64
    assert recipe.decay == "coupled" and recipe.decay_schedule == Constant()
    assert uh.Recipe.paper(literal=True) == uh.Recipe.paper(decay="optax")
    decoupled = uh.Recipe.paper(decay="decoupled")
    for schedule, peak in ((recipe.schedule, 1e-3), (decoupled.decay_schedule, 1e-4)):
        ends = [float(peak * schedule(jnp.asarray(at))) for at in (0.0, 1.0)]
        np.testing.assert_allclose(ends, [peak, peak * 1e-3], rtol=1e-5)
    assert recipe.spared == ("nu", "theta_log", "gamma_log")


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Constant(), [1, 1, 1, 1, 1]),
        (Cosine(), [1, 0.8535534, 0.5, 0.1464466, 0]),
        (Cosine(end=0.2), [1, 0.8828427, 0.6, 0.3171573, 0.2]),
        (Cosine(warmup=0.5), [0, 0.5, 1, 0.5, 0]),
        (Fade(0.25, 0.75), [1, 1, 0.5, 0, 0]),
        (First(Cosine(), 0.5), [1, 0.9619398, 0.8535534, 0.6913417, 0.5]),
    ],
)
def test_schedules(schedule, values):
    at_times = [float(schedule(jnp.asarray(at))) for at in (0.0, 0.25, 0.5, 0.75, 1.0)]
    np.testing.assert_allclose(at_times, values, atol=1e-6)


class Odd(eqx.Module):
    """A student that may be refused for its weights, or for what it returns."""

    W: jax.Array | float
    act: Callable

    def __call__(self, xs):
        return self.act(self.W, xs)


def odd(W, act=jnp.multiply):
    return lambda width, *, key: Odd(W, act)


def sized(d_in, d_out):
    return lambda width, *, key: uh.GatedRNN.init(
        d_in=d_in, hidden=width, gated=width, d_out=d_out, key=key
    )


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"make_student": 3}, "make_student must be a function"),
        ({"make_student": lambda width, *, key: 3}, "make_student gave an int"),
        ({"make_student": killable.make_student(3, key=KEY)}, "make_student must be a function"),
        ({"make_student": uh.GatedRNN}, "make_student(width, *, key), but"),
        ({"make_student": lambda width: 3}, "got an unexpected keyword argument 'key'"),
        # Nothing that could be trained: a Python number is a setting.
        ({"make_student": odd(2.0)}, "gave an Odd; give a module"),
        ({"make_student": odd(jnp.ones(2, jnp.bfloat16))}, "holds bfloat16 weights"),
        ({"make_student": odd(jnp.ones(2), lambda *both: both)}, "returns a tuple; return one"),
        (
            {"make_student": lambda width, *, key: eqx.nn.Linear(2, 2, key=key)},
            "the student fails on one sequence [time, d_in] = (4, 2)",
        ),
        ({"make_student": sized(D + 1, D)}, "takes one sequence"),
        ({"make_student": sized(D, D + 1)}, "give the student 2 inputs and 2 outputs"),
        ({"task": TASK.attention}, "use one of underhood.tasks"),
        ({"recipe": 100}, "the recipe is an int"),
        ({"seeds": 0}, "seeds is 0; train at least one"),
        ({"seeds": -1}, "seeds is -1"),
        ({"seeds": ()}, "seeds is empty"),
        ({"seeds": [2**31]}, "seeds holds 2147483648"),
        ({"seeds": (1, 1)}, "same number twice"),
        ({"seeds": (-1,)}, "seeds holds -1"),
        ({"widths": ()}, "widths is empty"),
        ({"widths": 0}, "widths holds 0"),
        ({"widths": (2.5,)}, "widths holds 2.5"),
        ({"axes": {"learning_rat": (1,)}}, "Unknown axis 'learning_rat'"),
        ({"axes": {"learning_rate": (0.1, 0.1)}}, "learning_rate holds a value twice"),
        ({"axes": {"learning_rate": {3: 0.1}}}, "learning_rate has no value for width 4"),
        ({"axes": {"learning_rate": {4: -0.1}}}, "learning_rate holds -0.1"),
        ({"axes": {"learning_rate": {4: [0.1]}}}, "learning_rate holds [0.1]; use numbers"),
        ({"axes": {"learning_rate": 1e-3}}, "write [value] for one"),
        ({"axes": {"teacher": TASK.attention}}, "write [value] for one"),
        ({"axes": [("learning_rate", (1,))]}, "axes is a dictionary"),
        ({"axes": {"learning_rate": ()}}, "the axis learning_rate is empty"),
        ({"axes": {"learning_rate": (float("nan"),)}}, "finite numbers"),
        ({"axes": {"weight_decay": ("a",)}}, "use numbers"),
        ({"axes": {"teacher": (3,)}}, "teacher 0 is an int"),
        ({"axes": {"teacher": (WIDE,)}}, "teacher 0 differs in fields or shapes"),
        ({"task": RECALL, "axes": {"teacher": (TASK.attention,)}}, "needs a TeacherStudent"),
        ({"lanes": 0}, "lanes is 0"),
        ({"memory": "1GB"}, "memory is '1GB'"),
        ({"out": 3}, "A run's folder is a path, not 3"),
        ({"out": ""}, "A run's folder is a path, not ''"),
        ({"key": 0}, "key is 0; give one key"),
        ({"key": jax.random.split(KEY)}, "give one key"),
    ],
)
def test_bad_input_is_refused_with_one_line(arguments, message):
    with refused(message):
        killable.train(**arguments)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"steps": 5, "batch": True}, "batch is True"),
        ({"steps": 5, "length": 0}, "length is 0"),
        ({"steps": 5, "learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"steps": 5, "weight_decay": float("inf")}, "weight_decay is inf"),
        ({"steps": 5, "decay": "l2"}, "decay is 'l2'; use coupled, decoupled or optax"),
        ({"steps": 5, "schedule": "cosine"}, "schedule must map progress"),
        ({"steps": 5, "spared": "nu"}, "write ('nu',) for one"),
        ({"steps": 5, "optimiser": "adam"}, "with a method direction()"),
        ({"steps": 5, "learning_rate": True}, "learning_rate is True"),
        ({"steps": 5, "precision": "float16"}, "use float32 or float64"),
    ],
)
def test_a_recipe_checks_its_fields(fields, message):
    with refused(message):
        uh.Recipe(**fields)


@pytest.mark.usefixtures("unhooked")
def test_numbers_of_numpy_and_jax_are_numbers():
    recipe = uh.Recipe(steps=np.int64(3), learning_rate=np.float32(0.5))
    assert recipe == uh.Recipe(steps=3, learning_rate=0.5)
    assert type(recipe.steps) is int and type(recipe.learning_rate) is float
    members, _ = combine(np.int64(2), jnp.array([3, 4]), {"learning_rate": jnp.ones(1)}, TASK)
    assert [(member.seed, member.width) for member in members] == [(0, 3), (1, 3), (0, 4), (1, 4)]
    assert members[0].axes == (("learning_rate", 1.0),)
