"""What a study will cost: seconds per unit, on an H200 or on a CPU core, before anything runs.

A step is traced as the device would run it, not compiled, and four numbers are read off it: for one
student `flow`, the bytes of all values that it computes, and `work`, the operations of its matrix
products; and for all `launches`, the values that are computed one after another, a loop's by its
turns, and `waits`, those turns that multiply matrices and so cannot but follow one another. Then

    seconds of a step = launch · launches + wait · waits
                      + students · (flow / rate + work / speed)

where on a CPU core, which trains one student after the other, every term counts per student. A unit
takes `setup` seconds more, for compiling and evaluating. docs/cluster.md says where
the constants come from, and how well they do.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax

from underhood.sweeps.study import Study
from underhood.sweeps.units import Unit
from underhood.training.ensemble import Ensemble
from underhood.training.members import Member
from underhood.training.step import advance_program
from underhood.training.training import in_precision


@dataclass(frozen=True)
class Device:
    """How fast a device is: seconds, bytes per second, operations per second."""

    name: str
    backend: str
    setup: float
    launch: float
    wait: float
    rate: float
    speed: float

    @property
    def together(self) -> bool:
        """Whether the students of a unit share launches and waits."""
        return self.backend != "cpu"


# Fitted by benchmarks/cost.py, but the H200's setup, which benchmarks/packing.py tells.
H200 = Device("H200", "gpu", 14.0, launch=2.4e-7, wait=2.4e-6, rate=6.6e12, speed=1.7e13)
CORE = Device("CPU core", "cpu", 6.6, launch=0.0, wait=0.0, rate=7.9e9, speed=1.6e11)

# Values that cost nothing, because they are only another view of some other.
VIEWS = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "slice", "convert_element_type"}


@dataclass(frozen=True)
class Step:
    """One student's step: bytes that it computes, operations, launches, and turns that wait."""

    flow: float = 0.0
    work: float = 0.0
    launches: float = 0.0
    waits: float = 0.0

    def __add__(self, other: "Step") -> "Step":
        return Step(
            self.flow + other.flow,
            self.work + other.work,
            self.launches + other.launches,
            self.waits + other.waits,
        )

    def times(self, count: float) -> "Step":
        """The same in a loop."""
        waits = max(self.waits, 1.0) * count if self.work else 0.0
        return Step(self.flow * count, self.work * count, self.launches * count, waits)


def step_of(study: Study, student: str, width: int, device: Device) -> Step:
    """Trace a step of one student, in the forms that the device would run."""
    recipe = study.recipe
    task = in_precision(recipe.precision, study.task)
    make = study.students[student]
    one = Ensemble(make, (Member(0, width),), (), task, recipe, jax.random.key(0))
    one.groups = ((0,),)
    given, (state,) = one.given_to((0,)), one.first_states()
    static = one.students[0].static
    advance = advance_program(static, one.task, recipe, backend=device.backend)
    return cost_of(jax.make_jaxpr(advance)(given, state, *one.numbers(0, 1)).jaxpr)


def cost_of(jaxpr: Any) -> Step:
    """All values of a traced function, loops by their length."""
    total = Step()
    for equation in jaxpr.eqns:
        inner = [cost_of(getattr(one, "jaxpr", one)) for one in inner_of(equation)]
        if equation.primitive.name == "scan":
            total += inner[0].times(equation.params["length"])
        elif inner:
            total += max(inner, key=lambda one: one.flow)
        elif equation.primitive.name not in VIEWS:
            flow = sum(size_of(one) for one in equation.outvars)
            total += Step(flow, work_of(equation), 1.0)
    return total


def inner_of(equation: Any) -> list[Any]:
    """Functions inside an equation: the bodies of loops and calls."""
    found = []
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "eqns") or hasattr(getattr(one, "jaxpr", None), "eqns"):
                found.append(one)
    return found


def work_of(equation: Any) -> float:
    """Operations of a matrix product; others count as nothing beside their bytes."""
    if equation.primitive.name != "dot_general":
        return 0.0
    ((contracted, _), _) = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    inner = math.prod(left[one] for one in contracted)
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * inner


def size_of(variable: Any) -> float:
    """Bytes of a value."""
    shape = getattr(variable.aval, "shape", ())
    dtype = getattr(variable.aval, "dtype", None)
    return float(math.prod(shape)) * getattr(dtype, "itemsize", 4)


def seconds_of(step: Step, students: int, steps: int, device: Device) -> float:
    """Of one unit."""
    apart = 1 if device.together else students
    one = apart * (device.launch * step.launches + device.wait * step.waits)
    one += students * (step.flow / device.rate + step.work / device.speed)
    return device.setup + steps * one


def hours(study: Study, units: list[Unit], device: Device) -> float:
    """Device-hours of units."""
    steps = {(unit.student, unit.width) for unit in units}
    traced = {place: step_of(study, *place, device) for place in steps}
    total = sum(
        seconds_of(
            traced[unit.student, unit.width], len(unit.addresses), study.recipe.steps, device
        )
        for unit in units
    )
    return total / 3600
