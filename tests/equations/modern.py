"""Layers of today straight from their equations: one token and one head after the other.

A memory is a matrix S [d_k, d_v]. Only the fields of a layer are read, as in `naive.py`.
"""

import jax.numpy as jnp

import underhood as uh


def sigmoid(z):
    return 1 / (1 + jnp.exp(-z))


def silu(z):
    return z * sigmoid(z)


def softplus(z):
    return jnp.log(1 + jnp.exp(z))


def root(x):
    return jnp.sqrt(x)


def rms(x, weight, eps):
    """weight ⊙ x/√(mean x² + eps)."""
    return weight * x / root(jnp.sum(x * x) / len(x) + eps)


def centred(x, weight, bias, eps):
    """A LayerNorm: the mean is removed first."""
    return rms(x - jnp.sum(x) / len(x), weight, eps) + bias


def unit(x):
    return x / root(jnp.sum(x * x) + 1e-6)


def convolved(kernel, window):
    return sum(kernel[i] * token for i, token in enumerate(window))


def with_window(equation, earlier):
    """Give an equation the last tokens, zeros before the first; the state is (tokens, memories)."""

    def run(layer, state, x):
        window = [*state[0], x]
        memories, y = equation(layer, state[1], window)
        return (window[1:] if window[1:] else [], memories), y

    def begin(layer):
        heads, d_v = layer.W_out.shape[1:]
        key = next(W for W in ("W_k", "W_B", "W_f") if getattr(layer, W, None) is not None)
        d_k, d_in = getattr(layer, key).shape[1:]
        memories = [jnp.zeros((d_k, d_v)) for _ in range(heads)]
        return [jnp.zeros(d_in) for _ in range(earlier(layer))], memories

    return begin, run


def head_by_head(layer, memories, head_equation, united=lambda read: read):
    """Run an equation of (head number, S); W_out reads what all heads give."""
    pairs = [head_equation(h, S) for h, S in enumerate(memories)]
    read = united(jnp.stack([o for _, o in pairs]))
    return [S for S, _ in pairs], sum(layer.W_out[:, h] @ o for h, o in enumerate(read))


def mamba2(layer, memories, window):
    """S ← e^{−Δ exp(A_log)} S + Δ B xᵀ, o = SᵀC + D x; RMSNorm(o⊙silu(z)) over runs of heads."""
    x = window[-1]

    def head(h, S):
        def short(W, kernel, bias):
            return silu(convolved(kernel[:, h], [W[h] @ token for token in window]) + bias[h])

        value = short(layer.W_x, layer.conv_x, layer.b_x)
        B, C = short(layer.W_B, layer.conv_B, layer.b_B), short(layer.W_C, layer.conv_C, layer.b_C)
        delta = softplus(layer.W_dt[h] @ x + layer.dt_bias[h])
        S = jnp.exp(-jnp.exp(layer.A_log[h]) * delta) * S + delta * jnp.outer(B, value)
        return S, (C @ S + layer.D[h] * value) * silu(layer.W_z[h] @ x)

    def norm(o):
        if layer.norm is None:
            return o
        size = o.size // layer.norm_groups
        flat, weight = o.ravel(), layer.norm.ravel()
        places = [slice(start, start + size) for start in range(0, o.size, size)]
        normed = [rms(flat[place], weight[place], layer.eps) for place in places]
        return jnp.concatenate(normed).reshape(o.shape)

    return head_by_head(layer, memories, head, norm)


def delta_rule(alpha, gate):
    """S ← diag(α) S, then S ← S + β k (v − Sᵀk)ᵀ, o = Sᵀq/√d_k; norm, gate."""

    def equation(layer, memories, window):
        x = window[-1]

        def head(h, S):
            def short(W, kernel):
                return silu(convolved(kernel[:, h], [W[h] @ token for token in window]))

            q, k = unit(short(layer.W_q, layer.conv_q)), unit(short(layer.W_k, layer.conv_k))
            v, beta = short(layer.W_v, layer.conv_v), sigmoid(layer.W_b[h] @ x)
            S = jnp.diag(alpha(layer, h, x) * jnp.ones(len(k))) @ S
            S = S + beta * jnp.outer(k, v - k @ S)
            o = q @ S / root(1.0 * len(k))
            return S, rms(o, layer.norm, layer.eps) * gate(layer, h, x)

        return head_by_head(layer, memories, head)

    return equation


def gated_alpha(layer, h, x):
    return jnp.exp(-jnp.exp(layer.A_log[h]) * softplus(layer.W_a[h] @ x + layer.dt_bias[h]))


def channel_alpha(layer, h, x):
    step = softplus(layer.W_f2[h] @ (layer.W_f1 @ x) + layer.dt_bias[h])
    return jnp.exp(-jnp.exp(layer.A_log[h]) * step)


def linear_memory(S, q, k, v, w):
    S = jnp.diag(w) @ S + jnp.outer(k, v)
    return S, q @ S


