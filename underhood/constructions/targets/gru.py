"""Gated RNN, and so attention → two GRU layers; attention → one (against the paper's Table 3).

With r = 1 (then it is the same to reset before or after the product) and h̃ = tanh(u + h_{t−1}) in
its linear range, h̃ returns what leaks through (1 − z)⊙h:

    h_t = (1 − z)h_{t−1} + z(u + h_{t−1}) = h_{t−1} + z_t u_t,    a sum of products.

docs/constructions.md has the neurons S, P, Q of the first layer and H, Y, O of the second, the
cubes of the single layer, the sizes, and where the paper's argument (Appendix B.4) breaks.
On sequences longer than SUMMED only increments are summed, so that rounding does not grow.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from underhood.constructions.construction import Construction, Role, roles_of
from underhood.constructions.products import gates
from underhood.constructions.products.product import (
    DEFAULT_LENGTH,
    OPEN,
    Product,
    amplification,
    balanced,
    lagrange_at_zero,
    sigmoid_epsilon,
)
from underhood.constructions.sources.factors import Factors, normalised, power_of_two
from underhood.constructions.sources.gated_rnn import triples
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.constructions.target import Blueprint
from underhood.constructions.targets.gru_rows import HOLD, GRURows
from underhood.layers import Affine, GatedRNN, Stack

# Sums that never fade round more than an LRU's.
gru_epsilon = partial(sigmoid_epsilon, rounding=20.0, power=1)

# Longer sequences than this are summed step by step (`GRURows.sum_steps`).
SUMMED = 256


def gru_epsilon_for(plan: Blueprint) -> Callable[[int, float], float]:
    """Return the choice of ε; rounding of sums that never fade grows with their length."""
    growth = 1 if plan.length > SUMMED else max(plan.length / DEFAULT_LENGTH, 1)
    return lambda order, eps: gru_epsilon(order, growth * eps)


def reasons_against_gru(plan: Blueprint) -> list[str]:
    if plan.attention is None or plan.layers != 1 or not plan.attention.fades:
        return []
    return ["One GRU layer only sums (λ = 1), so the source must not decay; use layers=2."]


def build_gru(plan: Blueprint) -> Construction:
    """Return two GRU layers, or one for attention that does not decay."""
    reset = plan.reset or "before"
    if plan.layers == 1:
        factors = normalised(plan.factors(direct_reads=True))
        product = plan.product(gru_epsilon_for(plan), lambda n: (6 * n + 2) * len(factors.values))
        cubic = plan.epsilon or cubic_scale_for(product.order, plan.eps)
        layer = one_gru_layer(factors, plan.source.d_in, product, cubic, reset)
        return plan.finish(*layer, product)
    rnn, _ = plan.gated_rnn(unit=True)
    copies = 2 if plan.length > SUMMED else 1
    product = plan.product(
        gru_epsilon_for(plan), lambda n: (n + 1) * max(rnn.neurons, copies * rnn.gate_width)
    )
    return plan.finish(*two_gru_layers(rnn, product, reset), product)


def two_gru_layers(rnn: GatedRNN, product: Product, reset: str) -> tuple[Stack, tuple[Role, ...]]:
    """Compute Eq. 2 in two layers, any λ in [0, 1]."""
    small, n, hold = product.linear, product.order, HOLD[product.dtype]
    weights, total = product.weights, np.sum(product.weights)
    source = read_gated_rnn(rnn)
    decay = source.decay
    into, out = gates.input_gates(rnn, split_bias=True), gates.output_gates(rnn, product.length)
    rows, lines, neuron = into.products, np.flatnonzero(into.constant), into.neuron
    first, where = into.distinct_values()
    fading = neuron[rows][decay[neuron[rows]] < 1]
    kept = np.flatnonzero((decay > 0) & (decay < 1))

    below = GRURows(rnn.d_in, n * len(rows) + len(first) + len(fading) + len(lines), reset)
    memory = roles_of("memory", [f"h[{i}]" for i in neuron[rows]], scales=n)
    S = below.add(memory, n, len(rows))
    half = below.add(roles_of("copy", [f"h[{i}] half" for i in neuron[rows[first]]]))
    past = below.add(roles_of("hold", [f"h[{i}] before" for i in fading]))
    kinds = np.where(decay == 1, "memory", "query")
    now = below.add(tuple(Role(str(kinds[i]), f"h[{i}]") for i in neuron[lines]))
    for a in range(n):
        below.put("z", S[a], product.scales[a] * into.gate[rows] / into.size[rows, None])
        below.put("h", S[a], small * into.value[rows])
    below.put("h", half, small * into.value[rows[first]])
    below.put("h", now, small * into.size[lines, None] * into.value[lines])
    below.b_z[now] = OPEN
    below.accumulate(np.concatenate([S.ravel(), half, now[decay[neuron[lines]] == 1]]))
    # sums [neuron, unit of layer 1] = ε_v Σ_{s≤t} of its product; holders keep it for a step.
    sums = np.zeros((len(decay), len(below.roles)))
    for a in range(n):
        sums[neuron[rows], S[a]] = weights[a] * into.size[rows]
    sums[neuron[rows], half[where]] = -total * into.size[rows]
    below.V_h[past] = hold * sums[fading]
    below.b_z[past] = OPEN
    # arrived: what layer 1 says now of each neuron, ε_v h or, where λ < 1, what x_t adds to it.
    arrived = sums.copy()
    arrived[fading, past] = -1 / hold
    arrived[neuron[lines], now] = 1

    m = len(out.size)
    # Without products there is nothing to hold.
    held = rnn.d_out if m else 0
    first_out, where_out = gates.distinct(out.value)
    long = product.length > SUMMED
    more = n * m + len(first_out) if long else 0
    above = GRURows(len(below.roles), len(kept) + n * m + len(first_out) + held + more, reset)
    H = above.add(roles_of("memory", [f"h[{i}]" for i in kept]))
    Y = above.add(roles_of("product", [f"gate[{p}]" for p in range(m)], scales=n), n, m)
    half_out = above.add(roles_of("copy", [f"gate[{p}] half" for p in first_out]))
    before = above.add(roles_of("hold", [f"y[{o}] before" for o in range(held)]))
    carried = np.zeros((len(decay), len(above.U_h)))
    carried[kept, H] = decay[kept]
    above.U_h[H], above.V_h[H], above.b_z[H] = arrived[kept], carried[kept], OPEN
    weighted = source.D * out.size
    for b in range(n):
        gate = product.scales[b] * out.gate / out.size[:, None] / small
        above.U_z[Y[b]], above.V_z[Y[b]] = gate @ arrived, gate @ carried
        above.U_h[Y[b]], above.V_h[Y[b]] = out.value @ arrived, out.value @ carried
    above.U_h[half_out] = above.U_h[Y[0][first_out]]
    above.V_h[half_out] = above.V_h[Y[0][first_out]]
    dtype = product.dtype
    held_values = above.sum_steps(Y, half_out, where_out, dtype) if long else ()
    above.accumulate(np.concatenate([Y.ravel(), half_out]))
    readout = np.zeros((rnn.d_out, len(above.U_h)))
    for b in range(n):
        readout[:, Y[b]] = weights[b] * weighted / small
    np.add.at(readout.T, half_out[where_out], -total * weighted.T / small)
    # The holders' columns are still zero here, so that they hold Y alone.
    above.hold_outputs(before, readout, product, power_of_two(weighted), held_values)
    layers = [below.layer(), above.layer()]
    stack = Stack(None, layers, Affine(readout), needs_x64=product.needs_x64)
    return stack, below.roles + above.roles


def cubic_scale_for(order: int, eps: float) -> float:
    """Return the best scale s of the cubes: it balances s^{2n} against eps·s⁻²."""
    # |coefficients| of z⁵, z⁷, … in tanh over that of z³, from its poles at ±iπ/2.
    ratio = 3 * 2 * (2 / np.pi) ** (2 * order + 4)
    truncation = 0.217 * 77.0**order * ratio * np.prod((np.arange(1, order + 1) / order) ** 2)
    rounding = 0.027 * amplification(order, 2)
    return balanced(order, eps, truncation=float(truncation), rounding=rounding, power=2)


def one_gru_layer(
    factors: Factors, d_in: int, product: Product, cubic_scale: float, reset: str
) -> tuple[Stack, tuple[Role, ...]]:
    """Compute attention without decay in one layer."""
    small, n = product.linear, product.order
    weights, total = product.weights, np.sum(product.weights)
    value, key, query = triples(factors, d_in)
    kappa, rho, nu = (gates.lengths(rows) for rows in (key, query, value))
    first, where = gates.distinct(value)
    N, d_out, labels = len(value), len(factors.D), factors.memory_labels
    held = d_out if N else 0
    long = product.length > SUMMED
    more = (n + 1) * N if long else 0
    neurons = GRURows(d_in, n * N + len(first) + (n + 1) * N + held + 4 * n * N + more, reset)
    S = neurons.add(roles_of("memory", labels, scales=n), n, N)
    half = neurons.add(roles_of("copy", [f"{labels[p]} half" for p in first]))
    Y = neurons.add(roles_of("product", [f"{kv} query" for kv in labels], scales=n), n, N)
    half_out = neurons.add(roles_of("copy", [f"{kv} query half" for kv in labels]))
    before = neurons.add(roles_of("hold", [f"y[{o}] before" for o in range(held)]))
    corners = [f"{kv} cube {c}{a}" for c in range(4) for a in range(n) for kv in labels]
    cubes = neurons.add(roles_of("query", corners), 4, n, N)
    sums = np.zeros((N, len(neurons.U_h)))
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
    where_out = np.arange(N)
    held_values = neurons.sum_steps(Y, half_out, where_out, product.dtype) if long else ()
    neurons.accumulate(np.concatenate([S.ravel(), half, Y.ravel(), half_out]))
    readout = np.zeros((d_out, len(neurons.U_h)))
    for b in range(n):
        readout[:, Y[b]] = weights[b] * weighted / small
    readout[:, half_out] = -total * weighted / small
    neurons.hold_outputs(before, readout, product, power_of_two(weighted), held_values)
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
    return stack, neurons.roles
