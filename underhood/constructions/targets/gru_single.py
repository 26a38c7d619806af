"""Attention → one GRU layer; the paper's Table 3 has none, and `gru.py` says why it is wrong.

The memory and its products fit side by side: Y reads S_{t−1} through V_h, which gives
the strictly past part; the token's own term D(value·key·query) is cubic, and tanh has a cubic part:
24abc = (a+b+c)³ − (a+b−c)³ − (a−b+c)³ + (a−b−c)³, where everything linear cancels, and
Σ_i c_i tanh(s_i z) = z³ + (linear) + O(s^{2n} z^{2n+3}) by the extrapolation of `product.py`.
Neurons: nN + v + (n + 1)N + o + 4nN.
"""

import numpy as np

from underhood.constructions.construction import Role
from underhood.constructions.products.gates import distinct, lengths
from underhood.constructions.products.product import (
    LINEAR,
    OPEN,
    Product,
    amplification,
    balanced,
    lagrange_at_zero,
)
from underhood.constructions.sources.factors import Factors, power_of_two
from underhood.constructions.targets.gated_rnn import extend
from underhood.constructions.targets.gru import HOLD, Neurons, add_diagonal, put
from underhood.layers import Affine, Stack


def cubic_scale_for(order: int, eps: float) -> float:
    """The same for the scale s of the cubes, whose error is s^{2n} against eps·s⁻²."""
    # |coefficients| of z⁵, z⁷, … in tanh over that of z³, from its poles at ±iπ/2.
    ratio = 3 * 2 * (2 / np.pi) ** (2 * order + 4)
    truncation = 0.217 * 77.0**order * ratio * np.prod((np.arange(1, order + 1) / order) ** 2)
    return balanced(
        order, eps, truncation=float(truncation), rounding=0.027 * amplification(order, 2), power=2
    )


def cubic_weights(order: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """s_i and c_i with Σ c_i tanh(s_i z) = z³ + (linear) + O(scale^{2·order} z^{2·order+3})."""
    scales = scale * np.arange(1, order + 1) / order
    return scales, -3 * lagrange_at_zero(order) / scales**3


def one_gru_layer(
    factors: Factors, d_in: int, product: Product, cubic_scale: float, dtype: np.dtype
) -> tuple[Stack, tuple[Role, ...]]:
    """Attention (no decay) in one layer."""
    small, n = LINEAR[dtype], product.order
    hold = HOLD[dtype]
    weights, total = product.weights, np.sum(product.weights)
    value, key, query = (
        extend(rows, d_in) for rows in (factors.values, factors.keys, factors.R_q @ factors.queries)
    )
    kappa, rho, nu = (lengths(rows) for rows in (key, query, value))
    first, where = distinct(value)
    N, d_out, labels = len(value), len(factors.D), factors.memory_labels
    held = d_out if N else 0
    neurons = Neurons(d_in, n * N + len(first) + (n + 1) * N + held + 4 * n * N)
    S = neurons.add([Role("memory", f"{one} scale {a}") for a in range(n) for one in labels])
    S = S.reshape(n, N)
    half = neurons.add([Role("copy", f"{labels[p]} half") for p in first])
    Y = neurons.add([Role("product", f"{one} query scale {b}") for b in range(n) for one in labels])
    Y = Y.reshape(n, N)
    half_out = neurons.add([Role("copy", f"{one} query half") for one in labels])
    before = neurons.add([Role("hold", f"y[{o}] before") for o in range(held)])
    cubes = neurons.add(
        [Role("query", f"{one} cube {c}{a}") for c in range(4) for a in range(n) for one in labels]
    ).reshape(4, n, N)
    sums = np.zeros((N, len(neurons.roles)))
    weighted = factors.D * rho
    for a in range(n):
        put(neurons.U_z, neurons.b_z, S[a], product.scales[a] * key / kappa[:, None])
        put(neurons.U_h, neurons.b_h, S[a], small * value)
        sums[np.arange(N), S[a]] = weights[a] * kappa
    put(neurons.U_h, neurons.b_h, half, small * value[first])
    sums[np.arange(N), half[where]] = -total * kappa
    for b in range(n):
        put(neurons.U_z, neurons.b_z, Y[b], product.scales[b] * query / rho[:, None])
        neurons.V_h[Y[b]] = sums
    neurons.V_h[half_out] = sums
    add_diagonal(neurons.V_h, np.concatenate([S.ravel(), half, Y.ravel(), half_out]))
    readout = np.zeros((d_out, len(neurons.roles)))
    for b in range(n):
        readout[:, Y[b]] = weights[b] * weighted / small
    readout[:, half_out] = -total * weighted / small
    # The readout's own scale is taken out of the holder and put back behind it.
    hold = hold / power_of_two(weighted)
    neurons.V_h[before] = hold * small * readout[:held]
    neurons.b_z[before] = OPEN
    readout[np.arange(held), before] = -1 / (hold * small)
    scales, cubic = cubic_weights(n, cubic_scale)
    a, b, c = value / nu[:, None], key / kappa[:, None], query / rho[:, None]
    own = factors.D * (nu * kappa * rho) / 24
    signs = ((1, 1, 1, 1), (1, 1, -1, -1), (1, -1, 1, -1), (1, -1, -1, 1))
    for corner, (sa, sb, sc, sign) in enumerate(signs):
        for i in range(n):
            at = cubes[corner, i]
            put(neurons.U_h, neurons.b_h, at, scales[i] * (sa * a + sb * b + sc * c))
            neurons.b_z[at] = OPEN
            readout[:, at] = sign * cubic[i] * own
    return Stack(None, [neurons.layer()], Affine(readout)), tuple(neurons.roles)