def gla(layer, memories, window):
    """w = σ(W_a2 W_a1 x + b_a)^{1/16}."""
    x = window[-1]

    def head(h, S):
        w = sigmoid(layer.W_a2[h] @ (layer.W_a1 @ x) + layer.b_a[h]) ** (1 / 16)
        q = layer.W_q[h] @ x / root(1.0 * len(w))
        S, o = linear_memory(S, q, layer.W_k[h] @ x, layer.W_v[h] @ x, w)
        return S, rms(o, layer.norm, layer.eps) * silu(layer.W_z[h] @ x)

    return head_by_head(layer, memories, head)


def retnet(layer, memories, window):
    """w = 1 − 2^{−5−h}."""
    x = window[-1]

    def head(h, S):
        k = layer.W_k[h] @ x
        q, w = layer.W_q[h] @ x / root(1.0 * len(k)), (1 - 2.0 ** (-5 - h)) * jnp.ones(len(k))
        S, o = linear_memory(S, q, k, layer.W_v[h] @ x, w)
        return S, rms(o, layer.norm, layer.eps) * silu(layer.W_z[h] @ x)

    return head_by_head(layer, memories, head)


def lightning(layer, memories, window):
    """w = exp(−slope); silu on q, k, v; a norm over all heads."""
    x, heads = window[-1], len(memories)

    def head(h, S):
        q, k, v = (silu(W[h] @ x) for W in (layer.W_q, layer.W_k, layer.W_v))
        slope = 2.0 ** (-8 * (h + 1) / heads)
        slope = slope * (1 - layer.index / (layer.depth - 1 + 1e-5) + 1e-5)
        return linear_memory(S, q, k, v, jnp.exp(-slope * jnp.ones(len(k))))

    def norm(o):
        gates = jnp.stack([sigmoid(W @ x) for W in layer.W_z])
        return rms(o.ravel(), layer.norm.ravel(), layer.eps).reshape(o.shape) * gates

    return head_by_head(layer, memories, head, norm)


def hgrn2(layer, memories, window):
    """w = f, k = 1 − f."""
    x = window[-1]

    def head(h, S):
        f = sigmoid(layer.W_f[h] @ x)
        q = silu(layer.W_q[h] @ x) / root(1.0 * len(f))
        return linear_memory(S, q, 1 - f, layer.W_v[h] @ x, f)

    def norm(o):
        return rms(o.ravel(), layer.norm.ravel(), layer.eps).reshape(o.shape)

    return head_by_head(layer, memories, head, norm)


def mixes(layer, window, letters):
    before, x = window
    return {c: x + getattr(layer, f"mu_{c}") * (before - x) for c in letters}


def rwkv6(layer, memories, window):
    """o reads S before the token enters, and the token by its bonus."""
    x = mixes(layer, window, "rkvwg")

    def head(h, S):
        r, k, v = layer.W_r[h] @ x["r"], layer.W_k[h] @ x["k"], layer.W_v[h] @ x["v"]
        w = jnp.exp(-jnp.exp(layer.w_0[h] + layer.W_w2[h] @ jnp.tanh(layer.W_w1 @ x["w"])))
        o = r @ (S + jnp.outer(layer.bonus[h] * k, v))
        normed = centred(o, layer.norm[h], layer.b_norm[h], layer.eps)
        return jnp.diag(w) @ S + jnp.outer(k, v), normed * silu(layer.W_g[h] @ x["g"])

    return head_by_head(layer, memories, head)


def rwkv7(layer, memories, window):
    """S ← diag(w) S − (κ⊙α)(κᵀS) + k vᵀ."""
    x = mixes(layer, window, "rwkvag")

    def head(h, S):
        r, k, v = layer.W_r[h] @ x["r"], layer.W_k[h] @ x["k"], layer.W_v[h] @ x["v"]
        w = sigmoid(layer.w_0[h] + layer.W_w2[h] @ jnp.tanh(layer.W_w1 @ x["w"]))
        alpha = sigmoid(layer.a_0[h] + layer.W_a2[h] @ (layer.W_a1 @ x["a"]))
        kappa = k * layer.k_k[h]
        kappa = kappa / root(jnp.sum(kappa * kappa))
        k = k * (1 + (alpha - 1) * layer.k_a[h])
        S = jnp.diag(jnp.exp(-w / root(jnp.e))) @ S - jnp.outer(kappa * alpha, kappa @ S)
        S = S + jnp.outer(k, v)
        normed = centred(r @ S, layer.norm[h], layer.b_norm[h], layer.eps)
        gate = layer.W_g2[h] @ sigmoid(layer.W_g1 @ x["g"])
        return S, (normed + (r @ (layer.r_k[h] * k)) * v) * gate

    return head_by_head(layer, memories, head)


