"""Gated RNN, and so attention → two GRU layers (against the paper's Table 3).

The paper (Appendix B.4, its Table 3) says that no stack of GRUs computes either. Its argument: if z
is one branch of a product and h̃ the other, the previous state must not interfere, but unless z = 1
it does, through (1 − z)⊙h. But h̃ can return what leaks: with r = 1 and h̃ = tanh(u + h_{t−1}) in
its linear range,

h_t = (1 − z)h_{t−1} + z(u + h_{t−1}) = h_{t−1} + z_t u_t,

a sum of products z·u. Nothing has to be forgotten: what one step added is a difference,
S_t − S_{t−1} = z_t u_t, and a neuron with z = 1 that reads S through V_h holds S_{t−1}. "Computes"
means what it means for the paper's LSTM and LRU: to any accuracy, as ε → 0 (`product.py`).

Two layers, Eq. 2 with neurons h_i = λ_i h_i + G_i[x;1]·V_i[x;1] and outputs D((gate h)⊙(value h)):

layer 1  S_ia   z = σ(e_a G_i/κ_i), h̃ = tanh(ε_v V_i + S_ia)          a = 1…n
         S_v0   z = ½,              h̃ = tanh(ε_v V + S_v0)             once per distinct V
         P_i    z = 1,              h̃ = tanh(κ Σ_a a_a (S_ia − S_v0))  last step's sum, if λ_i < 1
         Q_i    z = 1,              h̃ = tanh(ε_v c V_i (+ Q_i if λ_i = 1))  if G_i is the constant c
layer 2  H_i    z = 1,              h̃ = tanh(λ_i H_i + what x_t adds)  if 0 < λ_i < 1
         Y_pb   z = σ(e_b gate_p),  h̃ = tanh(ε_v value_p + Y_pb)
         Y_p0   z = ½,              h̃ = tanh(ε_v value_p + Y_p0)       once per distinct value
         O_o    z = 1,              holds what the readout made of Y one step ago

For λ = 1 the sum κ Σ a_a (S_ia − S_v0) is h_i itself. Attention with N products, v distinct values,
r queries and o outputs takes (nN + v + r) + ((n + 1)N + o) neurons: (nd² + 2d) + ((n + 1)d² + d) in
the full form. The copies Y_p0 repeat their candidate's row exactly: value_p has weights of size
1/ε, and its rounding must be the same in both for the difference to cancel it.
"""

from functools import partial

import numpy as np

from underhood.constructions.construction import Construction, Role
from underhood.constructions.products.gates import distinct, input_gates, output_gates
from underhood.constructions.products.product import OPEN, Product, sigmoid_epsilon
from underhood.constructions.sources.factors import normalised, power_of_two
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.constructions.target import Blueprint, Target
from underhood.constructions.targets.gated_rnn import as_gated_rnn
from underhood.constructions.targets.gru_rows import HOLD, GRURows
from underhood.constructions.targets.gru_single import cubic_scale_for, one_gru_layer
from underhood.layers import Affine, GatedRNN, Stack

# Sums that never fade round more than an LRU's.
gru_epsilon = partial(sigmoid_epsilon, rounding=20.0, power=1)


class ToGRU(Target):
    """Two GRU layers, or one for attention that does not decay."""

    name = "gru"
    from_attention = (2, 1)
    from_gated_rnn = (2,)
    takes = ("form", "order", "epsilon")

    def reasons_against(self, plan: Blueprint) -> list[str]:
        if plan.attention is None or plan.layers != 1 or not plan.attention.fades:
            return []
        return ["One GRU layer only sums (λ = 1), so the source must not decay; use layers=2."]

    def build(self, plan: Blueprint) -> Construction:
        if plan.layers == 1:
            factors = normalised(plan.factors(direct_reads=True))
            product = plan.product(gru_epsilon, lambda n: (6 * n + 2) * len(factors.values))
            cubic = plan.epsilon or cubic_scale_for(product.order, plan.eps)
            made = one_gru_layer(factors, plan.source.d_in, product, cubic)
        else:
            rnn, _ = as_gated_rnn(plan, unit=True)
            product = plan.product(
                gru_epsilon, lambda n: (n + 1) * max(rnn.neurons, rnn.gate_width)
            )
            made = two_gru_layers(rnn, product)
        return plan.finish(*made, product)


def two_gru_layers(rnn: GatedRNN, product: Product) -> tuple[Stack, tuple[Role, ...]]:
    """Compute Eq. 2 in two layers, any λ in [0, 1]."""
    small, n, hold = product.linear, product.order, HOLD[product.dtype]
    weights, total = product.weights, np.sum(product.weights)
    source = read_gated_rnn(rnn)
    decay = source.decay
    into, out = input_gates(rnn, split_bias=True), output_gates(rnn)
    rows, lines, neuron = into.products, np.flatnonzero(into.constant), into.neuron
    first, where = into.distinct_values()
    fading = neuron[rows][decay[neuron[rows]] < 1]
    kept = np.flatnonzero((decay > 0) & (decay < 1))

    below = GRURows(rnn.d_in, n * len(rows) + len(first) + len(fading) + len(lines))
    memory = [Role("memory", f"h[{i}] scale {a}") for a in range(n) for i in neuron[rows]]
    S = below.add(memory, n, len(rows))
    half = below.add([Role("copy", f"h[{neuron[rows[i]]}] half") for i in first])
    past = below.add([Role("hold", f"h[{i}] before") for i in fading])
    kinds = ["memory" if decay[i] == 1 else "query" for i in neuron[lines]]
    now = below.add([Role(kind, f"h[{i}]") for kind, i in zip(kinds, neuron[lines], strict=True)])
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
    first_out, where_out = distinct(out.value)
    above = GRURows(len(below.roles), len(kept) + n * m + len(first_out) + held)
    H = above.add([Role("memory", f"h[{i}]") for i in kept])
    products = [Role("product", f"gate[{p}] scale {b}") for b in range(n) for p in range(m)]
    Y = above.add(products, n, m)
    half_out = above.add([Role("copy", f"gate[{p}] half") for p in first_out])
    before = above.add([Role("hold", f"y[{o}] before") for o in range(held)])
    carried = np.zeros((len(decay), len(above.roles)))
    carried[kept, H] = decay[kept]
    above.U_h[H], above.V_h[H], above.b_z[H] = arrived[kept], carried[kept], OPEN
    weighted = source.D * out.size
    for b in range(n):
        gate = product.scales[b] * out.gate / out.size[:, None] / small
        above.U_z[Y[b]], above.V_z[Y[b]] = gate @ arrived, gate @ carried
        above.U_h[Y[b]], above.V_h[Y[b]] = out.value @ arrived, out.value @ carried
    above.U_h[half_out] = above.U_h[Y[0][first_out]]
    above.V_h[half_out] = above.V_h[Y[0][first_out]]
    above.accumulate(np.concatenate([Y.ravel(), half_out]))
    readout = np.zeros((rnn.d_out, len(above.roles)))
    for b in range(n):
        readout[:, Y[b]] = weights[b] * weighted / small
    np.add.at(readout.T, half_out[where_out], -total * weighted.T / small)
    # The holders' columns are still zero here, so that they hold Y alone.
    above.hold_outputs(before, readout, product, power_of_two(weighted))
    layers = [below.layer(), above.layer()]
    stack = Stack(None, layers, Affine(readout), needs_x64=product.needs_x64)
    return stack, tuple(below.roles + above.roles)
