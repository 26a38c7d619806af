"""How large units are and what they cost: foretold from a trace, before anything is compiled."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilation import compiled_for_users
from swept import RECIPE, TASK, study_of

import underhood as uh
from underhood.experiments.protocols.architectures import ARCHITECTURES
from underhood.layers.base.recurrence import doubling, linear_recurrence, scan
from underhood.sweeps import Study, cost as costs
from underhood.sweeps.cost import CORE, H200, Device, Step
from underhood.sweeps.units import bytes_of, plan
from underhood.training.arrangement import arrange

GPU = Device("gpu", setup=3.0, launch=0.1, wait=0.02, rate=1e6, speed=1e7)
SLOW = Device("cpu", setup=1.0, launch=0.1, wait=0.0, rate=1e6, speed=1e7)


def lstm(width, *, key):
    def layer(width, *, key):
        return uh.LSTM.init(d_in=width, hidden=width, key=key)

    return uh.Stack.init(layer, d_in=1, hidden=width, d_out=1, depth=1, key=key)


@pytest.mark.parametrize("memory", [1, 10**6, 10**7, 10**9, 10**12])
def test_units_fit_into_a_workers_memory(memory: int) -> None:
    study = study_of(widths=(2, 64), seeds=40)
    units = plan(study, memory=memory)
    planned = sorted(address for unit in units for address in unit.addresses)
    assert planned == sorted(study.addresses("gated").values())
    for unit in units:
        fit = max(1, memory // bytes_of(study, "gated", unit.width))
        assert len(unit.addresses) <= min(fit, 256)


@compiled_for_users(machine_code=False)
def test_the_bytes_foreseen_are_not_less_than_training_takes() -> None:
    # What train foresees once it has compiled, for students of several kinds.
    task = uh.tasks.TeacherStudent.random(3, length=16, key=jax.random.key(0))
    for architecture in (ARCHITECTURES[0], ARCHITECTURES[3], ARCHITECTURES[5]):
        study = Study(task, {"s": architecture.make(task, 1)}, uh.Recipe(steps=1), widths=(32,))
        needed = arrange(study.ensemble("s")).bytes
        assert needed <= bytes_of(study, "s", 32) <= 40 * needed


def test_a_trace_is_counted() -> None:
    def two_products(x):
        return x @ x + 1.0

    def loop(x):
        return jax.lax.scan(lambda h, _: (jnp.tanh(x @ h), None), x[0], length=7)[0]

    def elementwise_loop(x):
        return jax.lax.scan(lambda h, _: (jnp.tanh(h), None), x[0], length=7)[0]

    x = jnp.ones((3, 3), jnp.float32)
    traces = [jax.make_jaxpr(run)(x).jaxpr for run in (two_products, loop, elementwise_loop)]
    counted = [costs.cost_of(trace) for trace in traces]
    # A product and a sum of 36 bytes; seven times a product of nine terms and tanh, 12 bytes each.
    assert counted[0] == Step(flow=72.0, work=54.0, launches=2.0, waits=0.0)
    assert counted[1].work == 7 * 18.0 and counted[1].waits == 7.0
    assert counted[2].waits == 0.0 and counted[1].launches == counted[2].launches + 7.0


@pytest.mark.parametrize("device", [H200, CORE])
def test_a_step_costs_more_with_more_of_anything(device: Device) -> None:
    small = costs.step_of(study_of(), "gated", 2, device)
    wide = costs.step_of(study_of(), "gated", 20, device)
    batch = costs.step_of(study_of(recipe=RECIPE.change(batch=20)), "gated", 2, device)
    longer = costs.step_of(study_of(recipe=RECIPE.change(length=40)), "gated", 2, device)
    assert small.flow < min(wide.flow, batch.flow, longer.flow)
    assert small.launches == wide.launches == batch.launches < longer.launches
    # Gated RNNs have no turn that must wait for the one before, LSTMs all, there and back.
    waiting = costs.step_of(study_of(students={"lstm": lstm}), "lstm", 2, device)
    assert (small.waits, waiting.waits) == (0, 2 * TASK.time)


def test_a_step_is_traced_as_its_device_would_run_it() -> None:
    inputs, decay = jnp.ones((16, 2)), jnp.full(2, 0.5)

    def traced(**options) -> str:
        return str(jax.make_jaxpr(lambda u: linear_recurrence(decay, u, **options))(inputs))

    assert traced(backend="gpu") == traced(form=doubling) != traced(form=scan)
    assert traced(backend="cpu") == traced(form=scan) == traced()
    # The device of a step is the backend of its trace.
    both = [costs.step_of(study_of(), "gated", 2, device).launches for device in (H200, CORE)]
    assert both[0] != both[1]


def test_units_cost_what_the_formula_says() -> None:
    study = study_of(students={"lstm": lstm}, recipe=RECIPE.change(steps=100))
    units = plan(study, most=2)
    for device, apart in ((GPU, lambda count: 1), (SLOW, lambda count: count)):
        expected = 0.0
        for unit in units:
            step, count = costs.step_of(study, "lstm", unit.width, device), len(unit.addresses)
            shared = device.launch * step.launches + device.wait * step.waits
            own_part = step.flow / device.rate + step.work / device.speed
            expected += device.setup + 100 * (apart(count) * shared + count * own_part)
        assert costs.hours(study, units, device) == pytest.approx(expected / 3600)
    said = costs.cost_in_words(study, units)
    assert "H200-hours" in said and "core-hours" in said and "nan" not in said


def test_an_h200_takes_what_is_foretold() -> None:
    """Steps that benchmarks/cost.py has timed there: half of those that were not fitted."""
    task = uh.tasks.TeacherStudent.random(4, length=32, key=jax.random.key(0))
    record = Path(__file__).parents[2] / "benchmarks" / "cost_h200.txt"
    ratios = []
    for place, line in enumerate(record.read_text().splitlines()):
        (*kind, depth, rest), unit = line.split(", "), line.split()[-1]
        name, width, _, students, milliseconds, _ = rest.split()
        if name != "teacher" or place % 4 != 1:
            continue
        make = next(a for a in ARCHITECTURES if a.name == ", ".join(kind)).make
        student = {"s": make(task, int(depth))}
        study = study_of(task=task, students=student, recipe=uh.Recipe(steps=1))
        step = costs.step_of(study, "s", int(width), H200)
        foretold = costs.seconds_of(step, int(students), 1, H200) - H200.setup
        ratios.append(float(milliseconds) / 1e3 / foretold)
        assert unit == "ms" and 0.7 < ratios[-1] < 1.5
    assert len(ratios) == 6 and 0.85 < np.median(ratios) < 1.15
