"""The linear recurrence: its forms agree, and the default one is linear in time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilation import compiled_for_users
from hypothesis import given, settings, strategies as st

import underhood as uh
from underhood.layers.base import recurrence
from underhood.layers.base.recurrence import CHUNK, associative, chunkwise, doubling, scan

pytestmark = pytest.mark.usefixtures("x64")

CLOSE = 1e-12


def naive(decay, inputs, initial):
    """The definition, token by token."""
    decays = jnp.broadcast_to(decay, inputs.shape)
    state, states = initial, []
    for t in range(inputs.shape[0]):
        state = decays[t] * state + inputs[t]
        states.append(state)
    return jnp.stack(states) if states else inputs


FORMS = {form.__name__: form for form in (naive, scan, associative, doubling, chunkwise)}
LONG = 65_536
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 2)

constant_and_varying = pytest.mark.parametrize(
    "varying", [False, True], ids=["constant", "varying"]
)


def draw(kind, varying, time, n=3, seed=0):
    """Decays with exact zeros and ones among them, inputs, and a first state."""
    rng = np.random.default_rng(seed)
    shape = (time, n) if varying else (n,)
    decay = rng.uniform(0, 1, shape)
    decay[..., :1] = 0
    decay[..., 1:2] = 1
    if varying:
        # Zeros and ones that come and go, where a quotient of products would fail.
        decay[rng.uniform(size=shape) < 0.1] = 0
        decay[rng.uniform(size=shape) < 0.1] = 1
    inputs, initial = rng.normal(size=(time, n)), rng.normal(size=n)
    if kind is complex:
        # A phase leaves 0 as it is, and here the first 1 too.
        phase = np.exp(2j * np.pi * rng.uniform(size=shape))
        phase[..., 1:2] = 1
        decay = decay * phase
        inputs = inputs + 1j * rng.normal(size=inputs.shape)
        initial = initial + 1j * rng.normal(size=n)
    return jnp.asarray(decay), jnp.asarray(inputs), jnp.asarray(initial)


def definition(decay, inputs, initial):
    """h_t = λ_t h_{t−1} + u_t in NumPy."""
    decay, inputs, state = (np.asarray(array) for array in (decay, inputs, initial))
    states = np.zeros(inputs.shape, np.result_type(decay, inputs, state))
    for t in range(len(inputs)):
        state = (decay if decay.ndim == 1 else decay[t]) * state + inputs[t]
        states[t] = state
    return states


def definition_gradients(decay, inputs, initial, projection):
    """Of Σ Re(p̄ h), backwards by hand: ḡ_t = p̄_t + λ_{t+1} ḡ_{t+1}, as jax.grad conjugates."""
    decay, inputs, initial, projection = map(np.asarray, (decay, inputs, initial, projection))
    states = definition(decay, inputs, initial)
    before = np.concatenate([initial[None], states])[:-1]
    decays = np.broadcast_to(decay, inputs.shape)
    to_decay, to_inputs = np.zeros_like(before), np.zeros_like(before)
    slope = np.zeros_like(initial)
    for t in reversed(range(len(inputs))):
        slope = slope + projection[t].conj()
        to_inputs[t], to_decay[t] = slope, slope * before[t]
        slope = slope * decays[t]
    return to_decay if decay.ndim == 2 else to_decay.sum(axis=0), to_inputs, slope


def assert_close(value, expected):
    assert value.shape == expected.shape
    if expected.size:
        scale = max(float(np.max(np.abs(expected))), 1.0)
        assert float(np.max(np.abs(np.asarray(value) - expected))) < CLOSE * scale


def outputs_and_gradients(form):
    """A form with its gradients with respect to decay, inputs and initial, compiled together."""

    def loss(decay, inputs, initial, projection):
        states = uh.linear_recurrence(decay, inputs, initial=initial, form=form)
        return jnp.sum((projection.conj() * states).real), states

    slopes = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)

    @jax.jit
    def both(*arguments):
        (_, states), gradients = slopes(*arguments)
        return states, gradients

    return both


# Five lengths around the chunk for real numbers; one below and one above it for complex ones,
# which compile slowly. The naive form compiles one operation per token and knows no chunks.
@constant_and_varying
@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("name", FORMS)
def test_forms_agree_with_the_definition(name, kind, varying):
    run = outputs_and_gradients(FORMS[name])
    lengths = LENGTHS if kind is float else (5, CHUNK + 1)
    for time in (1, 7) if name == "naive" else lengths:
        arguments = draw(kind, varying, time, n=4)
        projection = draw(kind, varying, time, n=4, seed=1)[1]
        states, slopes = run(*arguments, projection)
        assert_close(states, definition(*arguments))
        expected = definition_gradients(*arguments, projection)
        for slope, by_hand in zip(slopes, expected, strict=True):
            assert np.all(np.isfinite(slope))
            assert_close(slope, by_hand)


@constant_and_varying
@pytest.mark.parametrize("name", FORMS)
def test_many_sequences_side_by_side(name, varying):
    time = 7 if name == "naive" else CHUNK + 1
    sequences = [draw(float, varying, time, n=3, seed=seed) for seed in range(4)]
    decays, inputs, initial = (jnp.stack(parts) for parts in zip(*sequences, strict=True))
    decay = jnp.moveaxis(decays, 0, 1) if varying else decays[0]
    inputs_by_time = jnp.moveaxis(inputs, 0, 1)
    together = uh.linear_recurrence(decay, inputs_by_time, initial=initial, form=FORMS[name])
    for number in range(4):
        parts = (decays[number if varying else 0], inputs[number], initial[number])
        assert_close(together[:, number], definition(*parts))


@constant_and_varying
def test_forward_mode_and_second_derivatives(varying):
    arguments = draw(float, varying, 7, n=3)

    def energy(form):
        return lambda *given: jnp.sum(
            jnp.sin(uh.linear_recurrence(given[0], given[1], initial=given[2], form=form))
        )

    for order in (jax.jacfwd, jax.hessian, lambda f, a: jax.jacrev(jax.jacfwd(f, a), a)):
        # Compiled whole, because that is faster than one operation after the other.
        expected = jax.jit(order(energy(naive), (0, 1, 2)))(*arguments)
        result = jax.jit(order(energy(doubling), (0, 1, 2)))(*arguments)
        jax.tree.map(assert_close, result, jax.tree.map(np.asarray, expected))


def test_a_matrix_holds_the_powers_of_the_decay():
    decay = draw(float, False, 7, n=3)[0]
    matrix, from_start = recurrence.toeplitz(decay, 7)
    for t in range(7):
        assert_close(from_start[t], decay ** (t + 1))
        for s in range(7):
            assert_close(matrix[t, s], decay ** (t - s) if s <= t else np.zeros(3))


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(FORMS)),
    kind=st.sampled_from([float, complex]),
    varying=st.booleans(),
    time=st.integers(0, 20),
    n=st.integers(0, 5),
    chunk=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_forms_agree_at_any_size(name, kind, varying, time, n, chunk, seed):
    arguments = draw(kind, varying, time, n, seed)
    more = {"chunk": chunk} if name == "chunkwise" else {}
    # Compiled, because one compilation is faster than one per operation.
    states = jax.jit(lambda *given: FORMS[name](*given, **more))(*arguments)
    assert_close(states, definition(*arguments))


# --- the default form


@pytest.mark.parametrize(
    ("backend", "varying", "time", "expected"),
    [
        ("cpu", False, 1, scan),
        ("cpu", False, LONG, scan),
        ("cpu", True, LONG, scan),
        ("gpu", False, 1, doubling),
        ("gpu", False, CHUNK, doubling),
        ("gpu", False, CHUNK + 1, chunkwise),
        ("gpu", False, LONG, chunkwise),
        ("gpu", True, 1, associative),
        ("gpu", True, LONG, associative),
        ("tpu", False, LONG, chunkwise),
    ],
)
def test_the_default_form_goes_by_device_and_length(monkeypatch, backend, varying, time, expected):
    used = []
    for form in (scan, associative, doubling, chunkwise):
        # A stand-in with the form's name that notes the choice and works out nothing.
        def noted(decay, inputs, initial, form=form):
            return used.append(form) or inputs

        monkeypatch.setattr(recurrence, form.__name__, noted)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    arrays = jnp.ones((time, 2) if varying else 2), jnp.ones((time, 2))
    uh.linear_recurrence(*arrays)
    monkeypatch.undo()
    assert used == [expected]
    assert recurrence.best_form(not varying, time, backend) is expected


@constant_and_varying
@pytest.mark.parametrize("time", [5, CHUNK + 1])
def test_a_real_decay_of_complex_inputs_and_the_state_at_the_start(time, varying):
    decay = draw(float, varying, time)[0]
    _, inputs, initial = draw(complex, varying, time)
    states = uh.linear_recurrence(decay, inputs, initial=initial)
    assert states.dtype == complex
    assert_close(states, definition(decay, inputs, initial))
    # It is zero unless given.
    inputs, nothing = inputs.real, 0 * initial.real
    assert_close(uh.linear_recurrence(decay, inputs), definition(decay, inputs, nothing))


def scratch_bytes(run, *arguments):
    """What a compiled function needs besides its arguments and results."""
    compiled = jax.jit(run).lower(*arguments).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def long_gradient(*arguments):
    def loss(decay, inputs):
        return jnp.sum(jnp.sin(uh.linear_recurrence(decay, inputs)))

    return jax.grad(loss, argnums=(0, 1))(*arguments)


@pytest.fixture(params=["cpu", "gpu"])
def backend(request, monkeypatch):
    """The choice of form that each kind of device makes, whatever the tests run on."""
    monkeypatch.setattr(jax, "default_backend", lambda: request.param)


@pytest.mark.usefixtures("backend")
@constant_and_varying
def test_a_long_sequence_matches_the_scan(varying):
    decay, inputs, initial = draw(float, varying, LONG, n=8)
    expected = jax.jit(scan)(decay, inputs, initial)
    # A function of its own, so that one device's choice is not found in the other's cache.
    run = jax.jit(lambda decay, inputs: uh.linear_recurrence(decay, inputs, initial=initial))
    states = run(decay, inputs)
    assert_close(states, np.asarray(expected))
    # Both could be wrong together at the far end, so the end is checked against the definition.
    assert_close(states[-1], definition(decay, inputs, initial)[-1])


# Measured: at most 2.5 times the inputs, and 13 times for gradients. One decay matrix would take
# as many times as there are tokens, and a chunk's matrix for every chunk 64 times. Gradients of
# long trees compile slowly, so they are shorter.
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("run", "time", "multiple"), [(uh.linear_recurrence, LONG, 4), (long_gradient, LONG // 16, 16)]
)
@constant_and_varying
@compiled_for_users(machine_code=False)
def test_memory_is_linear_in_time(run, time, multiple, varying):
    def scratch(time):
        shape = (time, 8) if varying else (8,)
        return scratch_bytes(lambda *both: run(*both), jnp.zeros(shape), jnp.zeros((time, 8)))

    inputs_bytes = time * 8 * 8
    once, twice = scratch(time), scratch(2 * time)
    assert once < multiple * inputs_bytes
    # Half the inputs' size stands for "nothing", where a form needs next to no scratch at all.
    assert twice < 2.1 * max(once, inputs_bytes / 2)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("decay", [None, np.array([0.5, 1.0])], ids=["plain", "decay"])
@compiled_for_users(machine_code=False)
def test_attention_memory_is_linear_in_time(decay):
    rng = np.random.default_rng(0)
    attention = uh.LinearAttention(*rng.normal(size=(3, 2, 2)), decay=decay)
    # A lambda, because jax.jit would hash the layer and with it its arrays.
    once, twice = (
        scratch_bytes(lambda xs: attention(xs), jnp.zeros((time, 2))) for time in (LONG, 2 * LONG)
    )
    # Inside a chunk every token meets up to CHUNK others, once per row when the rows decay.
    assert once < 4 * CHUNK * LONG * 2 * 8
    assert twice < 2.1 * once
