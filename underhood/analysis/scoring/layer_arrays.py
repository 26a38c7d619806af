"""Any layer as arrays: its outputs and states on many sequences in float64, or a clear refusal.

A layer is whatever maps one sequence [time, d_in] to [time, d_out]: ours, or somebody else's
callable module. If it has `initial_state()` and `step(state, x)`, its states are read too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from underhood.common.arrays import key_problems
from underhood.common.errors import BadInput, kind_of, refuse, with_article
from underhood.common.foreign import read_foreign
from underhood.common.numbers import whole_problems
from underhood.layers import Layer
from underhood.tasks import Task

AnyLayer = Callable[[Array], Array]
TokenSequences = Float[Array, "batch time d_in"]

# Unless given, this many sequences are drawn, as many as give this many pairs, or as the fit needs.
LEAST_SEQUENCES, LEAST_PAIRS = 256, 4096
# Sequences are compared in pairs at this many times at most.
MOST_PLACES = 16
# A layer's step may differ from its call by this part of the largest output: rounding of layers
# that compute in float32 whatever they are given.
SAME_OUTPUTS = 1e-3


@dataclass(frozen=True)
class Plan:
    """What is drawn: sequences of `time` tokens of `d_in` numbers, for the fit and for the judge.

    sequences  half of them are fitted, half are judged
    places     times at which pairs of sequences are compared
    """

    sequences: int
    time: int
    d_in: int
    places: int
    task: Task | None

    @property
    def half(self) -> int:
        return self.sequences // 2

    @property
    def counted(self) -> slice:
        """The times at which the task reads outputs; all of them without a task."""
        last = self.task is not None and self.task.reads_last
        return slice(self.time - 1, None) if last else slice(None)

    def check_rows(self, per_sequence: int, numbers: int, what: str) -> None:
        """Refuse a regression on half of the sequences with fewer than two rows per number."""
        if self.half * per_sequence < 2 * numbers:
            needed = sequences_for(per_sequence, numbers)
            raise BadInput(
                f"attention_score: {self.sequences} sequences of {self.time} tokens are too few to "
                f"fit {numbers} numbers ({what}); pass sequences={needed} or more."
            )


def sequences_for(per_sequence: int, numbers: int) -> int:
    """Return how many sequences give two rows per number on each half."""
    return 2 * -(-2 * numbers // per_sequence)


def from_any_framework(layer: Any) -> AnyLayer:  # Any: whatever the caller gave
    """Return what is scored; a module of another framework is read as a layer first."""
    made: Any = read_foreign(layer)  # Any: a layer, or what the caller gave
    if made is not layer and not isinstance(made, Layer):
        kind = type(layer).__name__
        raise BadInput(
            f"attention_score: {with_article(kind)} is a linear map of one token and has no memory."
        )
    return made


def make_plan(
    layer: AnyLayer,
    *,
    key: object,
    time: int | None,
    sequences: int | None,
    d_in: int | None,
    task: Task | None,
) -> Plan:
    """Refuse arguments that make no sense, and choose those that are not given."""
    if not callable(layer):
        raise BadInput(f"attention_score: {kind_of(layer)} is not a layer to be called.")
    if task is not None and not isinstance(task, Task):
        kind = type(task).__name__
        raise BadInput(f"attention_score: the task is {with_article(kind)}; give one of uh.tasks.")
    reads = getattr(layer, "d_in", d_in)
    problems = []
    if task is not None:
        for name, value, wanted in (("d_in", d_in, task.d_in), ("time", time, task.time)):
            if value not in (None, wanted):
                problems.append(f"{name} is {value} but the task has {wanted}")
        d_in, time = task.d_in, task.time
    d_in, time = reads if d_in is None else d_in, 32 if time is None else time
    if d_in is None:
        raise BadInput("attention_score: the layer has no d_in; pass d_in=, numbers per token.")
    problems += whole_problems(least=2, time=time) + whole_problems(d_in=d_in)
    problems += [] if sequences is None else whole_problems(least=8, sequences=sequences)
    if reads not in (None, d_in):
        problems.append(f"d_in is {d_in} but the layer reads {reads} numbers per token")
    refuse(problems + key_problems(key), about="attention_score")
    places = 1 if task is not None and task.reads_last else min(time - 1, MOST_PLACES)
    p = d_in + 1
    numbers = p * p * (p + 1) // 2
    if sequences is None:
        sequences = max(LEAST_SEQUENCES, LEAST_PAIRS // places, sequences_for(places, numbers))
    plan = Plan(int(sequences), int(time), int(d_in), places, task)
    plan.check_rows(places, numbers, f"products of {d_in} inputs and a constant")
    return plan


def streams(layer: AnyLayer) -> bool:
    """Tell whether the layer shows its state."""
    return all(callable(getattr(layer, name, None)) for name in ("step", "initial_state"))


def check_layer(layer: AnyLayer, plan: Plan) -> None:
    """Refuse layers that do not map [time, d_in] to [time, d_out], or have too large a state."""
    time, d_in, task = plan.time, plan.d_in, plan.task
    xs = jnp.zeros((1, time, d_in))
    try:
        made = eqx.filter_eval_shape(layer, xs[0])
        state = eqx.filter_eval_shape(layer_steps, layer, xs)[0].shape[2] if streams(layer) else 0
    except BadInput:
        raise
    except (TypeError, ValueError, AttributeError) as problem:
        line = str(problem).strip().split("\n")[0]
        raise BadInput(
            f"attention_score: the layer fails on a sequence of shape ({time}, {d_in}): {line}"
        ) from problem
    counted = len(range(time)[plan.counted])
    plan.check_rows(counted, state + 1 if state else 0, "the state and a constant")
    kind = getattr(made, "dtype", None)
    if kind is None or not jnp.issubdtype(kind, jnp.floating):
        given = type(made).__name__ if kind is None else f"{kind} numbers"
        raise BadInput(f"attention_score: the layer must return real numbers, not {given}.")
    if len(made.shape) != 2 or made.shape[0] != time or made.shape[1] == 0:
        raise BadInput(
            f"attention_score: for a sequence of shape ({time}, {d_in}) the layer must return "
            f"({time}, d_out), not {made.shape}."
        )
    if task is not None and made.shape[1] != task.d_out:
        raise BadInput(
            f"attention_score: the layer returns {made.shape[1]} numbers per token, the task reads "
            f"{task.d_out}."
        )


def read_layer(layer: AnyLayer, xs: TokenSequences) -> np.ndarray:
    """Return a layer's outputs, or refuse them unless all are finite."""
    return finite(layer_outputs(layer, xs), "outputs")


