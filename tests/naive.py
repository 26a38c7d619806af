"""Every layer once more, straight from its equations: one token after the other.

Only the fields of a layer are read; none of its methods is called and nothing is imported from
underhood but the names of the classes. A function here says what one token does to the state;
`naive(layer, xs)` is a Python loop over them, and what `layer(xs)` must equal. All operations
are JAX's, so that gradients can be taken through the loop; `naive_gradients` goes back through
it by hand, token by token, which compiles far less.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equations.modern import MODERN, sigmoid, silu, softplus
from jax.scipy.special import erf

import underhood as uh


def naive(layer, xs):
    """The outputs [time, d_out] of any layer on one sequence [time, d_in]."""
    state, outputs = start(layer), None
    for t in range(xs.shape[0]):
        state, y = one_token(layer, state, read(xs, t))
        outputs = jnp.zeros((xs.shape[0], *y.shape)) if outputs is None else outputs
        outputs = write(outputs, t, y)
    return outputs


def naive_gradients(layer, xs, projection):
    """Of Σ projection·outputs, with respect to the weights and the inputs: (layer, xs)."""
    state, states = start(layer), []
    for x in np.asarray(xs):
        states.append(state)
        state, _ = one_token(layer, state, x)
    to_state, to_xs = jax.tree.map(np.zeros_like, state), np.zeros(xs.shape)
    to_layer = jax.tree.map(np.zeros_like, eqx.filter(layer, eqx.is_inexact_array))
    for t in reversed(range(len(xs))):
        given = (states[t], np.asarray(xs[t]), to_state, np.asarray(projection[t]))
        here, to_state, to_xs[t] = one_token_back(layer, *given)
        to_layer = jax.tree.map(np.add, to_layer, here)
    return to_layer, to_xs


def start(layer):
    """The state before the first token."""
    return EQUATIONS[type(layer)][0](layer)


def token(layer, state, x):
    """The state after one more token, and the output there."""
    return EQUATIONS[type(layer)][1](layer, state, x)


# Compiled one by one, so that a longer sequence compiles nothing new; the loops stay Python's.
one_token = eqx.filter_jit(token)
read = jax.jit(lambda xs, t: xs[t])
write = jax.jit(lambda outputs, t, y: outputs.at[t].set(y))


@eqx.filter_jit
def one_token_back(layer, state, x, to_state, to_y):
    weights, rest = eqx.partition(layer, eqx.is_inexact_array)

    def run(weights, state, x):
        return token(eqx.combine(weights, rest), state, x)

    return jax.vjp(run, weights, state, x)[1]((to_state, to_y))


ACTIVATIONS = {
    "relu": lambda z: jnp.maximum(z, 0),
    "gelu": lambda z: z * (1 + erf(z / jnp.sqrt(2.0))) / 2,
    "silu": silu,
    "softplus": softplus,
    "tanh": lambda z: (jnp.exp(2 * z) - 1) / (jnp.exp(2 * z) + 1),
}


def decay(nu):
    """λ = exp(−exp ν)."""
    return jnp.exp(-jnp.exp(nu))


def linear_attention(layer, S, x):
    """S_t = λ⊙S_{t−1} + v kᵀ by rows, y_t = S_t q."""
    b_V, b_K, b_Q = (0 if b is None else b for b in (layer.b_V, layer.b_K, layer.b_Q))
    value, key, query = layer.W_V @ x + b_V, layer.W_K @ x + b_K, layer.W_Q @ x + b_Q
    kept = S if layer.nu is None else jnp.diag(decay(layer.nu)) @ S
    S = kept + jnp.outer(value, key)
    return S, S @ query


def multi_head(layer, states, x):
    """y_t = W_O [head_1(x)_t; head_2(x)_t; …]."""
    pairs = [token(head, S, x) for head, S in zip(layer.heads, states, strict=True)]
    heads = jnp.concatenate([y for _, y in pairs])
    return [S for S, _ in pairs], heads if layer.W_O is None else layer.W_O @ heads


def bilinear(layer, carried, x):
    """h_t = (λ⊙h or A h) + (W_in_m [x;1])⊙(W_in_x [x;1]), y_t = D ((W_out_m h)⊙(W_out_x h))."""
    extended = jnp.append(x, 1.0)
    h = carried + (layer.W_in_m @ extended) * (layer.W_in_x @ extended)
    return h, layer.D @ ((layer.W_out_m @ h) * (layer.W_out_x @ h))


def side_gated_rnn(layer, h, x):
    """h_t = λ⊙h_{t−1} + (W_in_m x)⊙(W_in_x x), y_t = D ((W_side x)⊙h_t)."""
    h = decay(layer.nu) * h + (layer.W_in_m @ x) * (layer.W_in_x @ x)
    return h, layer.D @ ((layer.W_side @ x) * h)


def complex_recurrence(layer, h, u):
    """h_t = λ⊙h_{t−1} + γ⊙(B u_t), ỹ_t = Re[C h_t] + D u_t in complex numbers."""
    eigenvalues = jnp.exp(-jnp.exp(layer.nu) + 1j * jnp.exp(layer.theta_log))
    B, C = layer.B_re + 1j * layer.B_im, layer.C_re + 1j * layer.C_im
    h = eigenvalues * h + jnp.exp(layer.gamma_log) * (B @ u)
    return h, jnp.real(C @ h) + layer.D @ u


def lru(layer, h, x):
    """y = σ(W_m ỹ)⊙(W_x ỹ)."""
    h, mixed = complex_recurrence(layer, h, x)
    return h, sigmoid(layer.W_m @ mixed) * (layer.W_x @ mixed)


def lru_in_out(layer, h, x):
    """The same gate before the recurrence."""
    h, mixed = complex_recurrence(layer, h, sigmoid(layer.W_in_m @ x) * (layer.W_in_x @ x))
    return h, sigmoid(layer.W_m @ mixed) * (layer.W_x @ mixed)


def lru_in_out_mlp(layer, h, x):
    """W_2 φ(W_1 ·) before and after."""
    activation = ACTIVATIONS[layer.activation]
    h, mixed = complex_recurrence(layer, h, layer.W_in_2 @ activation(layer.W_in_1 @ x))
    return h, layer.W_out_2 @ activation(layer.W_out_1 @ mixed)


def mamba(layer, h, x):
    """h_t = exp(Δ A(x̃))⊙h_{t−1} + Δ B(x̃) x̃, y_t = (C(x̃) h_t)⊙σ(W_side x)."""
    inner = layer.W_input @ x + layer.b_input
    delta = layer.W_delta @ inner + layer.b_delta
    B, C = layer.W_B @ inner + layer.b_B, layer.W_C @ inner + layer.b_C
    h = jnp.exp(delta * (layer.W_A @ inner + layer.b_A)) * h + delta * (B @ inner)
    return h, (C @ h) * sigmoid(layer.W_side @ x)


def mamba_block(layer, state, x):
    """Convolution, SiLU, selective recurrence over [inner, state], gate."""
    window, h = state
    window = [*window[1:], layer.W_in_u @ x]
    u = silu(sum(layer.conv[i] * token for i, token in enumerate(window)) + layer.b_conv)
    delta = softplus(layer.W_dt @ (layer.W_x_dt @ u) + layer.b_dt)
    B, C = layer.W_x_B @ u, layer.W_x_C @ u
    h = jnp.exp(delta[:, None] * -jnp.exp(layer.A_log)) * h + jnp.outer(delta * u, B)
    return (window, h), layer.W_out @ ((h @ C + layer.D * u) * silu(layer.W_in_z @ x))


def lstm(layer, state, x):
    """c' = f⊙c + g⊙c̃, h' = o⊙tanh(c')."""
    h, c = state
    f = sigmoid(layer.U_f @ x + layer.V_f @ h + layer.b_f)
    candidate = jnp.tanh(layer.U_c @ x + layer.V_c @ h + layer.b_c)
    g = sigmoid(layer.U_g @ x + layer.V_g @ h + layer.b_g)
    o = sigmoid(layer.U_o @ x + layer.V_o @ h + layer.b_o)
    c = f * c + g * candidate
    return (o * jnp.tanh(c), c), o * jnp.tanh(c)


def gru(layer, h, x):
    """h' = (1 − z)⊙h + z⊙h̃, the reset before the product or after it."""
    r = sigmoid(layer.U_r @ x + layer.V_r @ h + layer.b_r)
    c_h = 0 if layer.c_h is None else layer.c_h
    after = layer.reset == "after"
    recalled = r * (layer.V_h @ h + c_h) if after else layer.V_h @ (r * h)
    candidate = jnp.tanh(layer.U_h @ x + recalled + layer.b_h)
    z = sigmoid(layer.U_z @ x + layer.V_z @ h + layer.b_z)
    h = (1 - z) * h + z * candidate
    return h, h


def stack(layer, states, x):
    """readout ∘ layers ∘ embed, whichever of them there are."""
    x, after = affine(layer.embed, x), []
    for part, state in zip(layer.layers, states, strict=True):
        state, x = token(part, state, x)
        after.append(state)
    return after, affine(layer.readout, x)


def affine(layer, x):
    """W x + b."""
    if layer is None:
        return x
    return layer.W @ x if layer.b is None else layer.W @ x + layer.b


def hidden(layer):
    return jnp.zeros(len(layer.W_in_m))


def window_and_state(layer):
    width, inner = layer.conv.shape
    return [jnp.zeros(inner)] * width, jnp.zeros(layer.A_log.shape)


# The state before the first token, and what a token does.
EQUATIONS = {
    uh.LinearAttention: (lambda a: jnp.zeros((len(a.W_V), len(a.W_K))), linear_attention),
    uh.MultiHead: (lambda layer: [start(head) for head in layer.heads], multi_head),
    uh.GatedRNN: (hidden, lambda layer, h, x: bilinear(layer, decay(layer.nu) * h, x)),
    uh.DenseGatedRNN: (hidden, lambda layer, h, x: bilinear(layer, layer.A @ h, x)),
    uh.SideGatedRNN: (hidden, side_gated_rnn),
    uh.LRU: (lambda layer: jnp.zeros(len(layer.nu), complex), lru),
    uh.LRUInOut: (lambda layer: jnp.zeros(len(layer.nu), complex), lru_in_out),
    uh.LRUInOutMLP: (lambda layer: jnp.zeros(len(layer.nu), complex), lru_in_out_mlp),
    uh.Mamba: (lambda layer: jnp.zeros(len(layer.W_A)), mamba),
    uh.MambaBlock: (window_and_state, mamba_block),
    uh.LSTM: (lambda layer: (jnp.zeros(len(layer.b_f)),) * 2, lstm),
    uh.GRU: (lambda layer: jnp.zeros(len(layer.b_r)), gru),
    **MODERN,
    uh.Stack: (lambda layer: [start(part) for part in layer.layers], stack),
}
