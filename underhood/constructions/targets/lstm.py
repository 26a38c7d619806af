"""Attention → one LSTM layer; gated RNN → two LSTM layers (Appendix B.3 and its weight tables).

One layer: neurons A_ab (e_a k/κ; e_b q/ρ), B_a (e_a k/κ; 0), C_b (0; e_b q/ρ), E (0; 0), by what
is in the sigmoids of (input gate; output gate), use the gadget of `product.py` in both at once,

    y = ε_v⁻¹ D κρ Σ_ab a_a a_b (A_ab − B_a − C_b + E).

Two layers: the first holds the neurons of Eq. 2 in n + 1 copies, the second forgets at once and
multiplies in its input gate. docs/constructions.md has all weights and the numbers of neurons.
"""

from functools import partial

import numpy as np

from underhood.constructions.construction import Construction, Role, roles_of
from underhood.constructions.products import gates
from underhood.constructions.products.product import OPEN, SHUT, Product, sigmoid_epsilon
from underhood.constructions.sources.factors import Factors, normalised
from underhood.constructions.sources.gated_rnn import constant_rows, extend, triples
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.constructions.target import Blueprint
from underhood.layers import LSTM, Affine, GatedRNN, Stack

# In one layer two sigmoids multiply. Two layers have one product each, and sums over time round
# more than an LRU's.
one_layer_epsilon = partial(sigmoid_epsilon, rounding=2.3, power=2)
two_layer_epsilon = partial(sigmoid_epsilon, rounding=4.0, power=1)


def build_lstm(plan: Blueprint) -> Construction:
    """Return one LSTM layer for attention, two for a gated RNN."""
    if plan.layers == 1:
        factors = normalised(plan.factors(direct_reads=True))
        product = plan.product(one_layer_epsilon, lambda n: len(factors.values) * (n * n + 2 * n))
        return plan.finish(*one_lstm_layer(factors, plan.source.d_in, product), product)
    rnn, _ = plan.gated_rnn(unit=True)
    product = plan.product(two_layer_epsilon, lambda n: (n + 1) * max(rnn.neurons, rnn.gate_width))
    return plan.finish(*two_lstm_layers(rnn, product), product)


def one_lstm_layer(factors: Factors, d_in: int, product: Product) -> tuple[Stack, tuple[Role, ...]]:
    small, n = product.linear, product.order
    value, key, query = triples(factors, d_in)
    kappa, rho = (gates.lengths(rows)[:, None] for rows in (key, query))
    first, where = gates.distinct(np.column_stack([value, factors.decay]))
    none = np.zeros_like(value)
    # The pairs (a, b) of A, B and C; n stands for the zero gate.
    pairs = [(a, b) for a in range(n) for b in range(n)]
    pairs += [(a, n) for a in range(n)] + [(n, b) for b in range(n)]
    # Rows of (value, input gate, output gate), in the order A, B, C, E.
    values = np.concatenate([np.tile(value, (len(pairs), 1)), value[first]])
    gates_in = [*(scale * key / kappa for scale in product.scales), none]
    gates_out = [*(scale * query / rho for scale in product.scales), none]
    inputs = np.concatenate([gates_in[a] for a, _ in pairs] + [none[first]])
    outputs = np.concatenate([gates_out[b] for _, b in pairs] + [none[first]])
    decay = np.concatenate([np.tile(factors.decay, len(pairs)), factors.decay[first]])
    weighted = factors.D * (kappa * rho)[:, 0] / small
    total = np.sum(product.weights)
    shared = np.zeros((len(weighted), len(first)))
    np.add.at(shared.T, where, total**2 * weighted.T)
    w = [*product.weights, -total]
    readout = np.hstack([*(w[a] * w[b] * weighted for a, b in pairs), shared])
    order = cancelling_order(n, where, len(first))
    layer = lstm(f=logit(decay[order]), c=small * values[order], g=inputs[order], o=outputs[order])
    labels = factors.memory_labels
    roles = [Role("memory", f"{kv} A{a}{b}") for a in range(n) for b in range(n) for kv in labels]
    roles += [Role("memory", f"{kv} B{a}") for a in range(n) for kv in labels]
    roles += [Role("copy", f"{kv} C{b}") for b in range(n) for kv in labels]
    roles += [Role("copy", f"{labels[p]} E") for p in first]
    stack = Stack(None, [layer], Affine(readout[:, order]), needs_x64=product.needs_x64)
    return stack, tuple(roles[i] for i in order)


