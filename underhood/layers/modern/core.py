"""The matrix memory that most layers of this folder share, and its attention map.

    S_t = diag(w_t) S_{t−1} + b_t (a_tᵀ S_{t−1}) + k_t v_tᵀ        o_t = S_tᵀ q_t

q, k, w  [heads, d_k]   query, key, decay of every row of the memory
v        [heads, d_v]   value
a, b     [heads, d_k]   what is erased and where; none in gated linear attention and Mamba-2
bonus    [heads, d_k]   RWKV-6 reads the memory before the token enters: o_t = S_{t−1}ᵀq_t +
                        (q_t·(bonus⊙k_t)) v_t

With Γ_ts = ∏_{s<r≤t} w_r and E(x, y)_ts = Σ_i x_ti y_si Γ_tsi for s ≤ t, and E⁻ the same with
Γ_{t−1,s} for s < t, the layer is o = A v with

    A = E(q, k) + E(q, b) (I − E⁻(a, b))⁻¹ E⁻(a, k).

In chunks the same formulas hold, with what the memory at the chunk's start adds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.layers.base.recurrence import in_chunks, out_of_chunks

Memory = Float[Array, "heads d_k d_v"]
Mixed = Float[Array, "*time heads d_v"]

# Tokens whose products of decays are made at once, tokens²·heads·d_k numbers.
MEMORY_CHUNK = 32


class Signals(NamedTuple):
    """What the tokens do to the memory; the symbols above, [*time, heads, …]."""

    q: Float[Array, "*time heads d_k"]
    k: Float[Array, "*time heads d_k"]
    v: Float[Array, "*time heads d_v"]
    decay: Float[Array, "*time heads d_k"]
    a: Float[Array, "*time heads d_k"] | None = None
    b: Float[Array, "*time heads d_k"] | None = None
    bonus: Float[Array, "*time heads d_k"] | None = None


class Products(NamedTuple):
    """Products of decays inside a chunk, [time, time, …]: the first index is where they end.

    after   ∏_{s<r≤t}, for s ≤ t        start         ∏_{r≤t}
    before  ∏_{s<r<t}, for s < t        start_before  ∏_{r<t}
    """

    after: Float[Array, "time time2 ..."]
    before: Float[Array, "time time2 ..."]
    start: Float[Array, "time ..."]
    start_before: Float[Array, "time ..."]


def decay_products(decay: Float[Array, "time ..."]) -> Products:
    """Multiply decays over all intervals; no logarithms, so that 0 and 1 are exact."""
    time = len(decay)
    places = jnp.eye(time, time + 1, 1, dtype=decay.dtype)
    places = places.reshape(*places.shape, *(1,) * (decay.ndim - 1))
    first = jnp.eye(1, time + 1, dtype=decay.dtype).reshape(time + 1, *places.shape[2:])
    first = jnp.broadcast_to(first, (time + 1, *decay.shape[1:]))

    def advance(row: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        row = now[0] * row + now[1]
        return row, row

    # Column 0 stands for the time before the first token.
    rows = jax.lax.scan(advance, first, (decay, places))[1]
    rows = jnp.concatenate([first[None], rows])
    return Products(rows[1:, 1:], rows[:-1, 1:], rows[1:, 0], rows[:-1, 0])


def weigh(x: Array, y: Array, products: Array) -> Float[Array, "heads time time2"]:
    """Return E(x, y) or E⁻(x, y)."""
    return jnp.einsum("thk,shk,tshk->hts", x, y, products)


def reads(signals: Signals, y: Array, products: Products) -> Float[Array, "heads time time2"]:
    """Return how much of what y wrote the query sees: E(q, y), or RWKV-6's E⁻ and bonus."""
    if signals.bonus is None:
        return weigh(signals.q, y, products.after)
    now = jnp.sum(signals.q * signals.bonus * y, axis=-1).T
    return weigh(signals.q, y, products.before) + jax.vmap(jnp.diag)(now)


def erased(signals: Signals, products: Products, known: Array) -> Array:
    """Return (I − E⁻(a, b))⁻¹ known, for known [heads, time, …]."""
    assert signals.a is not None and signals.b is not None
    strict = weigh(signals.a, signals.b, products.before)
    unit = jnp.eye(strict.shape[-1], dtype=strict.dtype) - strict
    return jax.scipy.linalg.solve_triangular(unit, known, lower=True, unit_diagonal=True)


def memory_map(signals: Signals) -> Float[Array, "heads time time2"]:
    """Return A with o = A v, for every head."""
    products = decay_products(signals.decay)
    direct = reads(signals, signals.k, products)
    if signals.a is None or signals.b is None:
        return direct
    seen = weigh(signals.a, signals.k, products.before)
    return direct + reads(signals, signals.b, products) @ erased(signals, products, seen)


def run_chunk(memory: Memory, signals: Signals) -> tuple[Memory, Float[Array, "time heads d_v"]]:
    """Advance the memory over a chunk of tokens; return what the queries read."""
    products = decay_products(signals.decay)
    values = jnp.swapaxes(signals.v, 0, 1)
    start = products.start if signals.bonus is None else products.start_before
    mixed = jnp.einsum("thk,hkv->htv", signals.q * start, memory)
    mixed += reads(signals, signals.k, products) @ values
    left = products.after[-1]
    memory_after = products.start[-1][..., None] * memory
    memory_after += jnp.einsum("shk,hsv->hkv", left * signals.k, values)
    if signals.a is not None and signals.b is not None:
        known = weigh(signals.a, signals.k, products.before) @ values
        known += jnp.einsum("thk,hkv->htv", signals.a * products.start_before, memory)
        changes = erased(signals, products, known)
        mixed += reads(signals, signals.b, products) @ changes
        memory_after += jnp.einsum("shk,hsv->hkv", left * signals.b, changes)
    return memory_after, jnp.swapaxes(mixed, 0, 1)


def run_memory(signals: Signals) -> Float[Array, "time heads d_v"]:
    """Return o at all times: quadratic inside chunks, the memory carried between them."""
    time, heads, d_k = signals.k.shape
    chunk = min(MEMORY_CHUNK, max(time, 1))
    start = jnp.zeros((heads, d_k, signals.v.shape[-1]), jnp.result_type(*signals[:4]))
    chunks = jax.tree.map(lambda part: in_chunks(part, chunk), signals)
    return out_of_chunks(jax.lax.scan(run_chunk, start, chunks)[1], time)


def step_memory(memory: Memory, signals: Signals) -> tuple[Memory, Float[Array, "heads d_v"]]:
    """Return the memory after one more token, and what the query reads."""
    q, k, v = signals.q, signals.k, signals.v
    after = signals.decay[..., None] * memory + k[..., None] * v[:, None]
    if signals.a is not None and signals.b is not None:
        after += signals.b[..., None] * jnp.einsum("hk,hkv->hv", signals.a, memory)[:, None]
    if signals.bonus is None:
        return after, jnp.einsum("hk,hkv->hv", q, after)
    now = jnp.sum(q * signals.bonus * k, axis=-1, keepdims=True)
    return after, jnp.einsum("hk,hkv->hv", q, memory) + now * v
