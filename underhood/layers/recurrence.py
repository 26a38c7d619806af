"""The linear recurrence h_t = λ⊙h_{t−1} + u_t, in five forms that agree.

naive         one line of arithmetic per token: what the others are tested against
scan          the same as one compiled loop: O(T) work, no parallelism over time
associative   (λ₁, u₁)∘(λ₂, u₂) = (λ₁λ₂, λ₂u₁ + u₂) in a tree: O(T) work, depth log T
decay_matrix  h = L u with L_ts = λ^{t−s} for s ≤ t: one matrix product per neuron, O(T²)
chunkwise     decay_matrix inside chunks, the tree between them: O(T) work and memory

`decay` is [n], or [time, n] when it depends on the input (Mamba); real or complex.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

Decay = Inexact[Array, " n"] | Inexact[Array, "time n"]
States = Inexact[Array, "time n"]
Form = Callable[[Decay, States, Inexact[Array, " n"]], States]

# A chunk's decay matrix has CHUNK²·n entries; 64 keeps it inside the cache for n ≤ 1000 or so
# while the work per token (64 multiply-adds a neuron) stays below that of the gates around it.
CHUNK = 64


def linear_recurrence(
    decay: Decay,
    inputs: States,
    *,
    initial: Inexact[Array, " n"] | None = None,
    form: Form | None = None,
) -> States:
    """All states of h_t = λ⊙h_{t−1} + u_t; picks the form by device and length unless told."""
    decay, inputs = jnp.asarray(decay), jnp.asarray(inputs)
    dtype = jnp.result_type(decay, inputs)
    if initial is None:
        initial = jnp.zeros(inputs.shape[1:], dtype)
    form = form or best_form(decay.ndim == 1, inputs.shape[0], jax.default_backend())
    return form(decay.astype(dtype), inputs.astype(dtype), initial.astype(dtype))


def best_form(constant: bool, time: int, backend: str) -> Form:
    """The fastest form that is linear in time (`benchmarks/recurrence.py`).

    A CPU runs the scan at the speed of its memory. An accelerator waits for a launch per token, so
    there matrix products win, or the tree where the decay changes and has no powers to share.
    """
    if backend == "cpu":
        return scan
    if not constant:
        return associative
    return decay_matrix if time <= CHUNK else chunkwise


def naive(decay: Decay, inputs: States, initial: Inexact[Array, " n"]) -> States:
    """The definition, token by token."""
    decays = jnp.broadcast_to(decay, inputs.shape)
    state, states = initial, []
    for t in range(inputs.shape[0]):
        state = decays[t] * state + inputs[t]
        states.append(state)
    return jnp.stack(states) if states else inputs


def scan(decay: Decay, inputs: States, initial: Inexact[Array, " n"]) -> States:
    """The definition as a compiled loop."""

    def step(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        state = now[0] * state + now[1]
        return state, state

    return jax.lax.scan(step, initial, (jnp.broadcast_to(decay, inputs.shape), inputs))[1]


def associative(decay: Decay, inputs: States, initial: Inexact[Array, " n"]) -> States:
    """A parallel prefix over the affine maps h ↦ λh + u."""

    def compose(first: tuple[Array, Array], then: tuple[Array, Array]) -> tuple[Array, Array]:
        return first[0] * then[0], then[0] * first[1] + then[1]

    decays = jnp.broadcast_to(decay, inputs.shape)
    products, states = jax.lax.associative_scan(compose, (decays, inputs))
    return states + products * initial


def decay_matrix(decay: Decay, inputs: States, initial: Inexact[Array, " n"]) -> States:
    """h_t = Σ_{s≤t} L_ts u_s + L_t0 h_0, L written out."""
    if decay.ndim == 1:
        matrix, from_start = toeplitz(decay, inputs.shape[0])
    else:
        matrix, from_start = products_between(decay)
    return jnp.einsum("tsn,sn->tn", matrix, inputs) + from_start * initial


def chunkwise(
    decay: Decay, inputs: States, initial: Inexact[Array, " n"], chunk: int = CHUNK
) -> States:
    """Chunks in parallel as if each started from zero, then what the earlier ones add."""
    time, n = inputs.shape
    blocks = -(-time // chunk)
    padded = jnp.pad(inputs, ((0, blocks * chunk - time), (0, 0))).reshape(blocks, chunk, n)
    if decay.ndim == 2:
        # One decay matrix per chunk would take T·chunk·n numbers, so chunks go one by one.
        decays = jnp.pad(decay, ((0, blocks * chunk - time), (0, 0))).reshape(blocks, chunk, n)

        def advance(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            states = associative(now[0], now[1], state)
            return states[-1], states

        return jax.lax.scan(advance, initial, (decays, padded))[1].reshape(blocks * chunk, n)[:time]
    matrix, from_start = toeplitz(decay, chunk)
    local = jnp.einsum("tsn,bsn->btn", matrix, padded)
    leaving = associative(from_start[-1], local[:, -1], initial)
    entering = jnp.concatenate([initial[None], leaving[:-1]])
    return (local + from_start * entering[:, None]).reshape(blocks * chunk, n)[:time]


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
    decays: Inexact[Array, "time n"],
) -> tuple[Inexact[Array, "time time n"], Inexact[Array, "time n"]]:
    """L_ts = λ_{s+1}⋯λ_t for s ≤ t, and λ_1⋯λ_t."""
    time = decays.shape[0]
    after = jnp.arange(time)[:, None] > jnp.arange(time)[None, :]
    steps = jnp.where(after[:, :, None], decays[:, None], 1)
    matrix = jnp.where(
        (after | jnp.eye(time, dtype=bool))[:, :, None], jnp.cumprod(steps, axis=0), 0
    )
    return matrix, jnp.cumprod(decays, axis=0)