def mlstm(layer, states, x):
    """S and n with their true size; the 1e-6 is that of the stabilised form."""

    def head(h, state):
        S, n, m = state
        q, k, v = (W[h] @ x for W in (layer.W_q, layer.W_k, layer.W_v))
        enter, forget = layer.W_i[h] @ x + layer.b_i[h], layer.W_f[h] @ x + layer.b_f[h]
        if layer.cap is not None:
            enter, forget = (layer.cap * jnp.tanh(z / layer.cap) for z in (enter, forget))
        f, i, q = sigmoid(forget), jnp.exp(enter), q / root(1.0 * len(q))
        m = jnp.maximum(jnp.log(f) + m, enter)
        S, n = f * S + i * jnp.outer(k, v), f * n + i * k
        o = q @ S / (jnp.maximum(jnp.abs(n @ q), 1) + 1e-6 * jnp.exp(m))
        return (S, n, m), centred(o, layer.norm[h], 0, layer.eps) * sigmoid(layer.W_o[h] @ x)

    return head_by_head(layer, states, head)


def mlstm_start(layer):
    heads, d_k, _ = layer.W_k.shape
    d_v = layer.W_v.shape[1]
    return [(jnp.zeros((d_k, d_v)), jnp.zeros(d_k), jnp.zeros(())) for _ in range(heads)]


def rg_lru(layer, state, x):
    """h ← a⊙h + m⊙i⊙u, m = √(1 − a²), or 1 at the first token."""
    window, h, first = state
    window = [*window[1:], layer.W_x @ x + layer.b_x]
    u = convolved(layer.conv, window) + layer.b_conv
    i, r = sigmoid(layer.W_i @ u + layer.b_i), sigmoid(layer.W_r @ u + layer.b_r)
    a = jnp.exp(-8 * r * softplus(layer.Lambda))
    m = root(1 - a * a)
    h = a * h + (jnp.where(first > 0, 1.0, m) if layer.whole_first else m) * i * u
    z = layer.W_y @ x + layer.b_y
    gate = z * (1 + jnp.tanh(root(2 / jnp.pi) * (z + 0.044715 * z**3))) / 2
    return (window, h, 0 * first), layer.W_out @ (h * gate) + layer.b_out


def rg_lru_start(layer):
    width, inner = layer.conv.shape
    return [jnp.zeros(inner)] * width, jnp.zeros(inner), jnp.ones(())


def jamba_block(layer, state, x):
    """Mamba's block with a norm on each of δ, B and C."""
    window, h = state
    window = [*window[1:], layer.W_in_u @ x]
    u = silu(convolved(layer.conv, window) + layer.b_conv)
    step = rms(layer.W_x_dt @ u, layer.norm_dt, layer.eps)
    B, C = (
        rms(layer.W_x_B @ u, layer.norm_B, layer.eps),
        rms(layer.W_x_C @ u, layer.norm_C, layer.eps),
    )
    delta = softplus(layer.W_dt @ step + layer.b_dt)
    h = jnp.exp(-delta[:, None] * jnp.exp(layer.A_log)) * h + jnp.outer(delta * u, B)
    return (window, h), layer.W_out @ ((h @ C + layer.D * u) * silu(layer.W_in_z @ x))


def jamba_start(layer):
    width, inner = layer.conv.shape
    return [jnp.zeros(inner)] * width, jnp.zeros(layer.A_log.shape)


def min_gru(layer, h, x):
    """h ← (1 − z)⊙h + z⊙g(W_h x)."""
    z, candidate = sigmoid(layer.W_z @ x), layer.W_h @ x
    h = (1 - z) * h + z * jnp.where(candidate >= 0, candidate + 0.5, sigmoid(candidate))
    return h, layer.W_out @ h


# The state before the first token, and what a token does.
MODERN = {
    uh.Mamba2: with_window(mamba2, lambda layer: len(layer.conv_x) - 1),
    uh.DeltaNet: with_window(
        delta_rule(lambda *_: 1.0, lambda *_: 1.0), lambda layer: len(layer.conv_k) - 1
    ),
    uh.GatedDeltaNet: with_window(
        delta_rule(gated_alpha, lambda layer, h, x: silu(layer.W_z[h] @ x)),
        lambda layer: len(layer.conv_k) - 1,
    ),
    uh.KDA: with_window(
        delta_rule(channel_alpha, lambda layer, h, x: sigmoid(layer.W_g2[h] @ (layer.W_g1 @ x))),
        lambda layer: len(layer.conv_k) - 1,
    ),
    uh.GLA: with_window(gla, lambda layer: 0),
    uh.RetNet: with_window(retnet, lambda layer: 0),
    uh.Lightning: with_window(lightning, lambda layer: 0),
    uh.HGRN2: with_window(hgrn2, lambda layer: 0),
    uh.RWKV6: with_window(rwkv6, lambda layer: 1),
    uh.RWKV7: with_window(rwkv7, lambda layer: 1),
    uh.MLSTM: (mlstm_start, mlstm),
    uh.RGLRU: (rg_lru_start, rg_lru),
    uh.JambaBlock: (jamba_start, jamba_block),
    uh.MinGRU: (lambda layer: jnp.zeros(len(layer.W_z)), min_gru),
}
