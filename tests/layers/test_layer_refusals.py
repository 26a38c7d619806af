"""What layers refuse, and that one line says why."""

import equinox as eqx
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from layer_cases import BILINEAR, D_IN, every_layer, make, parallel, shapes
from refusals import every_refusal, refused

import underhood as uh

pytestmark = pytest.mark.usefixtures("x64")


@every_layer
@pytest.mark.parametrize("shape", [(D_IN,), (5, D_IN + 1), (2, 5, D_IN), ()])
def test_wrong_input_shapes_are_refused(name, shape, unhooked):
    layer = make(name)
    for run in (parallel, uh.stream, eqx.filter_jit(parallel)):
        with refused(f"[time, 3] … jax.vmap … {shape}"):
            run(layer, jnp.ones(shape))


@every_layer
def test_wrong_steps_are_refused(name, unhooked):
    layer = make(name)
    state, x = layer.initial_state(), jnp.ones(D_IN)
    longer = jax.tree.map(lambda part: jnp.ones((*part.shape, 2), part.dtype), state)
    for step in (layer.step, jax.jit(layer.step)):
        for shape in ((D_IN + 1,), (D_IN - 1,), (1, D_IN), ()):
            with refused(f"{type(layer).__name__}.step takes one token [3] … {shape}"):
                step(state, jnp.ones(shape))
        with refused(f"{type(layer).__name__}.step takes a state of shape … initial_state()"):
            step(longer, x)
    for token in ([1.0, 2.0, 3.0], None, "abc", 1.0):
        with refused(f"step takes a NumPy or JAX array, not a {type(token).__name__}"):
            layer.step(state, token)
    for wrong in (None, (state, state), jnp.ones(77)):
        with refused("takes a state of shape … initial_state()"):
            layer.step(wrong, x)


def W(*shape):
    return np.ones(shape)


HEAD = uh.LinearAttention(W(2, 3), W(4, 3), W(4, 3))


def gated_with(**changes):
    weights = {name: W(*shape) for name, shape in shapes(f"{BILINEAR}, decay [5]").items()}
    return lambda: uh.GatedRNN(**(weights | changes))


def attention_with(*weights, **more):
    return lambda: uh.LinearAttention(*weights, **more)


def gru_with(**changes):
    return lambda: uh.GRU(**(cases.gates_of(np.random.default_rng(0), "rhz") | changes))


def mamba_with(**changes):
    return lambda: uh.Mamba(**(vars(make("Mamba")) | changes))


