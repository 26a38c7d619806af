"""Random layers: shapes, keys, and that every public layer is in the tables."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest
from layer_cases import CASES, CLOSE, every_layer, make, relative_error, sequence
from naive import naive

import underhood as uh

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

# --- init


COMPLEX = {
    **dict.fromkeys(("nu", "theta_log", "gamma_log"), (5,)),
    **dict.fromkeys(("B_re", "B_im"), (5, 3)),
    **dict.fromkeys(("C_re", "C_im"), (2, 5)),
    "D": (2, 3),
}
GATES = {
    **dict.fromkeys(("W_in_m", "W_in_x"), (5, 4)),
    **dict.fromkeys(("W_out_m", "W_out_x"), (6, 5)),
    "D": (2, 6),
}


def gate_shapes(letters):
    shapes = {"U": (5, 3), "V": (5, 5), "b": (5,)}
    return {f"{symbol}_{gate}": shapes[symbol] for gate in letters for symbol in "UVb"}


INITS = {
    "LinearAttention": (
        lambda key: uh.LinearAttention.init(d_in=3, d_v=2, d_k=4, key=key),
        {"W_V": (2, 3), "W_K": (4, 3), "W_Q": (4, 3)},
    ),
    "LinearAttention, square": (
        lambda key: uh.LinearAttention.init(d_in=3, key=key),
        {"W_V": (3, 3), "W_K": (3, 3), "W_Q": (3, 3)},
    ),
    "MultiHead": (
        lambda key: uh.MultiHead.init(d_in=3, heads=2, d_v=2, d_k=4, key=key),
        {
            **{
                f"heads[{i}].{W}": (rows, 3)
                for i in (0, 1)
                for W, rows in (("W_V", 2), ("W_K", 4), ("W_Q", 4))
            },
            "W_O": (4, 4),
        },
    ),
    "GatedRNN": (
        lambda key: uh.GatedRNN.init(d_in=3, hidden=5, gated=6, d_out=2, key=key),
        {**GATES, "nu": (5,)},
    ),
    "DenseGatedRNN": (
        lambda key: uh.DenseGatedRNN.init(d_in=3, hidden=5, gated=6, d_out=2, key=key),
        {**GATES, "A": (5, 5)},
    ),
    "SideGatedRNN": (
        lambda key: uh.SideGatedRNN.init(d_in=3, hidden=5, d_out=2, key=key),
        {**dict.fromkeys(("W_in_m", "W_in_x", "W_side"), (5, 3)), "nu": (5,), "D": (2, 5)},
    ),
    "LRU": (
        lambda key: uh.LRU.init(d_in=3, hidden=5, d_out=2, key=key),
        {**COMPLEX, **dict.fromkeys(("W_m", "W_x"), (2, 2))},
    ),
    "LRUInOut": (
        lambda key: uh.LRUInOut.init(d_in=3, hidden=5, d_out=2, key=key),
        {
            **COMPLEX,
            **dict.fromkeys(("W_in_m", "W_in_x"), (3, 3)),
            **dict.fromkeys(("W_m", "W_x"), (2, 2)),
        },
    ),
    "LRUInOutMLP": (
        lambda key: uh.LRUInOutMLP.init(d_in=3, hidden=5, d_out=2, key=key),
        {
            **COMPLEX,
            **dict.fromkeys(("W_in_1", "W_in_2"), (3, 3)),
            **dict.fromkeys(("W_out_1", "W_out_2"), (2, 2)),
        },
    ),
    "Mamba": (
        lambda key: uh.Mamba.init(d_in=3, hidden=5, d_out=2, inner=4, key=key),
        {
            "W_input": (4, 3),
            **dict.fromkeys(("b_input", "W_delta"), (4,)),
            "b_delta": (),
            "W_A": (5, 4),
            "b_A": (5,),
            "W_B": (5, 4, 4),
            "b_B": (5, 4),
            "W_C": (2, 5, 4),
            "b_C": (2, 5),
            "W_side": (2, 3),
        },
    ),
    "MambaBlock": (
        lambda key: uh.MambaBlock.init(d_in=3, d_out=2, inner=4, state=5, width=6, rank=2, key=key),
        {
            **dict.fromkeys(("W_in_u", "W_in_z"), (4, 3)),
            "conv": (6, 4),
            **dict.fromkeys(("b_conv", "b_dt", "D"), (4,)),
            "W_x_dt": (2, 4),
            **dict.fromkeys(("W_x_B", "W_x_C"), (5, 4)),
            "W_dt": (4, 2),
            "A_log": (4, 5),
            "W_out": (2, 4),
        },
    ),
    "LSTM": (lambda key: uh.LSTM.init(d_in=3, hidden=5, key=key), gate_shapes("fcgo")),
    "GRU": (lambda key: uh.GRU.init(d_in=3, hidden=5, key=key), gate_shapes("rhz")),
    "Stack": (
        lambda key: uh.Stack.init(
            lambda width, *, key: uh.GRU.init(d_in=width, hidden=width, key=key),
            d_in=4,
            hidden=5,
            d_out=2,
            depth=2,
            key=key,
        ),
        {
            "embed.W": (5, 4),
            "embed.b": (5,),
            **{
                f"layers[{i}].{symbol}_{gate}": {"b": (5,)}.get(symbol, (5, 5))
                for i in (0, 1)
                for symbol in "UVb"
                for gate in "rhz"
            },
            "readout.W": (2, 5),
        },
    ),
}


def named_arrays(layer):
    leaves = jax.tree_util.tree_leaves_with_path(layer)
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves}


@pytest.mark.parametrize("name", INITS)
def test_init_has_the_documented_shapes_and_runs(name):
    init, shapes = INITS[name]
    layer = init(jax.random.key(0))
    assert {path: leaf.shape for path, leaf in named_arrays(layer).items()} == shapes
    xs = sequence(6, d_in=layer.d_in)
    assert relative_error(eqx.filter_jit(layer)(xs), naive(layer, xs)) < CLOSE


# What starts the same whatever the key: biases at zero, and Mamba's documented Δ, A and D.
NOT_RANDOM = {
    "LSTM": [f"b_{gate}" for gate in "fcgo"],
    "GRU": [f"b_{gate}" for gate in "rhz"],
    "Stack": ["embed.b", *(f"layers[{i}].b_{gate}" for i in (0, 1) for gate in "rhz")],
    "Mamba": ["b_input", "W_delta", "b_delta", "b_A", "b_B"],
    "MambaBlock": ["b_conv", "A_log", "D"],
}


@pytest.mark.parametrize("name", INITS)
def test_init_depends_on_its_key_alone(name):
    init, _ = INITS[name]
    first, again, changed = (named_arrays(init(jax.random.key(seed))) for seed in (0, 0, 1))
    for path, leaf in first.items():
        np.testing.assert_array_equal(leaf, again[path])
    # Entry by entry, because a matrix may be the sum of a random diagonal and random noise.
    fixed = {path for path, leaf in first.items() if np.any(leaf == changed[path])}
    assert fixed == set(NOT_RANDOM.get(name, []))


def test_every_public_layer_is_in_the_tables():
    kinds = {
        kind
        for kind in vars(uh).values()
        if isinstance(kind, type) and issubclass(kind, uh.Layer) and kind is not uh.Layer
    }
    assert {type(make(name)) for name in CASES} == kinds
    assert {type(init(jax.random.key(0))) for init, _ in INITS.values()} == kinds


@every_layer
def test_layers_are_frozen(name):
    layer = make(name)
    for field in dataclasses.fields(layer):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(layer, field.name, getattr(layer, field.name))
