"""The linear recurrence h_t = λ⊙h_{t−1} + u_t, in six forms that agree.

naive         one line of arithmetic per token: what the others are tested against
scan          the same as one compiled loop: O(T) work, no parallelism over time
associative   (λ₁, u₁)∘(λ₂, u₂) = (λ₁λ₂, λ₂u₁ + u₂) in a tree: O(T) work, depth log T
doubling      h = …(1 + λ⁴S⁴)(1 + λ²S²)(1 + λS) u, S the shift by one token: O(T log T), depth log T
decay_matrix  h = L u with L_ts = λ^{t−s} for s ≤ t: one matrix product per neuron, O(T²)
chunkwise     decay_matrix inside chunks, the tree between them: O(T) work and memory

`decay` is [n], or of the inputs' shape when it depends on the input (Mamba); real or complex.
The inputs are [time, n], or [time, …, n] with many sequences side by side.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

Decay = Inexact[Array, " n"] | Inexact[Array, "time *batch n"]
States = Inexact[Array, "time *batch n"]
State = Inexact[Array, "*batch n"]
Form = Callable[[Decay, States, State], States]

# A chunk's decay matrix has CHUNK²·n entries; 64 keeps it inside the cache for n ≤ 1000 or so
# while the work per token (64 multiply-adds a neuron) stays below that of the gates around it.
CHUNK = 64

# Tokens of a nonlinear recurrence per turn of its loop on an accelerator, at most.
UNROLLED = 16

# What programs are traced for, where that is not what runs them.
BACKEND: ContextVar[str | None] = ContextVar("BACKEND", default=None)


@contextlib.contextmanager
def traced_for(backend: str) -> Iterator[None]:
    """Choose forms as on another backend, to count what a step would cost there."""
    token = BACKEND.set(backend)
    try:
        yield
    finally:
        BACKEND.reset(token)


def this_backend() -> str:
    """What programs are traced for."""
    return BACKEND.get() or jax.default_backend()


def linear_recurrence(
    decay: Decay,
    inputs: States,
    *,
    initial: State | None = None,
    form: Form | None = None,
    backend: str | None = None,
) -> States:
    """Return all states of h_t = λ⊙h_{t−1} + u_t.

    initial  h_0; zero unless given
    form     one of the six above; by default the fastest for the backend and the length
    backend  "cpu", "gpu" or "tpu"; by default the one that JAX runs on
    """
    decay, inputs = jnp.asarray(decay), jnp.asarray(inputs)
    dtype = jnp.result_type(decay, inputs)
    if initial is None:
        initial = jnp.zeros(inputs.shape[1:], dtype)
    form = form or best_form(decay.ndim == 1, inputs.shape[0], backend or this_backend())
    arguments = decay.astype(dtype), inputs.astype(dtype), initial.astype(dtype)
    return constant(form, *arguments) if decay.ndim == 1 else form(*arguments)


def best_form(constant: bool, time: int, backend: str) -> Form:
    """The fastest form that is linear in time (`benchmarks/recurrence.py`).

    A CPU runs the scan at the speed of its memory. An accelerator waits for a launch per token, so
    there a few passes over everything win: by doubling, in chunks beyond a certain length, or by
    the tree where the decay changes and has no powers to share.
    """
    if backend == "cpu":
        return scan
    if not constant:
        return associative
    return doubling if time <= CHUNK else chunkwise


def unrolled(time: int, backend: str | None = None) -> int:
    """Return how many tokens of a nonlinear recurrence one turn of its loop runs.

    An accelerator spends more on the turn of a loop than on a token. A CPU gains nothing and
    compiles longer.
    """
    return 1 if (backend or this_backend()) == "cpu" else min(time, UNROLLED)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def constant(form: Form, decay: Inexact[Array, " n"], inputs: States, initial: State) -> States:
    """A form with one decay for all times, and derivatives that cost what the form costs."""
    return form(decay, inputs, initial)


@constant.defjvp
def constant_jvp(
    form: Form,
    primals: tuple[Array, Array, Array],
    tangents: tuple[Array, Array, Array],
) -> tuple[Array, Array]:
    # dh_t = λ dh_{t−1} + (du_t + dλ h_{t−1}) is the same recurrence again, and its transpose is
    # the recurrence backwards in time: gradients need h alone, none of the form's inner powers.
    decay, inputs, initial = primals
    decay_dot, inputs_dot, initial_dot = tangents
    states = constant(form, decay, inputs, initial)
    before = jnp.concatenate([initial[None], states[:-1]])[: inputs.shape[0]]
    return states, constant(form, decay, inputs_dot + decay_dot * before, initial_dot)


def naive(decay: Decay, inputs: States, initial: State) -> States:
    """The definition, token by token."""
    decays = jnp.broadcast_to(decay, inputs.shape)
    state, states = initial, []
    for t in range(inputs.shape[0]):
        state = decays[t] * state + inputs[t]
        states.append(state)
    return jnp.stack(states) if states else inputs


def scan(decay: Decay, inputs: States, initial: State) -> States:
    """The definition as a compiled loop."""
    if decay.ndim == 1:

        def keep(state: Array, now: Array) -> tuple[Array, Array]:
            state = decay * state + now
            return state, state

        return jax.lax.scan(keep, initial, inputs)[1]

    def step(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        state = now[0] * state + now[1]
        return state, state

    return jax.lax.scan(step, initial, (jnp.broadcast_to(decay, inputs.shape), inputs))[1]


def associative(decay: Decay, inputs: States, initial: State) -> States:
    """A parallel prefix over the affine maps h ↦ λh + u."""

    def compose(first: tuple[Array, Array], then: tuple[Array, Array]) -> tuple[Array, Array]:
        return first[0] * then[0], then[0] * first[1] + then[1]

    decays = jnp.broadcast_to(decay, inputs.shape)
    products, states = jax.lax.associative_scan(compose, (decays, inputs))
    return states + products * initial


def doubling(decay: Decay, inputs: States, initial: State) -> States:
    """Each pass doubles how far back every state sees; λ is squared along."""
    if decay.ndim > 1 or not inputs.shape[0]:
        return associative(decay, inputs, initial)
    states = jnp.concatenate([(inputs[0] + decay * initial)[None], inputs[1:]])
    power, reach = decay, 1
    while reach < inputs.shape[0]:
        earlier = jnp.concatenate([jnp.zeros_like(states[:reach]), states[:-reach]])
        states = states + power * earlier
        power, reach = power * power, 2 * reach
    return states


def decay_matrix(decay: Decay, inputs: States, initial: State) -> States:
    """h_t = Σ_{s≤t} L_ts u_s + L_t0 h_0, L written out."""
    if decay.ndim == 1:
        matrix, from_start = toeplitz(decay, inputs.shape[0])
        from_start = beside(from_start, inputs)
        return jnp.einsum("tsn,s...n->t...n", matrix, inputs) + from_start * initial
    matrix, from_start = products_between(decay)
    return jnp.einsum("ts...n,s...n->t...n", matrix, inputs) + from_start * initial


def beside(weights: Inexact[Array, "time n"], like: Array) -> Inexact[Array, "time *ones n"]:
    """Weights per time and neuron, shaped to multiply arrays [time, …, n]."""
    return weights.reshape(weights.shape[0], *(1,) * (like.ndim - 2), weights.shape[1])


def chunkwise(decay: Decay, inputs: States, initial: State, chunk: int = CHUNK) -> States:
    """Chunks in parallel as if each started from zero, then what the earlier ones add."""
    time, rest = inputs.shape[0], inputs.shape[1:]
    blocks = -(-time // chunk)

    def split(array: Array) -> Array:
        padding = ((0, blocks * chunk - time), *((0, 0) for _ in rest))
        return jnp.pad(array, padding).reshape(blocks, chunk, *rest)

    if decay.ndim > 1:
        # One decay matrix per chunk would take T·chunk·n numbers, so chunks go one by one.
        def advance(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            states = associative(now[0], now[1], state)
            return states[-1], states

        states = jax.lax.scan(advance, initial, (split(decay), split(inputs)))[1]
        return states.reshape(blocks * chunk, *rest)[:time]
    matrix, from_start = toeplitz(decay, chunk)
    local = jnp.einsum("tsn,bs...n->bt...n", matrix, split(inputs))
    leaving = associative(from_start[-1], local[:, -1], initial)
    entering = jnp.concatenate([initial[None], leaving[:-1]])
    states = local + beside(from_start, inputs) * entering[:, None]
    return states.reshape(blocks * chunk, *rest)[:time]


def toeplitz(
    decay: Inexact[Array, " n"], time: int
) -> tuple[Inexact[Array, "time time n"], Inexact[Array, "time n"]]:
    """L_ts = λ^{t−s} for s ≤ t and 0 above the diagonal; and λ^{t+1}, the weight of h_0."""
    # Products, not `power`: exact at λ = 0 and 1, with finite gradients, complex λ too.
    powers = jnp.cumprod(jnp.broadcast_to(decay, (time, *decay.shape)), axis=0)
    from_zero = jnp.concatenate([jnp.ones_like(decay)[None], powers[:-1]])
    lag = jnp.arange(time)[:, None] - jnp.arange(time)[None, :]
    matrix = jnp.where((lag >= 0)[:, :, None], from_zero[jnp.maximum(lag, 0)], 0)
    return matrix, powers


def products_between(
    decays: Inexact[Array, "time *batch n"],
) -> tuple[Inexact[Array, "time time *batch n"], Inexact[Array, "time *batch n"]]:
    """L_ts = λ_{s+1}⋯λ_t for s ≤ t, and λ_1⋯λ_t."""
    time = decays.shape[0]
    lag = jnp.arange(time)[:, None] - jnp.arange(time)[None, :]
    lag = lag.reshape(time, time, *(1,) * (decays.ndim - 1))
    steps = jnp.where(lag > 0, decays[:, None], 1)
    return jnp.where(lag >= 0, jnp.cumprod(steps, axis=0), 0), jnp.cumprod(decays, axis=0)
