"""Tasks refuse bad input in one line."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from task_cases import KEY
from teachers import attention

import underhood as uh
from underhood.tasks import (
    AssociativeRecall,
    InContextRegression,
    TeacherStudent,
    gradient_descent_loss,
    optimal_step,
)

pytestmark = pytest.mark.usefixtures("x64")

# --- refusals

HEAD = attention(3)
STACKED = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), TeacherStudent(HEAD))

REFUSED = {
    "a teacher of no length": (lambda: TeacherStudent(HEAD, 0), ["TeacherStudent", "length is 0"]),
    "half a token": (lambda: TeacherStudent(HEAD, 2.5), ["length is 2.5", "whole number"]),
    "a truth value": (lambda: TeacherStudent(HEAD, True), ["length is True"]),
    "several heads": (
        lambda: TeacherStudent(uh.MultiHead([HEAD])),
        ["MultiHead", "LinearAttention"],
    ),
    "no teacher": (lambda: TeacherStudent(None), ["NoneType", "LinearAttention"]),
    "a class": (lambda: TeacherStudent(uh.LinearAttention), ["LinearAttention"]),
    "a teacher without outputs": (
        lambda: TeacherStudent(uh.LinearAttention(np.ones((0, 2)), *np.ones((2, 1, 2)))),
        ["no outputs", "W_V"],
    ),
    "no teacher longer": (lambda: TeacherStudent(HEAD).with_length(-1), ["length is -1"]),
    "a rank above d": (lambda: TeacherStudent.random(3, 4, key=KEY), ["rank is 4", "3 or less"]),
    "a negative rank": (
        lambda: TeacherStudent.random(3, -1, key=KEY),
        ["rank is -1", "at least 0"],
    ),
    "half a rank": (lambda: TeacherStudent.random(3, 1.5, key=KEY), ["rank is 1.5"]),
    "no dimension": (lambda: TeacherStudent.random(0, key=KEY), ["d is 0", "at least 1"]),
    "two problems": (lambda: TeacherStudent.random("4", -1, key=KEY), ["d is '4'", "rank is -1"]),
    "a random teacher of no length": (
        lambda: TeacherStudent.random(2, length=0, key=KEY),
        ["length is 0"],
    ),
    "stacked teachers sampled at once": (lambda: STACKED.sample(KEY, 2), ["2 stacked", "vmap"]),
    "the scale of stacked teachers": (lambda: STACKED.scale, ["2 stacked", "vmap"]),
    "a closed form under jit": (
        lambda: jax.jit(lambda task: task.zero_loss)(TeacherStudent(HEAD)),
        ["outside jit"],
    ),
    "outputs that would broadcast": (
        lambda: InContextRegression().loss(jnp.ones((3, 3, 3)), jnp.ones((3, 3))),
        ["(3, 3, 3)", "(3, 3)", "reads_last"],
    ),
    "recall outputs at every token": (
        lambda: AssociativeRecall(4).loss(jnp.ones((2, 5, 4)), jnp.ones(2, int)),
        ["(2, 5, 4)", "[2, 4]"],
    ),
    "scores over other symbols": (
        lambda: AssociativeRecall(4).loss(jnp.ones((2, 3)), jnp.ones(2, int)),
        ["(2, 3)", "4 symbols"],
    ),
    "regression without inputs": (lambda: InContextRegression(0), ["InContext", "d_x is 0"]),
    "regression without outputs": (lambda: InContextRegression(d_y=-2), ["d_y is -2"]),
    "regression without pairs": (lambda: InContextRegression(pairs=0), ["pairs is 0"]),
    "no variance": (lambda: InContextRegression(variance=0), ["variance is 0", "above 0"]),
    "a negative variance": (lambda: InContextRegression(variance=-1.0), ["variance is -1.0"]),
    "a variance of nan": (lambda: InContextRegression(variance=math.nan), ["variance is nan"]),
    "an infinite variance": (lambda: InContextRegression(variance=math.inf), ["variance is inf"]),
    "a variance in words": (lambda: InContextRegression(variance="1/3"), ["variance is '1/3'"]),
    "all at once": (
        lambda: InContextRegression(0, 0.5, None, math.nan),
        ["d_x is 0", "d_y is 0.5", "pairs is None", "variance is nan"],
    ),
    "a step for no pairs": (lambda: optimal_step(pairs=0, d_x=3), ["optimal_step", "pairs is 0"]),
    "an impossible kurtosis": (
        lambda: optimal_step(pairs=1, d_x=1, kurtosis=0.5),
        ["kurtosis is 0.5", "at least 1"],
    ),
    "inputs that do not vary": (
        lambda: optimal_step(pairs=1, d_x=1, input_variance=0.0),
        ["input_variance is 0.0"],
    ),
    "weights that do not vary": (
        lambda: gradient_descent_loss(0.1, pairs=1, d_x=1, weight_variance=-1),
        ["gradient_descent_loss", "weight_variance is -1"],
    ),
    "no symbols": (lambda: AssociativeRecall(0), ["AssociativeRecall", "symbols is 0"]),
    "more pairs than symbols": (lambda: AssociativeRecall(4, pairs=5), ["pairs is 5", "4 or less"]),
    "recall without pairs": (lambda: AssociativeRecall(4, pairs=0), ["pairs is 0"]),
    "a longer recall": (lambda: AssociativeRecall().with_length(9), ["pairs is 9", "8 or less"]),
    "pairs for a flag": (lambda: AssociativeRecall(4, 2), ["between_tokens is 2", "True or False"]),
    "a word for a flag": (lambda: InContextRegression(mirrored="yes"), ["mirrored is 'yes'"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_in_one_line(name, unhooked):
    build, fragments = REFUSED[name]
    with pytest.raises(uh.BadInput) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message
    assert [fragment for fragment in fragments if fragment not in message] == []


def test_misspelt_settings_are_refused(unhooked):
    with pytest.raises(TypeError, match="pair"):
        InContextRegression(pair=3)


def test_whole_numbers_may_be_numpys(unhooked):
    task = AssociativeRecall(np.int64(4), pairs=np.int32(2))
    assert task == AssociativeRecall(4, pairs=2)
    assert type(task.pairs) is int
