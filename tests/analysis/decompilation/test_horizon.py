"""Up to which length the promise holds, and bounds at extreme scales."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adversaries import compiled, doubled_memory, leaking, random_network

import underhood as uh
from underhood.analysis.decompilation.bounding.horizons import LONGEST_HORIZON, longest

pytestmark = pytest.mark.usefixtures("x64")


def test_exact_networks_keep_it_as_long_as_one_looks():
    result = uh.decompile(compiled())
    assert result.horizon() == LONGEST_HORIZON
    # A larger tolerance or a smaller radius promises no less.
    assert result.horizon(radius=0.5) == LONGEST_HORIZON


def test_slow_leaks_are_seen():
    rnn = doubled_memory(compiled(), 1e2, 1e-7)
    result = uh.decompile(rnn)
    assert result.is_attention and result.residual < 1e-4
    horizon = result.horizon(radius=2.0)
    assert 32 < horizon < 4096
    certificate = result.certificate
    xs = jnp.full((4096, 3), 2 / np.sqrt(3))
    apart = np.linalg.norm(np.asarray(rnn(xs)) - np.asarray(result.attention(xs)), axis=1)
    assert apart[:horizon].max() <= certificate.bound(2.0, horizon)
    assert result.horizon(radius=2.0) == horizon
    assert result.promise() == (
        f"attention up to {horizon:,} tokens of norm ≤ 2: in float64 the outputs differ by at most "
        "0.001 of the attention's largest"
    )
    assert result.promise() in str(result)


def test_what_is_not_attention_promises_nothing():
    result = uh.decompile(random_network(0))
    assert not result.is_attention
    assert result.promise() == "the certificate promises no length at tokens of norm ≤ 2"


def test_a_single_leak_is_a_decay():
    result = uh.decompile(leaking(compiled(), 1e-7))
    assert result.is_attention and result.residual < 1e-10
    np.testing.assert_allclose(result.attention.decay, 1 - 1e-7, atol=1e-12)


def test_no_length_is_certain_for_what_is_not_attention():
    assert uh.decompile(random_network()).horizon() == 0


@pytest.mark.parametrize("limit", [0, 1, 5, 31, 32, 33, 1000, 123456])
def test_the_longest_length_is_found(limit):
    result = longest(lambda time: time <= limit, 32)
    assert limit - limit // 1000 <= result <= limit


@pytest.mark.parametrize("power", [100, -100, -170, -300])
def test_bounds_at_extreme_scales_are_not_exceeded(power):
    rng = np.random.default_rng(0)
    base = compiled()
    off = eqx.tree_at(
        lambda rnn: rnn.W_in_m, base, base.W_in_m * (1 + 1e-6 * rng.normal(size=base.W_in_m.shape))
    )
    rnn = eqx.tree_at(lambda layer: layer.D, off, np.asarray(off.D) * 10.0**power)
    result = uh.decompile(rnn)
    assert result.is_attention
    bound = result.certificate.bound(2.0, 16)
    xs = rng.normal(size=(20, 16, 3))
    xs = 2 * xs / np.linalg.norm(xs, axis=2, keepdims=True)
    outputs = [np.asarray(jax.vmap(layer)(xs)) for layer in (rnn, result.attention)]
    apart = (outputs[0] - outputs[1]) / bound
    assert 0 < bound < np.inf and np.linalg.norm(apart, axis=2).max() <= 1
