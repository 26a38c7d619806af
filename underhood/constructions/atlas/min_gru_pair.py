"""Two minGRU layers hold attention in a limit, run with 120 digits; proof: docs/theorems.md.

Each product v k q of a value, a key and a query has channels of its own. ρ → 0 is the small number.

layer 1   z = σ(log δ ± ρ³k) with δ = ρ² and 2ρ²; h̃ = v + R or R; their differences give
          H = Σ_s (t − s) k_s v_s + Σ_{s<r} v_s k_r + 2 Σ_s k_s v_s  and  L = Σ_s (t − s + 1) v_s;
          z = σ(−log ρ¹²) passes q and k of the token on
layer 2   z = σ(−log ρ⁶ + ρu) with h̃ = H + R': h_t = H_t − ρ⁶ e^{−ρu} (H_t − H_{t−1}) to first
          order, so u = ±q gives q (H_t − H_{t−1}); u = ±q ± k gives q k (L_t − L_{t−1})

and q_t (H_t − H_{t−1}) − q_t k_t (L_t − L_{t−1}) = q_t Σ_{s≤t} k_s v_s.
"""

from decimal import Decimal, localcontext

import numpy as np

from underhood.constructions.sources.heads import Source, read_attention
from underhood.constructions.sources.reference import reference
from underhood.layers import GatedRNN

PAIR_DIGITS, PAIR_LENGTH, PAIR_EXPONENT = 120, 5, 4
HALF = Decimal("0.5")
Columns = list[list[Decimal]]


def sigmoid(z: Decimal) -> Decimal:
    return 1 / (1 + (-z).exp())


def run_min_gru(gates: Columns, candidates: Columns) -> Columns:
    """Return h_t = (1 − z)h_{t−1} + z g(h̃), z = σ(gate), for channels side by side."""
    states, outputs = [Decimal(0)] * len(gates[0]), []
    for gate, candidate in zip(gates, candidates, strict=True):
        opened = [sigmoid(z) for z in gate]
        values = [c + HALF if c >= 0 else sigmoid(c) for c in candidate]
        states = [(1 - z) * h + z * g for h, z, g in zip(states, opened, values, strict=True)]
        outputs.append(states)
    return outputs


def first_layer(
    values: list[Decimal], keys: list[Decimal], queries: list[Decimal], rho: Decimal
) -> list[tuple[Decimal, ...]]:
    """Return H, L, the query and the key at every token."""
    deltas, step, offset = (rho**2, 2 * rho**2), rho**3, Decimal(100)
    gates, candidates = [], []
    for v, k, q in zip(values, keys, queries, strict=True):
        gates.append(
            [d.ln() + sign * step * k for d in deltas for sign in (1, -1, 0) for _ in "vR"]
        )
        candidates.append([value + offset for _ in deltas for _ in range(3) for value in (v, 0)])
        gates[-1] += [-(rho**12).ln()] * 3
        candidates[-1] += [value + offset for value in (q, k, 0)]
    signals: list[tuple[Decimal, ...]] = []
    for h in run_min_gru(gates, candidates):
        pairs = [h[place] - h[place + 1] for place in range(0, 12, 2)]
        slopes = [(pairs[i] - pairs[i + 1]) / (2 * step) for i in (0, 3)]
        written = [slope / d for slope, d in zip(slopes, deltas, strict=True)]
        summed = [pairs[i] / d for i, d in zip((2, 5), deltas, strict=True)]
        between = deltas[1] - deltas[0]
        H, L = ((parts[0] - parts[1]) / between for parts in (written, summed))
        signals.append((H, L, h[12] - h[14], h[13] - h[14]))
    return signals


def second_layer(signals: list[tuple[Decimal, ...]], rho: Decimal) -> list[Decimal]:
    """Return q_t Σ_s k_s v_s, up to the limit."""
    delta, offset = rho**6, Decimal(10) ** 12
    gates, candidates = [], []
    for H, L, q, k in signals:
        shown = [(q, H), (-q, H), (q + k, L), (-q - k, L), (q - k, L), (k - q, L)]
        gates.append([-delta.ln() + rho * u for u, _ in shown for _ in "vR"])
        candidates.append([value + offset for _, memory in shown for value in (memory, 0)])
    outputs = []
    for h in run_min_gru(gates, candidates):
        E = [h[place] - h[place + 1] for place in range(0, 12, 2)]
        once = (E[0] - E[1]) / (2 * delta * rho)
        outputs.append(once + (E[2] + E[3] - E[4] - E[5]) / (4 * delta * rho**2))
    return outputs


def run_pair(source: Source, xs: np.ndarray, rho: Decimal) -> np.ndarray:
    """Return the outputs of the two layers on one sequence, for attention without decay."""
    assert not isinstance(source, GatedRNN)
    attention = read_attention(source)
    tokens = np.column_stack([xs, np.ones(len(xs))]) if attention.biased else xs
    outputs = np.zeros((len(xs), attention.d_out))
    with localcontext() as context:
        context.prec = PAIR_DIGITS
        for head in attention.heads:
            V, K, Q = (
                [[Decimal(float(number)) for number in row] for row in W @ tokens.T]
                for W in (head.W_V, head.W_K, head.W_Q)
            )
            for row, values in enumerate(V):
                for keys, queries in zip(K, Q, strict=True):
                    read = second_layer(first_layer(values, keys, queries, rho), rho)
                    outputs += np.outer([float(y) for y in read], head.out[:, row])
    return outputs


def pair_error(source: Source, *, digits: int = PAIR_EXPONENT, seed: int = 1) -> float:
    """Return the relative error at ρ = 10^−digits on a random sequence of five tokens."""
    xs = np.random.default_rng(seed).normal(size=(PAIR_LENGTH, source.d_in))
    expected = reference(source, xs[None])[0]
    reached = run_pair(source, xs, Decimal(10) ** -digits)
    largest = np.max(np.abs(expected))
    return float(np.max(np.abs(reached - expected)) / (largest if largest > 0 else 1.0))