def cancelling_order(n: int, where: np.ndarray, v: int) -> np.ndarray:
    """Order the neurons A, B, C, E so that the readout's terms cancel as they are summed.

    The readout's weights are of size ε⁻², and a running sum rounds by the largest value it reaches.
    """
    N = len(where)
    A, B, C = np.split(np.arange(N * (n * n + 2 * n)), [N * n * n, N * (n * n + n)])
    A, B, C = A.reshape(n, n, N), B.reshape(n, N), C.reshape(n, N)
    order: list[int] = []
    for place in range(v):
        products = np.flatnonzero(where == place)
        for p in products:
            for a in range(n):
                order += [*A[a, :, p], B[a, p]]
        for p in products:
            order += [*C[:, p]]
        order.append(N * (n * n + 2 * n) + place)
    return np.array(order, int)


def logit(decay: np.ndarray) -> np.ndarray:
    """Return σ⁻¹(λ); at λ = 0 and 1 it is finite, and σ of it still exactly 0 and 1."""
    with np.errstate(divide="ignore"):
        return np.clip(np.log(decay) - np.log1p(-decay), SHUT, OPEN)


def lstm(*, f: np.ndarray, c: np.ndarray, g: np.ndarray, o: np.ndarray) -> LSTM:
    """Return a layer without recurrent weights from rows [U|b]; the forget gate has b alone."""
    hidden, width = c.shape
    weights = {"U_f": np.zeros((hidden, width - 1)), "b_f": f}
    for gate, rows in (("c", c), ("g", g), ("o", o)):
        weights[f"U_{gate}"], weights[f"b_{gate}"] = rows[:, :-1], rows[:, -1]
    return LSTM(**weights, **{f"V_{gate}": np.zeros((hidden, hidden)) for gate in "fcgo"})


def two_lstm_layers(rnn: GatedRNN, product: Product) -> tuple[Stack, tuple[Role, ...]]:
    small, n = product.linear, product.order
    weights = read_gated_rnn(rnn)
    decay = weights.decay
    into, out = gates.input_gates(rnn, split_bias=True), gates.output_gates(rnn, product.length)
    p, passed, neuron = into.products, np.flatnonzero(into.constant), into.neuron
    first, _ = into.distinct_values(decay[neuron])
    # Layer 1: the scaled products, their copies behind a zero gate, and the constant rows.
    rows = np.concatenate([np.tile(p, n), p[first], passed])
    pairs = gates.input_pairs(into, product, decay[neuron])
    below = lstm(
        f=logit(decay[neuron[rows]]),
        c=small * pairs.W_x,
        g=pairs.W_m,
        o=constant_rows(len(rows), into.gate.shape[1], OPEN),
    )
    # R turns layer 1's outputs into ε_v h.
    R = pairs.R
    # Layer 2: the same gadget on W_out, whose copies repeat the candidate's row exactly.
    first_out, where_out = out.distinct_values()
    m = len(out.size)
    gate_rows = (out.gate / out.size[:, None]) @ R / small
    value_rows = out.value @ R
    above_inputs = np.zeros((n * m + len(first_out), len(rows)))
    above_inputs[: n * m] = product.scaled(gate_rows)
    candidates = np.concatenate([np.tile(value_rows, (n, 1)), value_rows[first_out]])
    above = lstm(
        f=np.full(len(candidates), SHUT),
        c=extend(candidates, len(rows)),
        g=extend(above_inputs, len(rows)),
        o=constant_rows(len(candidates), len(rows) + 1, OPEN),
    )
    weighted = weights.D * out.size / small
    shared = np.zeros((len(weighted), len(first_out)))
    np.add.at(shared.T, where_out, -np.sum(product.weights) * weighted.T)
    readout = np.hstack([*(weight * weighted for weight in product.weights), shared])
    roles = roles_of("memory", [f"h[{i}]" for i in neuron[p]], scales=n)
    roles += roles_of("copy", [f"h[{i}] half" for i in neuron[p[first]]])
    roles += tuple(Role("query" if decay[i] == 0 else "memory", f"h[{i}]") for i in neuron[passed])
    roles += roles_of("product", [f"gate[{i}]" for i in range(m)], scales=n)
    roles += roles_of("copy", [f"gate[{i}] half" for i in first_out])
    stack = Stack(None, [below, above], Affine(readout), needs_x64=product.needs_x64)
    return stack, roles
