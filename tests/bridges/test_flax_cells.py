"""Flax's own cells against the layers that are read from their parameters, and back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from bridge_cases import layer_of

import underhood as uh

linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")

pytestmark = pytest.mark.usefixtures("x64")

LINEN = {
    "flax.LSTM": (linen.OptimizedLSTMCell, linen.LSTMCell),
    "flax.GRU": (linen.GRUCell,),
}
NNX = {"nnx.LSTM": nnx.OptimizedLSTMCell, "nnx.GRU": nnx.GRUCell, "flax.LSTM": nnx.LSTMCell}


def tokens():
    """Made inside a test, where float64 is on."""
    return cases.sequence(12)


def run_cell(step, is_lstm: bool, xs):
    """Return the states h of a cell; `step(carry, x)` returns (carry, h)."""
    carry = (jnp.zeros(5), jnp.zeros(5)) if is_lstm else jnp.zeros(5)
    outputs = []
    for x in xs:
        carry, h = step(carry, x)
        outputs.append(h)
    return jnp.stack(outputs)


def check_gradients(layer, xs, weights, kind: str, theirs: tuple[dict, jax.Array]) -> None:
    """Their gradients, of all parameters and of the tokens, are ours under their names."""
    slopes, slope = eqx.filter_grad(lambda both: jnp.sum(weights * both[0](both[1])))((layer, xs))
    assert cases.relative_error(slope, theirs[1]) < 1e-12
    if kind == "nnx.GRU":
        # The cell has no such parameter, so a gradient there has no name.
        slopes = eqx.tree_at(lambda layer: layer.c_h, slopes, jnp.zeros(5))
    # Names and signs are changed in a linear way, so gradients are renamed as weights are.
    for name, slope in uh.to_state_dict(slopes, kind).items():
        cell, part = name.split(".")
        tree = theirs[0]
        expected = tree[cell if cell in tree else f"{cell}_"][part]
        assert cases.relative_error(slope, expected) < 1e-12, name


def nested(arrays: dict) -> dict:
    tree: dict = {}
    for name, array in arrays.items():
        cell, part = name.split(".")
        tree.setdefault(cell, {})[part] = jnp.asarray(array)
    return tree


@pytest.mark.parametrize("kind", LINEN)
def test_linen_cells_in_outputs_and_gradients(kind: str) -> None:
    xs = tokens()
    layer, is_lstm = layer_of(kind), kind == "flax.LSTM"
    params = nested(uh.to_state_dict(layer, kind))
    for make in LINEN[kind]:
        cell = make(features=5)

        def outputs(params, xs, cell=cell):
            return run_cell(lambda c, x: cell.apply({"params": params}, c, x), is_lstm, xs)

        assert cases.relative_error(layer(xs), outputs(params, xs)) < 1e-12
        carry = (jnp.zeros(5), jnp.zeros(5)) if is_lstm else jnp.zeros(5)
        drawn = cell.init(jax.random.key(1), carry, xs[0])
        drawn = jax.tree.map(lambda leaf: jnp.asarray(leaf, float) + 0.1, drawn)
        read = uh.from_state_dict(drawn, kind)
        assert cases.relative_error(read(xs), outputs(drawn["params"], xs)) < 1e-12
        weights = cases.projection(layer, len(xs))
        theirs = jax.grad(lambda both: jnp.sum(weights * outputs(*both)))((params, xs))  # noqa: B023
        check_gradients(layer, xs, weights, kind, theirs)


@pytest.mark.parametrize("kind", NNX)
def test_nnx_cells(kind: str) -> None:
    xs = tokens()
    layer, is_lstm = layer_of(kind), kind.endswith("LSTM")
    cell = NNX[kind](3, 5, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    drawn = nnx.to_pure_dict(nnx.state(cell, nnx.Param))
    drawn = jax.tree.map(lambda leaf: leaf + 0.1, drawn)
    nnx.update(cell, drawn)
    read = uh.from_state_dict(drawn, kind)
    assert cases.relative_error(read(xs), run_cell(cell, is_lstm, xs)) < 1e-12
    params = nested(uh.to_state_dict(layer, kind))
    if "if" in params:
        params["if_"] = params.pop("if")
    nnx.update(cell, params)
    assert cases.relative_error(layer(xs), run_cell(cell, is_lstm, xs)) < 1e-12
    weights, (shape, state, rest) = (
        cases.projection(layer, len(xs)),
        nnx.split(cell, nnx.Param, ...),
    )

    def loss(both):
        return jnp.sum(weights * run_cell(nnx.merge(shape, both[0], rest), is_lstm, both[1]))

    slopes, slope = jax.grad(loss)((state, xs))
    check_gradients(layer, xs, weights, kind, (nnx.to_pure_dict(slopes), slope))


def test_compiled_attention_in_two_gru_cells() -> None:
    xs, rng = tokens(), np.random.default_rng(0)
    attention = uh.LinearAttention(*(rng.normal(size=(3, 3)) / 2 for _ in range(3)))
    built = uh.compile(attention, "gru", order=3, layers=2, reset="after")
    hs = xs if built.layer.embed is None else built.layer.embed(xs)
    for layer in built.layer.layers:
        params = {"params": nested(uh.to_state_dict(layer, "flax.GRU"))}
        cell = linen.GRUCell(features=layer.neurons)
        carry, outputs = jnp.zeros(layer.neurons), []
        for x in hs:
            carry, h = cell.apply(params, carry, x)
            outputs.append(h)
        hs = jnp.stack(outputs)
    assert cases.relative_error(built.layer.readout(hs), attention(xs)) < 1e-10


def test_compiled_attention_in_flax() -> None:
    xs, rng = tokens(), np.random.default_rng(0)
    attention = uh.LinearAttention(*(rng.normal(size=(3, 3)) / 2 for _ in range(3)))
    built = uh.compile(attention, "lstm", order=3)
    (layer,) = built.layer.layers
    params = {"params": nested(uh.to_state_dict(layer, "flax.LSTM"))}
    cell = linen.OptimizedLSTMCell(features=layer.neurons)
    carry, outputs = (jnp.zeros(layer.neurons),) * 2, []
    for x in xs:
        carry, h = cell.apply(params, carry, x)
        outputs.append(built.layer.readout(h))
    assert cases.relative_error(jnp.stack(outputs), attention(xs)) < 1e-10
