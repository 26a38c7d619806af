"""What a study will cost: seconds per unit, on an H200 or on a CPU core, before anything runs.

A step is traced as the device would run it, not compiled. Four counts are read off:

    seconds of a step = launch · launches + wait · waits
                      + students · (flow / rate + work / speed).

A CPU core trains one student after the other, so there every term counts per student. A unit takes
`setup` seconds more. docs/cluster.md says what is counted, and how well the formula does.
"""

import itertools
import math
from dataclasses import astuple, dataclass
from typing import Any

import jax

from underhood.common.errors import reason_of
from underhood.sweeps.study import Study
from underhood.sweeps.units import Unit
from underhood.training.arrangement import first_group_state, group_constants, step_numbers
from underhood.training.device import precision_of
from underhood.training.ensemble import at_length, make_ensemble
from underhood.training.step import advance_program

# Equations and variables of a trace have no public types in JAX: Any.


@dataclass(frozen=True)
class Device:
    """How fast a device is: seconds, bytes per second, operations per second."""

    backend: str
    setup: float
    launch: float
    wait: float
    rate: float
    speed: float


# Fitted by benchmarks/cost.py; the H200's setup was measured by benchmarks/gpu/packing.py.
H200 = Device("gpu", 14.0, launch=2.4e-7, wait=2.4e-6, rate=6.6e12, speed=1.7e13)
CORE = Device("cpu", 6.6, launch=0.0, wait=0.0, rate=7.9e9, speed=1.6e11)

# Values that cost nothing, because they are only views of others.
VIEWS = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "slice", "convert_element_type"}


@dataclass(frozen=True)
class Step:
    """What one step of one student takes; see above."""

    flow: float = 0.0
    work: float = 0.0
    launches: float = 0.0
    waits: float = 0.0

    def __add__(self, more: "Step") -> "Step":
        return Step(*(a + b for a, b in zip(astuple(self), astuple(more), strict=True)))

    def times(self, count: float) -> "Step":
        """Return the same in a loop of so many iterations."""
        waits = max(self.waits, 1.0) * count if self.work else 0.0
        return Step(self.flow * count, self.work * count, self.launches * count, waits)


def step_of(study: Study, student: str, width: int, device: Device) -> Step:
    """Trace a step of one student, in the forms that the device would run."""
    recipe = study.recipe
    ensemble = make_ensemble(
        study.students[student], study.task, recipe, widths=width, key=jax.random.key(0)
    )
    with precision_of(recipe.precision):
        task, static = at_length(ensemble.task, recipe), ensemble.students[0].static
        advance = advance_program(static, task, recipe, backend=device.backend)
        constants, state = group_constants(ensemble, (0,)), first_group_state(ensemble, (0,))
        traced = jax.make_jaxpr(advance)(constants, state, *step_numbers(ensemble, 0, 1))
    return cost_of(traced.jaxpr)


def cost_of(jaxpr: Any) -> Step:  # Any: see above
    """Add up all values of a traced function; a loop counts times its length."""
    total = Step()
    for equation in jaxpr.eqns:
        inner = [cost_of(body) for body in bodies_of(equation)]
        if equation.primitive.name == "scan":
            total += inner[0].times(equation.params["length"])
        elif inner:
            total += max(inner, key=lambda step: step.flow)
        elif equation.primitive.name not in VIEWS:
            total += Step(sum(map(size_of, equation.outvars)), work_of(equation), 1.0)
    return total


def bodies_of(equation: Any) -> list[Any]:  # Any: see above
    """Return the functions inside an equation: the bodies of loops and calls."""
    values = (v if isinstance(v, tuple | list) else [v] for v in equation.params.values())
    bodies = (getattr(value, "jaxpr", value) for value in itertools.chain(*values))
    return [body for body in bodies if hasattr(body, "eqns")]


def work_of(equation: Any) -> float:  # Any: see above
    """Return the operations of a matrix product; others count as nothing beside their bytes."""
    if equation.primitive.name != "dot_general":
        return 0.0
    ((contracted, _), _) = equation.params["dimension_numbers"]
    inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * inner


def size_of(variable: Any) -> float:  # Any: see above
    itemsize = getattr(getattr(variable.aval, "dtype", None), "itemsize", 4)
    return float(math.prod(getattr(variable.aval, "shape", ()))) * itemsize


def seconds_of(step: Step, students: int, steps: int, device: Device) -> float:
    # Students on a CPU core share nothing.
    apart = students if device.backend == "cpu" else 1
    seconds = apart * (device.launch * step.launches + device.wait * step.waits)
    seconds += students * (step.flow / device.rate + step.work / device.speed)
    return device.setup + steps * seconds


def hours(study: Study, units: list[Unit], device: Device) -> float:
    places = {(unit.student, unit.width) for unit in units}
    traced = {place: step_of(study, *place, device) for place in places}
    steps = study.recipe.steps
    of_units = ((traced[unit.student, unit.width], len(unit.addresses)) for unit in units)
    return sum(seconds_of(step, count, steps, device) for step, count in of_units) / 3600


def cost_in_words(study: Study, units: list[Unit]) -> str:
    students = sum(len(unit.addresses) for unit in units)
    counts = f"{len(units):,} units, {students:,} students"
    try:
        gpu, core = (hours(study, units, device) for device in (H200, CORE))
    except Exception as error:
        return f"{counts}; their cost cannot be estimated: {reason_of(error)}"
    both = f"about {gpu:.2g} H200-hours, or {core:.2g} core-hours"
    return f"{counts}: {both} (docs/cluster.md says how this is estimated)"