EVERY_KIND = (
    "W_V has shape (3,) … W_K is a list … W_Q holds NaN … b_V holds int64 … b_K holds Python"
)
# Words that the one line must hold, and what is built.
REFUSED = {
    "LinearAttention … W_V … (3,) … [d_v, d_in]": attention_with(W(3), W(4, 3), W(4, 3)),
    "GRU … b_r … (5, 1) … [hidden]": gru_with(b_r=W(5, 1)),
    "Mamba … b_delta … (1,)": mamba_with(b_delta=W(1)),
    "W_B … (5, 16) … [hidden, inner, inner]": mamba_with(W_B=W(5, 16)),
    "W_K has shape (4, 5) … W_Q has shape (6, 7) … b_V has shape (8,) … d_in … d_k … d_v": (
        attention_with(W(2, 3), W(4, 5), W(6, 7), b_V=W(8), b_K=W(4))
    ),
    "GatedRNN … W_in_x … W_out_x has shape (7, 5) … D has shape (2, 5)": gated_with(
        W_in_x=W(5, 3), W_out_x=W(7, 5), D=W(2, 5)
    ),
    "V_h … (5, 4) … hidden is 5": gru_with(V_h=W(5, 4)),
    "GatedRNN … (4,) … hidden is 5": gated_with(decay=W(4)),
    EVERY_KIND: attention_with(
        W(3), [[1.0]], np.full((4, 3), np.nan), b_V=np.ones(2, int), b_K=np.ones(2, object)
    ),
    "GRU … U_z … NaN": gru_with(U_z=np.full((5, 3), np.nan)),
    "GRU … U_z … infinite": gru_with(U_z=np.full((5, 3), -np.inf)),
    "Affine … W holds NaN": lambda: uh.Affine(jnp.full((2, 2), jnp.nan)),
    "GatedRNN … decay … NaN": gated_with(decay=np.array([1, 1, np.nan, 1, 1])),
    "D holds int64 … astype(float)": gated_with(D=np.ones((2, 6), int)),
    "decay holds int64 … astype(float)": gated_with(decay=np.ones(5, int)),
    "D holds bool": gated_with(D=np.ones((2, 6), bool)),
    "D holds complex128 … real … separate rows … np.concatenate([W.real, W.imag])": gated_with(
        D=W(2, 6) * 1j
    ),
    "D holds Python objects": gated_with(D=np.ones((2, 6), object)),
    "GRU … b_h is a list … array": gru_with(b_h=[0.0] * 5),
    "decay is a list … array": gated_with(decay=[1.0] * 5),
    "b_h is a float … array": gru_with(b_h=0.0),
    "GatedRNN … decay … [0, 1] … 1.5": gated_with(decay=W(5) * 1.5),
    "LinearAttention … decay … [0, 1] … -0.25": attention_with(
        W(2, 3), W(4, 3), W(4, 3), decay=np.array([-0.25, 1])
    ),
    "decay … [0, 1]": gated_with(decay=W(5) + 1e-15),
    "MultiHead … at least one head": lambda: uh.MultiHead([]),
    "MultiHead … head 1 … GRU … LinearAttention": lambda: uh.MultiHead([HEAD, make("GRU")]),
    "MultiHead … [3, 4]": lambda: uh.MultiHead([HEAD, uh.LinearAttention(*np.ones((3, 2, 4)))]),
    "MultiHead … W_O … (2, 3) … 2": lambda: uh.MultiHead([HEAD], W(2, 3)),
    "MultiHead … W_O … NaN": lambda: uh.MultiHead([HEAD], W(2, 2) * np.nan),
    "MultiHead … W_O … (2,)": lambda: uh.MultiHead([HEAD], W(2)),
    "MultiHead … W_O is a list": lambda: uh.MultiHead([HEAD], [[1.0, 1.0]]),
    "Stack … at least one layer": lambda: uh.Stack(None, [], None),
    "Stack … layer 0 … ndarray": lambda: uh.Stack(None, [W(2, 2)], None),
    "Stack … embed": lambda: uh.Stack(W(3, 3), [HEAD], None),
    "Stack … readout": lambda: uh.Stack(None, [HEAD], W(2, 2)),
    "Stack … layer 0 gives 2 … layer 1 takes 3": lambda: uh.Stack(
        uh.Affine(W(3, 7)), [HEAD, HEAD], None
    ),
    "Stack … layer 0 gives 2 … readout takes 3": lambda: uh.Stack(None, [HEAD], uh.Affine(W(1, 3))),
    "Affine … b has shape (3,)": lambda: uh.Affine(W(2, 3), W(3)),
    "LRUInOutMLP … 'rellu' … relu, gelu, silu, softplus, tanh": lambda: cases.lru_in_out_mlp(
        np.random.default_rng(0), "rellu"
    ),
    "W_V": attention_with(None, W(4, 3), W(4, 3)),
    "GRU … b_r": gru_with(b_r=None),
    "GRU … unknown reset 'later' … before or after": gru_with(reset="later"),
    "GRU … c_h … reset='after' … b_h": gru_with(c_h=W(5)),
    "GRU … c_h … (4,) … hidden is 5": gru_with(c_h=W(4), reset="after"),
}

test_constructors_refuse_in_one_line = every_refusal(REFUSED)


def test_misspelt_weights_are_refused(unhooked):
    with pytest.raises(TypeError, match="W_inm"):
        gated_with(W_inm=W(5, 4))()
