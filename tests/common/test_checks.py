"""Checks on numbers and arrays, decays, and float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from underhood.common.arrays import FLOATS, array_problem, float_name, in_float64
from underhood.common.decay import NEAR, NU_ONE, NU_ZERO, decay_from_nu, kinds, nu_from_decay
from underhood.common.errors import BadInput
from underhood.common.numbers import (
    finite_or_none,
    is_number,
    is_whole,
    number_problems,
    share_problems,
    whole_problems,
)


def test_whole_numbers_are_pythons_numpys_and_jaxs() -> None:
    assert all(map(is_whole, (3, np.int64(3), jnp.asarray(3))))
    assert not any(map(is_whole, (3.0, True, np.bool_(True), "3", None, jnp.ones(2, int))))
    assert whole_problems(a=1, b=np.int32(5)) == []
    assert whole_problems(a=0) == ["a is 0; give a whole number of at least 1"]
    assert whole_problems(least=2, most=4, a=5) == ["a is 5; give a whole number from 2 to 4"]
    assert len(whole_problems(a=1.5, b="x", c=2)) == 2


def test_numbers_are_finite_and_in_range() -> None:
    assert all(map(is_number, (1, 1.5, np.float32(2), math.nan)))
    assert not any(map(is_number, (True, "1", None, 1j)))
    assert number_problems(a=0, b=0.5) == []
    assert number_problems(above=True, a=0) == ["a is 0; give a number above 0"]
    assert number_problems(least=1, most=10, a=11) == ["a is 11; give a number from 1 to 10"]
    for bad in (math.nan, math.inf, -1, "x", True):
        assert len(number_problems(a=bad)) == 1
    assert share_problems(a=0, b=0.99) == []
    assert len(share_problems(a=1, b=-0.1, c="x")) == 3
    assert finite_or_none(1) == 1.0
    assert all(finite_or_none(x) is None for x in (math.inf, -math.inf, math.nan))


def test_arrays_are_numpys_or_jaxs_and_finite() -> None:
    assert array_problem("W", np.ones(2)) is None
    assert array_problem("W", jnp.ones(2)) is None
    for value, reason in (
        ([1.0], "W is a list"),
        (np.array([None]), "Python objects"),
        (np.ones(2, int), "int64 numbers"),
        (np.ones(2, complex), "layers are real; give the two parts as separate rows"),
        (np.array([np.nan]), "NaN"),
    ):
        assert reason in array_problem("W", value)
    # Traced numbers are not known yet.
    assert jax.jit(lambda W: 0 * W[0] if array_problem("W", W) is None else None)(jnp.ones(1)) == 0


def test_a_precision_has_many_names(unhooked) -> None:
    attention = uh.LinearAttention(*np.eye(2)[None].repeat(3, 0))
    for name in ("float32", "float64"):
        for given in (name, np.dtype(name), getattr(np, name), getattr(jnp, name)):
            assert float_name(given) == name
            built = uh.compile(attention, dtype=given)
            assert {leaf.dtype for leaf in jax.tree.leaves(built.layer)} == {FLOATS[name]}
    for bad in ("float16", np.int32, None, "single", object()):
        assert float_name(bad) not in FLOATS
        with pytest.raises(BadInput, match="Unknown dtype"):
            uh.compile(attention, dtype=bad)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_decays_are_exact_at_the_ends_and_come_back(array) -> None:
    decay = array(np.array([0.0, 1e-3, 0.5, 0.999, 1.0], np.float32))
    nu = nu_from_decay(decay, about="test")
    assert isinstance(nu, np.ndarray) == isinstance(decay, np.ndarray)
    assert float(nu[0]) == NU_ZERO and float(nu[-1]) == NU_ONE
    back = np.asarray(decay_from_nu(nu))
    assert back[0] == 0 and back[-1] == 1
    np.testing.assert_allclose(back, decay, rtol=1e-5)
    assert nu_from_decay(array(np.zeros(0)), about="test").shape == (0,)
    for bad in (1.1, -0.1, np.nan):
        with pytest.raises(BadInput, match=r"^test: decay"):
            nu_from_decay(array(np.array([bad])), about="test")


def test_kinds_of_decays() -> None:
    decay = np.array([0.0, NEAR, 2 * NEAR, 0.5, 1 - NEAR / 2, 1.0])
    assert kinds(decay).tolist() == ["query"] * 2 + ["other"] * 2 + ["memory"] * 2
    assert kinds(decay, keeps=(0.5,)).tolist()[3] == "memory"


def test_in_float64_changes_precision_alone() -> None:
    layer = uh.GRU.init(d_in=2, hidden=3, key=jax.random.key(0))
    wide = in_float64(layer)
    assert jax.tree.structure(wide) == jax.tree.structure(layer)
    for leaf, expected in zip(jax.tree.leaves(wide), jax.tree.leaves(layer), strict=True):
        assert isinstance(leaf, np.ndarray) and leaf.dtype == np.float64
        np.testing.assert_array_equal(leaf, expected)
