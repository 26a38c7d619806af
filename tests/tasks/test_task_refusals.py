"""Tasks refuse bad input in one line."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import every_refusal
from task_cases import KEY
from teachers import attention

import underhood as uh
from underhood.tasks import (
    AssociativeRecall,
    InContextRegression,
    MultiHeadTeacher,
    TeacherStudent,
    gradient_descent_loss,
    optimal_step,
)

pytestmark = pytest.mark.usefixtures("x64")

HEAD = attention(3)
STACKED = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), TeacherStudent(HEAD))

REFUSED = {
    "TeacherStudent … length is 0": lambda: TeacherStudent(HEAD, 0),
    "length is 2.5 … whole number": lambda: TeacherStudent(HEAD, 2.5),
    "length is True": lambda: TeacherStudent(HEAD, True),
    "MultiHead … LinearAttention": lambda: TeacherStudent(uh.MultiHead([HEAD])),
    "MultiHeadTeacher … is a LinearAttention … MultiHead": lambda: MultiHeadTeacher(HEAD),
    "without biases": lambda: MultiHeadTeacher(uh.MultiHead([attention(3, b_V=np.ones(3))])),
    "heads is 0": lambda: MultiHeadTeacher.random(2, 0, key=KEY),
    "NoneType … LinearAttention": lambda: TeacherStudent(None),
    "LinearAttention": lambda: TeacherStudent(uh.LinearAttention),
    "no outputs … W_V": lambda: TeacherStudent(
        uh.LinearAttention(np.ones((0, 2)), *np.ones((2, 1, 2)))
    ),
    "length is -1": lambda: TeacherStudent(HEAD).with_length(-1),
    "rank is 4 … 3 or less": lambda: TeacherStudent.random(3, 4, key=KEY),
    "rank is -1 … at least 0": lambda: TeacherStudent.random(3, -1, key=KEY),
    "rank is 1.5": lambda: TeacherStudent.random(3, 1.5, key=KEY),
    "d is 0 … at least 1": lambda: TeacherStudent.random(0, key=KEY),
    "d is '4' … rank is -1": lambda: TeacherStudent.random("4", -1, key=KEY),
    "length is 0": lambda: TeacherStudent.random(2, length=0, key=KEY),
    "2 stacked … vmap": lambda: STACKED.sample(KEY, 2),
    "TeacherStudent … 2 stacked … vmap": lambda: STACKED.scale,
    "outside jit": lambda: jax.jit(lambda task: task.zero_loss)(TeacherStudent(HEAD)),
    "(3, 3, 3) … (3, 3) … reads_last": lambda: InContextRegression().loss(
        jnp.ones((3, 3, 3)), jnp.ones((3, 3))
    ),
    "(2, 5, 4) … [2, 4]": lambda: AssociativeRecall(4).loss(jnp.ones((2, 5, 4)), jnp.ones(2, int)),
    "(2, 3) … 4 symbols": lambda: AssociativeRecall(4).loss(jnp.ones((2, 3)), jnp.ones(2, int)),
    "InContext … d_x is 0": lambda: InContextRegression(0),
    "d_y is -2": lambda: InContextRegression(d_y=-2),
    "pairs is 0": lambda: InContextRegression(pairs=0),
    "variance is 0 … above 0": lambda: InContextRegression(variance=0),
    "variance is -1.0": lambda: InContextRegression(variance=-1.0),
    "variance is nan": lambda: InContextRegression(variance=math.nan),
    "variance is inf": lambda: InContextRegression(variance=math.inf),
    "variance is '1/3'": lambda: InContextRegression(variance="1/3"),
    "d_x is 0 … d_y is 0.5 … pairs is None … variance is nan": lambda: InContextRegression(
        0, 0.5, None, math.nan
    ),
    "optimal_step … pairs is 0": lambda: optimal_step(pairs=0, d_x=3),
    "kurtosis is 0.5 … at least 1": lambda: optimal_step(pairs=1, d_x=1, kurtosis=0.5),
    "input_variance is 0.0": lambda: optimal_step(pairs=1, d_x=1, input_variance=0.0),
    "gradient_descent_loss … weight_variance is -1": lambda: gradient_descent_loss(
        0.1, pairs=1, d_x=1, weight_variance=-1
    ),
    "AssociativeRecall … symbols is 0": lambda: AssociativeRecall(0),
    "pairs is 5 … 4 or less": lambda: AssociativeRecall(4, pairs=5),
    "AssociativeRecall … pairs is 0": lambda: AssociativeRecall(4, pairs=0),
    "pairs is 9 … 8 or less": lambda: AssociativeRecall().with_length(9),
    "between_tokens is 2 … True or False": lambda: AssociativeRecall(4, 2),
    "mirrored is 'yes'": lambda: InContextRegression(mirrored="yes"),
}

test_bad_input_is_refused_in_one_line = every_refusal(REFUSED)


def test_misspelt_settings_are_refused(unhooked):
    with pytest.raises(TypeError, match="pair"):
        InContextRegression(pair=3)


def test_whole_numbers_may_be_numpys(unhooked):
    task = AssociativeRecall(np.int64(4), pairs=np.int32(2))
    assert task == AssociativeRecall(4, pairs=2)
    assert type(task.pairs) is int
