"""What `fit` is given: students, a task whose loss it knows, and options."""

import operator
from collections.abc import Callable
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.arrays import key_problems
from underhood.common.errors import BadInput, kind_of, refuse
from underhood.common.live import progress_problems
from underhood.common.numbers import number_problems, whole_problems
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.tasks import InContextRegression, Task, TeacherStudent
from underhood.tasks.population import Population, population
from underhood.training.ensemble import StudentMaker
from underhood.training.second_order.starts import GatedStudent


def students_of(
    student: GatedStudent | StudentMaker, width: SupportsIndex | None
) -> Callable[[PRNGKeyArray, int], GatedStudent]:
    """Return a function from a key and the number of a start to the student it begins with."""
    if isinstance(student, GatedRNN | SideGatedRNN):
        if width is not None:
            raise BadInput("fit: width is for make_student; a network has its own.")
        refuse_wild(student)
        sizes = {"d_in": student.d_in, "hidden": student.neurons, "d_out": student.d_out}
        if isinstance(student, GatedRNN):
            sizes["gated"] = student.gate_width
        kind = type(student)
        return lambda key, number: student if number == 0 else kind.init(**sizes, key=key)
    if not callable(student):
        kind_name = type(student).__name__
        raise BadInput(
            f"fit: the student is a {kind_name}; give a GatedRNN, a SideGatedRNN, or "
            "make_student(width, *, key)."
        )
    if width is None:
        raise BadInput("fit: give the width of the students that make_student draws.")

    count = operator.index(width)

    def make(key: PRNGKeyArray, number: int) -> GatedStudent:
        try:
            drawn = drawn_at_once(student, count, key)
        except (jax.errors.JAXTypeError, BadInput):
            drawn = student(count, key=key)
        except TypeError as error:
            raise BadInput(f"fit: make_student(width, *, key) failed: {error}.") from error
        if not isinstance(drawn, GatedRNN | SideGatedRNN):
            raise BadInput(
                f"fit: make_student returns {kind_of(drawn)}; second-order training knows "
                "GatedRNN and SideGatedRNN. Use uh.train for other layers."
            )
        refuse_wild(drawn)
        return drawn

    return make


@eqx.filter_jit
def drawn_at_once(student: StudentMaker, width: int, key: PRNGKeyArray) -> object:
    """Draw a student by one program, in place of many small ones that take long to compile."""
    return student(width, key=key)


def refuse_wild(student: GatedStudent) -> None:
    """Refuse a student with weights that are no finite numbers."""
    # ν of λ = 1 is minus infinity.
    weights = {name: weight for name, weight in vars(student).items() if name != "nu"}
    weights["decay"] = student.decay
    wild = [name for name, weight in weights.items() if not np.all(np.isfinite(weight))]
    refuse([f"the student's {name} has NaN or infinity" for name in wild], about="fit")


def exact_loss(task: Task, exact: bool | None) -> Population | None:
    """Return the loss over all sequences, if it is asked for or samples would leave noise."""
    if not (task.best_loss > 0 if exact is None else exact):
        return None
    if not isinstance(task, TeacherStudent | InContextRegression):
        kind = type(task).__name__
        raise BadInput(f"fit: no exact squared error is known for {kind}. Use uh.train.")
    return population(task)


def check_arguments(
    key: object,
    width: SupportsIndex | None,
    restarts: int | None,
    tolerance: float,
    steps: int,
    exact: bool | None,
    wider: bool,
    workers: int | None,
    progress: object,
    watch: object,
) -> None:
    """Refuse arguments that make no sense, all in one line."""
    counts = {"width": width, "restarts": restarts, "workers": workers}
    whole: dict[str, Any] = {name: value for name, value in counts.items() if value is not None}
    problems = key_problems(key) + whole_problems(steps=steps, **whole)
    problems += number_problems(above=True, tolerance=tolerance) + progress_problems(progress)
    if exact not in (None, True, False):
        problems.append(f"exact is {exact!r}; give None, True or False")
    if not isinstance(wider, bool | np.bool_):
        problems.append(f"wider is {wider!r}; give True or False")
    if watch is not None and not callable(watch):
        problems.append(f"watch is {watch!r}; give a function of start, step and loss")
    refuse(problems, about="fit")
