"""The linear recurrence h_t = λ⊙h_{t−1} + u_t, in four forms that agree.

scan          one compiled loop: O(T) work, no parallelism over time
associative   (λ₁, u₁)∘(λ₂, u₂) = (λ₁λ₂, λ₂u₁ + u₂) in a tree: O(T) work, depth log T
doubling      h = …(1 + λ⁴S⁴)(1 + λ²S²)(1 + λS) u, S the shift by one token: O(T log T), depth log T
chunkwise     h = L u with L_ts = λ^{t−s} for s ≤ t inside chunks, the tree between them: O(T) work

`decay` is [n], or of the inputs' shape when it depends on the input (Mamba); real or complex.
The inputs are [time, n], or [time, …, n] with many sequences side by side.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, PyTree

Decay = Inexact[Array, " n"] | Inexact[Array, "time *batch n"]
States = Inexact[Array, "time *batch n"]
HiddenState = Inexact[Array, "*batch n"]
Form = Callable[[Decay, States, HiddenState], States]

# A chunk's decay matrix has CHUNK²·n entries; 64 keeps it inside the cache for n ≤ 1000 or so
# while the work per token (64 multiply-adds a neuron) stays below that of the gates around it.
CHUNK = 64

# Tokens of a nonlinear recurrence per turn of its loop on an accelerator, at most.
UNROLLED = 16


def linear_recurrence(
    decay: Decay,
    inputs: States,
    *,
    initial: HiddenState | None = None,
    form: Form | None = None,
    backend: str | None = None,
) -> States:
    """Return all states of h_t = λ⊙h_{t−1} + u_t.

    initial  h_0; zero unless given
    form     one of the four above; by default the fastest for the backend and the length
    backend  "cpu" or an accelerator, which is every other name; by default the one that JAX runs on
    """
    decay, inputs = jnp.asarray(decay), jnp.asarray(inputs)
    dtype = jnp.result_type(decay, inputs)
    if initial is None:
        initial = jnp.zeros(inputs.shape[1:], dtype)
    form = form or best_form(decay.ndim == 1, inputs.shape[0], backend or jax.default_backend())
    arguments = decay.astype(dtype), inputs.astype(dtype), initial.astype(dtype)
    return with_constant_decay(form, *arguments) if decay.ndim == 1 else form(*arguments)


def best_form(constant: bool, time: int, backend: str) -> Form:
    """Return the fastest form that is linear in time (`benchmarks/recurrence.py`).

    A CPU runs the scan at the speed of its memory. An accelerator waits for a launch per token, so
    there a few passes over everything win: by doubling, in chunks beyond a certain length, or by
    the tree where the decay changes and has no powers to share.
    """
    if backend == "cpu":
        return scan
    if not constant:
        return associative
    return doubling if time <= CHUNK else chunkwise


def run_loop(
    step: Callable[[PyTree, Array], tuple[PyTree, Array]],
    initial: PyTree,
    inputs: Inexact[Array, "time *batch n"],
    backend: str | None = None,
) -> Inexact[Array, "time *batch m"]:
    """Run a recurrence that has no parallel form; return what `step` returns at all times.

    An accelerator spends more on the turn of a loop than on a token, so there a turn runs several.
    A CPU gains nothing and compiles longer.
    """
    on_cpu = (backend or jax.default_backend()) == "cpu"
    turns = 1 if on_cpu else min(len(inputs), UNROLLED)
    return jax.lax.scan(step, initial, inputs, unroll=turns)[1]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def with_constant_decay(
    form: Form, decay: Inexact[Array, " n"], inputs: States, initial: HiddenState
) -> States:
    """Run a form with one decay for all times; derivatives cost what the form costs."""
    return form(decay, inputs, initial)


@with_constant_decay.defjvp
def constant_decay_jvp(
    form: Form,
    primals: tuple[Array, Array, Array],
    tangents: tuple[Array, Array, Array],
) -> tuple[Array, Array]:
    # dh_t = λ dh_{t−1} + (du_t + dλ h_{t−1}) is the same recurrence again, and its transpose is
    # the recurrence backwards in time: gradients need h alone, none of the form's inner powers.
    decay, inputs, initial = primals
    decay_dot, inputs_dot, initial_dot = tangents
    states = with_constant_decay(form, decay, inputs, initial)
    before = jnp.concatenate([initial[None], states[:-1]])[: inputs.shape[0]]
    return states, with_constant_decay(form, decay, inputs_dot + decay_dot * before, initial_dot)


def scan(decay: Decay, inputs: States, initial: HiddenState) -> States:
    """Run the definition as a compiled loop."""

    def step(state: Array, now: tuple[Array | None, Array]) -> tuple[Array, Array]:
        state = (decay if now[0] is None else now[0]) * state + now[1]
        return state, state

    decays = None if decay.ndim == 1 else jnp.broadcast_to(decay, inputs.shape)
    return jax.lax.scan(step, initial, (decays, inputs))[1]


def associative(decay: Decay, inputs: States, initial: HiddenState) -> States:
    """Compute a parallel prefix over the affine maps h ↦ λh + u."""

    def compose(first: tuple[Array, Array], then: tuple[Array, Array]) -> tuple[Array, Array]:
        return first[0] * then[0], then[0] * first[1] + then[1]

    decays = jnp.broadcast_to(decay, inputs.shape)
    products, states = jax.lax.associative_scan(compose, (decays, inputs))
    return states + products * initial


def doubling(decay: Decay, inputs: States, initial: HiddenState) -> States:
    """Double how far back every state sees, pass by pass; λ is squared each time."""
    if decay.ndim > 1 or not inputs.shape[0]:
        return associative(decay, inputs, initial)
    states = jnp.concatenate([(inputs[0] + decay * initial)[None], inputs[1:]])
    power, reach = decay, 1
    while reach < inputs.shape[0]:
        earlier = jnp.concatenate([jnp.zeros_like(states[:reach]), states[:-reach]])
        states = states + power * earlier
        power, reach = power * power, 2 * reach
    return states


def in_chunks(array: Array, chunk: int) -> Array:
    """Turn [time, …] into [blocks, chunk, …], with zeros after the end."""
    blocks = -(-len(array) // chunk)
    padding = ((0, blocks * chunk - len(array)), *((0, 0),) * (array.ndim - 1))
    return jnp.pad(array, padding).reshape(blocks, chunk, *array.shape[1:])


def out_of_chunks(chunks: Array, time: int) -> Array:
    """Undo `in_chunks`."""
    return chunks.reshape(chunks.shape[0] * chunks.shape[1], *chunks.shape[2:])[:time]


def chunkwise(decay: Decay, inputs: States, initial: HiddenState, chunk: int = CHUNK) -> States:
    """Run chunks in parallel as if each started from zero, then add what earlier ones leave."""
    if decay.ndim > 1:
        # One decay matrix per chunk would take T·chunk·n numbers, so chunks go one by one.
        def advance(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            states = associative(now[0], now[1], state)
            return states[-1], states

        chunks = in_chunks(decay, chunk), in_chunks(inputs, chunk)
        return out_of_chunks(jax.lax.scan(advance, initial, chunks)[1], len(inputs))
    matrix, from_start = toeplitz(decay, chunk)
    local = jnp.einsum("tsn,bs...n->bt...n", matrix, in_chunks(inputs, chunk))
    leaving = associative(from_start[-1], local[:, -1], initial)
    entering = jnp.concatenate([initial[None], leaving[:-1]])
    beside = from_start.reshape(chunk, *(1,) * (inputs.ndim - 2), inputs.shape[-1])
    return out_of_chunks(local + beside * entering[:, None], len(inputs))


def toeplitz(
    decay: Inexact[Array, " n"], time: int
) -> tuple[Inexact[Array, "time time n"], Inexact[Array, "time n"]]:
    """Return L_ts = λ^{t−s} for s ≤ t, 0 above the diagonal; and λ^{t+1}, the weight of h_0."""
    # Products, not `power`: exact at λ = 0 and 1, with finite gradients, complex λ too.
    powers = jnp.cumprod(jnp.broadcast_to(decay, (time, *decay.shape)), axis=0)
    from_zero = jnp.concatenate([jnp.ones_like(decay)[None], powers[:-1]])
    lag = jnp.arange(time)[:, None] - jnp.arange(time)[None, :]
    matrix = jnp.where((lag >= 0)[:, :, None], from_zero[jnp.maximum(lag, 0)], 0)
    return matrix, powers