def read_states(layer: AnyLayer, xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """Return a layer's states; refuse them if token by token it does not give the outputs ys."""
    states, outputs = (
        finite(numbers, what)
        for numbers, what in zip(
            layer_steps(layer, jnp.asarray(xs)), ("states", "outputs"), strict=True
        )
    )
    size = float(np.max(np.abs(ys), initial=0.0)) or 1.0
    apart = float(np.max(np.abs(outputs / size - ys / size), initial=0.0))
    if apart > SAME_OUTPUTS:
        raise BadInput(
            f"attention_score: the outputs of the layer's step differ by {apart:.1g} of their size "
            "from those of a call with the whole sequence; both must compute the same."
        )
    return states


def finite(numbers: Array, what: str) -> np.ndarray:
    """Return numbers of a layer as a NumPy array, or refuse them unless all are finite."""
    array = np.asarray(numbers)
    if not np.all(np.isfinite(array)):
        raise BadInput(f"attention_score: the layer's {what} on the drawn tokens are not finite.")
    return array


def promoted(tree: PyTree, dtype: jnp.dtype = jnp.float64) -> PyTree:
    """Return a layer or state with its floating-point numbers in float64, or complex128."""
    numbers, rest = eqx.partition(tree, eqx.is_inexact_array)
    wider = jax.tree.map(lambda x: jnp.asarray(x, jnp.promote_types(x.dtype, dtype)), numbers)
    return eqx.combine(wider, rest)


@eqx.filter_jit
def layer_outputs(layer: AnyLayer, xs: TokenSequences) -> Float[Array, "batch time d_out"]:
    return jax.vmap(layer)(xs)


@eqx.filter_jit
def layer_steps(layer: PyTree, xs: TokenSequences) -> tuple[Array, Array]:
    """Return the state after every token, as real numbers, and the outputs: [batch, time, …]."""
    start = promoted(layer.initial_state(), xs.dtype)

    def advance(state: PyTree, x: Array) -> tuple[PyTree, tuple[Array, Array]]:
        state, y = layer.step(state, x)
        return state, (real_numbers(state), y)

    return jax.vmap(lambda sequence: jax.lax.scan(advance, start, sequence)[1])(xs)


def real_numbers(state: PyTree) -> Float[Array, " state"]:
    """Return all floating-point numbers of a state; complex ones as real and imaginary parts."""
    parts = [jnp.zeros(0)]
    for leaf in jax.tree.leaves(state):
        if jnp.iscomplexobj(leaf):
            parts += [jnp.real(leaf).ravel(), jnp.imag(leaf).ravel()]
        elif eqx.is_inexact_array(leaf):
            parts.append(leaf.ravel())
    return jnp.concatenate(parts)
