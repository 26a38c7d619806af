"""What layers refuse, and that one line says why."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from layer_cases import D_IN, every_layer, gates_of, lru_in_out_mlp, make, parallel

import underhood as uh

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

# --- refusals


@every_layer
@pytest.mark.parametrize("shape", [(D_IN,), (5, D_IN + 1), (2, 5, D_IN), ()])
def test_wrong_input_shapes_are_refused(name, shape, unhooked):
    layer = make(name)
    for run in (parallel, uh.stream, eqx.filter_jit(parallel)):
        with pytest.raises(uh.BadInput, match=r"\[time, 3\].*jax\.vmap") as caught:
            run(layer, jnp.ones(shape))
        assert str(shape) in str(caught.value)
        assert "\n" not in str(caught.value)


def W(*shape):
    return np.ones(shape)


HEAD = uh.LinearAttention(W(2, 3), W(4, 3), W(4, 3))


def gated_with(**changes):
    weights = {
        "W_in_m": W(5, 4),
        "W_in_x": W(5, 4),
        "decay": W(5),
        "W_out_m": W(6, 5),
        "W_out_x": W(6, 5),
        "D": W(2, 6),
    }
    return lambda: uh.GatedRNN(**(weights | changes))


def gru_with(**changes):
    return lambda: uh.GRU(**(gates_of(np.random.default_rng(0), "rhz") | changes))


def mamba_with(**changes):
    fields = {
        field.name: getattr(make("Mamba"), field.name) for field in dataclasses.fields(uh.Mamba)
    }
    return lambda: uh.Mamba(**(fields | changes))


# What is built, and every fragment that the one line must hold.
REFUSED = {
    "rank": (
        lambda: uh.LinearAttention(W(3), W(4, 3), W(4, 3)),
        ["LinearAttention", "W_V", "(3,)", "[d_v, d_in]"],
    ),
    "rank of a bias": (gru_with(b_r=W(5, 1)), ["GRU", "b_r", "(5, 1)", "[hidden]"]),
    "rank of a scalar": (mamba_with(b_delta=W(1)), ["Mamba", "b_delta", "(1,)"]),
    "rank of a tensor": (mamba_with(W_B=W(5, 16)), ["W_B", "(5, 16)", "[hidden, inner, inner]"]),
    "every size": (
        lambda: uh.LinearAttention(W(2, 3), W(4, 5), W(6, 7), b_V=W(8), b_K=W(4)),
        [
            "W_K has shape (4, 5)",
            "W_Q has shape (6, 7)",
            "b_V has shape (8,)",
            "d_in",
            "d_k",
            "d_v",
        ],
    ),
    "sizes of gates": (
        gated_with(W_in_x=W(5, 3), W_out_x=W(7, 5), D=W(2, 5)),
        ["GatedRNN", "W_in_x", "W_out_x has shape (7, 5)", "D has shape (2, 5)"],
    ),
    "square matrices": (gru_with(V_h=W(5, 4)), ["V_h", "(5, 4)", "hidden is 5"]),
    "length of the decay": (gated_with(decay=W(4)), ["GatedRNN", "(4,)", "hidden is 5"]),
    "problems of every kind": (
        lambda: uh.LinearAttention(
            W(3), [[1.0]], np.full((4, 3), np.nan), b_V=np.ones(2, int), b_K=np.ones(2, object)
        ),
        [
            "W_V has shape (3,)",
            "W_K is a list",
            "W_Q holds NaN",
            "b_V holds int64",
            "b_K holds Python",
        ],
    ),
    "NaN": (gru_with(U_z=np.full((5, 3), np.nan)), ["GRU", "U_z", "NaN"]),
    "infinity": (gru_with(U_z=np.full((5, 3), -np.inf)), ["GRU", "U_z", "infinite"]),
    "NaN in JAX": (lambda: uh.Affine(jnp.full((2, 2), jnp.nan)), ["Affine", "W holds NaN"]),
    "NaN decay": (gated_with(decay=np.array([1, 1, np.nan, 1, 1])), ["GatedRNN", "decay", "NaN"]),
    "integers": (gated_with(D=np.ones((2, 6), int)), ["D holds int64", "astype(float)"]),
    "integer decay": (gated_with(decay=np.ones(5, int)), ["decay holds int64", "astype(float)"]),
    "booleans": (gated_with(D=np.ones((2, 6), bool)), ["D holds bool"]),
    "complex numbers": (gated_with(D=W(2, 6) * 1j), ["D holds complex128"]),
    "objects": (gated_with(D=np.ones((2, 6), object)), ["D holds Python objects"]),
    "lists": (gru_with(b_h=[0.0] * 5), ["GRU", "b_h is a list", "array"]),
    "a list for the decay": (gated_with(decay=[1.0] * 5), ["decay is a list", "array"]),
    "a number": (gru_with(b_h=0.0), ["b_h is a float", "array"]),
    "decay above 1": (gated_with(decay=W(5) * 1.5), ["GatedRNN", "decay", "[0, 1]", "1.5"]),
    "decay below 0": (
        lambda: uh.LinearAttention(W(2, 3), W(4, 3), W(4, 3), decay=np.array([-0.25, 1])),
        ["LinearAttention", "decay", "[0, 1]", "-0.25"],
    ),
    "decay just above 1": (gated_with(decay=W(5) + 1e-15), ["decay", "[0, 1]"]),
    "no heads": (lambda: uh.MultiHead([]), ["MultiHead", "at least one head"]),
    "a head of another kind": (
        lambda: uh.MultiHead([HEAD, make("GRU")]),
        ["MultiHead", "head 1", "GRU", "LinearAttention"],
    ),
    "heads of different inputs": (
        lambda: uh.MultiHead([HEAD, uh.LinearAttention(W(2, 4), W(2, 4), W(2, 4))]),
        ["MultiHead", "[3, 4]"],
    ),
    "size of W_O": (lambda: uh.MultiHead([HEAD], W(2, 3)), ["MultiHead", "W_O", "(2, 3)", "2"]),
    "NaN in W_O": (lambda: uh.MultiHead([HEAD], W(2, 2) * np.nan), ["MultiHead", "W_O", "NaN"]),
    "rank of W_O": (lambda: uh.MultiHead([HEAD], W(2)), ["MultiHead", "W_O", "(2,)"]),
    "a list for W_O": (lambda: uh.MultiHead([HEAD], [[1.0, 1.0]]), ["MultiHead", "W_O is a list"]),
    "no layers": (lambda: uh.Stack(None, [], None), ["Stack", "at least one layer"]),
    "a layer that is none": (
        lambda: uh.Stack(None, [W(2, 2)], None),
        ["Stack", "layer 0", "ndarray"],
    ),
    "an embedding that is none": (lambda: uh.Stack(W(3, 3), [HEAD], None), ["Stack", "embed"]),
    "a readout that is none": (lambda: uh.Stack(None, [HEAD], W(2, 2)), ["Stack", "readout"]),
    "layers that do not fit": (
        lambda: uh.Stack(uh.Affine(W(3, 7)), [HEAD, HEAD], None),
        ["Stack", "layer 0 gives 2", "layer 1 takes 3"],
    ),
    "a readout that does not fit": (
        lambda: uh.Stack(None, [HEAD], uh.Affine(W(1, 3))),
        ["Stack", "layer 0 gives 2", "readout takes 3"],
    ),
    "bias of an affine map": (lambda: uh.Affine(W(2, 3), W(3)), ["Affine", "b has shape (3,)"]),
    "an unknown activation": (
        lambda: lru_in_out_mlp(np.random.default_rng(0), "rellu"),
        ["LRUInOutMLP", "'rellu'", "relu, gelu, silu, softplus, tanh"],
    ),
    "a matrix left out": (lambda: uh.LinearAttention(None, W(4, 3), W(4, 3)), ["W_V"]),
    "a bias left out": (gru_with(b_r=None), ["GRU", "b_r"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_constructors_refuse_in_one_line(name, unhooked):
    build, fragments = REFUSED[name]
    with pytest.raises(uh.BadInput) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message
    assert [fragment for fragment in fragments if fragment not in message] == []


def test_misspelt_weights_are_refused(unhooked):
    with pytest.raises(TypeError, match="W_inm"):
        gated_with(W_inm=W(5, 4))()
