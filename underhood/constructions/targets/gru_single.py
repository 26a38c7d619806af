"""Attention → one GRU layer; the paper's Table 3 has none, and `gru.py` says why it is wrong.

The memory and its products fit side by side: Y reads S_{t−1} through V_h, which gives the part of
the past. The current token's term D(value·key·query) is cubic, and tanh has a cubic part:
24abc = (a+b+c)³ − (a+b−c)³ − (a−b+c)³ + (a−b−c)³, where everything linear cancels, and
Σ_i c_i tanh(s_i z) = z³ + (linear) + O(s^{2n} z^{2n+3}) by the extrapolation of `product.py`.
Neurons: nN + v + (n + 1)N + o + 4nN.
"""

import numpy as np

from underhood.constructions.construction import Role
from underhood.constructions.products.gates import distinct, lengths
from underhood.constructions.products.product import (
    OPEN,
    Product,
    amplification,
    balanced,
    lagrange_at_zero,
)
from underhood.constructions.sources.factors import Factors, power_of_two
from underhood.constructions.targets.gated_rnn import triples
from underhood.constructions.targets.gru_rows import GRURows
from underhood.layers import Affine, Stack


def cubic_scale_for(order: int, eps: float) -> float:
    """Return the best scale s of the cubes: it balances s^{2n} against eps·s⁻²."""
    # |coefficients| of z⁵, z⁷, … in tanh over that of z³, from its poles at ±iπ/2.
    ratio = 3 * 2 * (2 / np.pi) ** (2 * order + 4)
    truncation = 0.217 * 77.0**order * ratio * np.prod((np.arange(1, order + 1) / order) ** 2)
    rounding = 0.027 * amplification(order, 2)
    return balanced(order, eps, truncation=float(truncation), rounding=rounding, power=2)


def one_gru_layer(
    factors: Factors, d_in: int, product: Product, cubic_scale: float
) -> tuple[Stack, tuple[Role, ...]]:
    """Compute attention without decay in one layer."""
    small, n = product.linear, product.order
    weights, total = product.weights, np.sum(product.weights)
    value, key, query = triples(factors, d_in)
    kappa, rho, nu = (lengths(rows) for rows in (key, query, value))
    first, where = distinct(value)
    N, d_out, labels = len(value), len(factors.D), factors.memory_labels
    held = d_out if N else 0
    neurons = GRURows(d_in, n * N + len(first) + (n + 1) * N + held + 4 * n * N)
    S = neurons.add([Role("memory", f"{kv} scale {a}") for a in range(n) for kv in labels], n, N)
    half = neurons.add([Role("copy", f"{labels[p]} half") for p in first])
    products = [Role("product", f"{kv} query scale {b}") for b in range(n) for kv in labels]
    Y = neurons.add(products, n, N)
    half_out = neurons.add([Role("copy", f"{kv} query half") for kv in labels])
    before = neurons.add([Role("hold", f"y[{o}] before") for o in range(held)])
    corners = [f"{kv} cube {c}{a}" for c in range(4) for a in range(n) for kv in labels]
    cubes = neurons.add([Role("query", label) for label in corners], 4, n, N)
    sums = np.zeros((N, len(neurons.roles)))
    weighted = factors.D * rho
    for a in range(n):
        neurons.put("z", S[a], product.scales[a] * key / kappa[:, None])
        neurons.put("h", S[a], small * value)
        sums[np.arange(N), S[a]] = weights[a] * kappa
    neurons.put("h", half, small * value[first])
    sums[np.arange(N), half[where]] = -total * kappa
    for b in range(n):
        neurons.put("z", Y[b], product.scales[b] * query / rho[:, None])
        neurons.V_h[Y[b]] = sums
    neurons.V_h[half_out] = sums
    neurons.accumulate(np.concatenate([S.ravel(), half, Y.ravel(), half_out]))
    readout = np.zeros((d_out, len(neurons.roles)))
    for b in range(n):
        readout[:, Y[b]] = weights[b] * weighted / small
    readout[:, half_out] = -total * weighted / small
    neurons.hold_outputs(before, readout, product, power_of_two(weighted))
    # Σ c_i tanh(s_i z) = z³ + (linear) + O(s^{2n} z^{2n+3}).
    scales = cubic_scale * np.arange(1, n + 1) / n
    cubic = -3 * lagrange_at_zero(n) / scales**3
    a, b, c = value / nu[:, None], key / kappa[:, None], query / rho[:, None]
    current = factors.D * (nu * kappa * rho) / 24
    signs = ((1, 1, 1, 1), (1, 1, -1, -1), (1, -1, 1, -1), (1, -1, -1, 1))
    for corner, (sa, sb, sc, sign) in enumerate(signs):
        for i in range(n):
            at = cubes[corner, i]
            neurons.put("h", at, scales[i] * (sa * a + sb * b + sc * c))
            neurons.b_z[at] = OPEN
            readout[:, at] = sign * cubic[i] * current
    stack = Stack(None, [neurons.layer()], Affine(readout), needs_x64=product.needs_x64)
    return stack, tuple(neurons.roles)
