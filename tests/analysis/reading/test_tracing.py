"""What `trace` returns is what the layer computes, and a changed value has its consequences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from refusals import refused

import underhood as uh

pytestmark = pytest.mark.usefixtures("x64")

TIME, AT = 9, 4


@cases.every_layer
def test_outputs_are_those_of_the_layer(name: str) -> None:
    layer, xs = cases.make(name), cases.sequence(TIME)
    traced = uh.trace(layer, xs)
    assert {len(values) for values in traced.values()} == {TIME}
    assert cases.relative_error(traced["output"], jax.jit(layer)(xs)) < cases.CLOSE


def stepped_from(layer, state, xs):
    """Outputs of the loop that a user would write, from a given state on."""
    ys = []
    for x in xs:
        state, y = layer.step(state, x)
        ys.append(y)
    return jnp.stack(ys)


SINGLE = ("attention, biases and decay", "gated RNN", "side-gated RNN", "dense gated RNN", "LRU")
SINGLE = (*SINGLE, "LRU in-out", "LRU in-out MLP", "Mamba", "GRU", "GRU, reset after")


@pytest.mark.parametrize("name", SINGLE)
def test_a_changed_state_is_run_on_from(name: str) -> None:
    layer, xs = cases.make(name), cases.sequence(TIME)
    plain = uh.trace(layer, xs)
    new = plain["state"][AT] * 0.5 + 0.1
    traced = uh.trace(layer, xs, {f"state[{AT}]": new})
    np.testing.assert_array_equal(traced["state"][AT], new)
    later = stepped_from(layer, new, xs[AT + 1 :])
    assert cases.relative_error(traced["output"][AT + 1 :], later) < cases.CLOSE
    # Nothing before it changes, and the output at that token reads the new state.
    np.testing.assert_array_equal(traced["output"][:AT], plain["output"][:AT])
    assert not np.allclose(traced["output"][AT], plain["output"][AT])
    unchanged = uh.trace(layer, xs, {f"state[{AT}]": plain["state"][AT]})
    assert cases.relative_error(unchanged["output"], plain["output"]) < cases.CLOSE


def test_an_lstm_has_two_states_that_can_be_changed() -> None:
    layer, xs = cases.make("LSTM"), cases.sequence(TIME)
    h, c = jnp.full(5, 0.2), jnp.full(5, -0.3)
    traced = uh.trace(layer, xs, {f"state[{AT}]": h, f"cell[{AT}]": c})
    later = stepped_from(layer, (h, c), xs[AT + 1 :])
    assert cases.relative_error(traced["output"][AT + 1 :], later) < cases.CLOSE


def test_names_are_the_terms_of_the_equations() -> None:
    xs = cases.sequence(TIME)
    layer = cases.make("gated RNN")
    traced = uh.trace(layer, xs)
    np.testing.assert_array_equal(traced["written"], traced["in_m"] * traced["in_x"])
    assert cases.relative_error(traced["written"], layer.write(xs)) < cases.CLOSE
    assert cases.relative_error(traced["state"], layer.states(layer.write(xs))) < cases.CLOSE
    traced = uh.trace(cases.make("LSTM"), xs)
    assert set(traced) == {"f", "candidate", "g", "o", "written", "cell", "state", "output"}
    before = jnp.concatenate([jnp.zeros((1, 5)), traced["cell"][:-1]])
    cell = traced["f"] * before + traced["g"] * traced["candidate"]
    assert cases.relative_error(traced["cell"], cell) < cases.CLOSE
    stacked = uh.trace(cases.make("stack"), xs)
    assert {"embed", "layers[0].z", "layers[1].in_m", "output"} <= set(stacked)
    heads = uh.trace(cases.make("heads, W_O"), xs)
    assert {"heads[0].key", "heads[2].state", "output"} <= set(heads)


def test_any_value_can_be_changed_also_inside_a_stack() -> None:
    layer, xs = cases.make("stack"), cases.sequence(TIME)
    plain = uh.trace(layer, xs)
    traced = uh.trace(layer, xs, {"layers[0].output[2]": np.zeros(3), "embed[5]": np.ones(3)})
    assert not np.any(traced["layers[0].output"][2])
    # The output of a layer is read by the next one, not by the layer itself.
    assert np.array_equal(traced["layers[0].state"][:5], plain["layers[0].state"][:5])
    assert not np.allclose(traced["layers[1].state"][2], plain["layers[1].state"][2])
    assert not np.allclose(traced["layers[0].state"][5], plain["layers[0].state"][5])


def test_gradients_and_other_peoples_layers() -> None:
    layer, xs = cases.in_jax(cases.make("GRU")), cases.sequence(TIME)
    slope = jax.grad(lambda xs: jnp.sum(uh.trace(layer, xs)["output"]))(xs)
    assert cases.relative_error(slope, jax.grad(lambda xs: jnp.sum(layer(xs)))(xs)) < cases.CLOSE

    class Sum(uh.Layer):
        W: jax.Array
        d_in = d_out = neurons = gate_width = 2

        def initial_state(self):
            return jnp.zeros(2)

        def step(self, state, x):
            return state + self.W @ x, state

    traced = uh.trace(Sum(jnp.eye(2)), jnp.ones((3, 2)), {"state[1]": np.zeros(2)})
    np.testing.assert_array_equal(traced["state"][:, 0], [1, 0, 1])


GATED, XS = cases.make("gated RNN"), np.zeros((TIME, 3))
REFUSED = {
    "trace takes a layer or a torch module, not a dict": ({}, XS, None),
    "one sequence [time, 3]": (GATED, np.zeros((2, TIME, 3)), None),
    "takes a NumPy or JAX array": (GATED, [[1.0]], None),
    "no 'stat' … Did you mean 'state'?": (GATED, XS, {"stat[2]": np.zeros(5)}),
    "'state' names no place; write 'state[12]'": (GATED, XS, {"state": np.zeros(5)}),
    "3 names no place": (GATED, XS, {3: np.zeros(5)}),
    "'state[9]' is not there … from 0 to 8": (GATED, XS, {"state[9]": np.zeros(5)}),
    "'state[-1]' is not there": (GATED, XS, {"state[-1]": np.zeros(5)}),
    "(4,) but must be (5,)": (GATED, XS, {"state[1]": np.zeros(4)}),
    "complex, and the layer is real": (GATED, XS, {"state[1]": np.zeros(5, complex)}),
    "the value of 'state[1]' is a str": (GATED, XS, {"state[1]": "high"}),
    "patch is a dict": (GATED, XS, [("state[1]", 0.0)]),
}


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("words", REFUSED)
def test_refused(words: str) -> None:
    with refused(words):
        uh.trace(*REFUSED[words])


def test_a_network_for_float64_refuses_float32() -> None:
    built = uh.compile(uh.LinearAttention(*np.eye(3)[None].repeat(3, 0)), "lstm", order=1)
    with jax.enable_x64(False), refused("linearised for float64"):
        uh.trace(built.layer, jnp.ones((2, 3)))
    assert eqx.is_array(uh.trace(built.layer, jnp.ones((2, 3)))["layers[0].cell"])
