"""Gated RNN, and so attention → one LRU In-Out layer whose gates are MLPs (Appendix B.1).

The paper says that this layer cannot, having no products. That holds for ReLU, and here is a proof:
an output of the layer is a composition of linear maps and ReLUs, so a piecewise linear function of
the tokens so far, while attention is a homogeneous cubic polynomial of them, W_V(Σ x xᵀ)M x_t. On
some open set the first is linear; a polynomial that is linear there is linear everywhere, and a
homogeneous cubic is that only if it is zero, that is if W_V = 0 or M = 0.

With a smooth activation φ it can, in the sense ε → 0 in which the LSTM and the LRU can. Let
F(z) = φ(b + z) + φ(b − z), which is even: F(z) = 2φ(b) + φ″(b) z² + O(z⁴). Then

a·c = ¼[(a + c)² − (a − c)²],   (a + c)² − (a − c)² ← Σ_i w_i [F(e_i(a + c)) − F(e_i(a − c))],

with e_i = iε/n and w_i = ∏_{j≠i} j²/(j² − i²)/(φ″(b) e_i²), which leaves O(ε^{2n}): four hidden
units per product and scale. Rounding grows as ε⁻², or as ε⁻¹ where φ(b) = 0.

b is 0 for GELU, SiLU and softplus, whose odd part is exactly z/2, so that φ(z) − φ(−z) = z passes
a query on; for tanh b = artanh(1/√3), where φ″ is largest, and queries pass through
φ(δz) − φ(−δz) at a tiny δ. That bias is a column on the constant 1, which an embedding appends and
a neuron with λ = 0 carries to the second MLP.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from underhood.constructions.construction import Role
from underhood.constructions.products.gates import Gates, input_gates, output_gates
from underhood.constructions.products.product import amplification, balanced, lagrange_at_zero
from underhood.constructions.targets.lru import append_constant, real_recurrence
from underhood.layers import Affine, GatedRNN, LRUInOutMLP, Stack


@dataclass(frozen=True)
class Curve:
    """Where an activation is bent: the bias b, φ″(b), and δ with φ(δz) − φ(−δz) = slope·z.

    Truncation is size·growth^n, fitted as in `product.py`.
    """

    bias: float
    bend: float
    delta: float
    slope: float
    size: float
    growth: float


SMOOTH = {
    "gelu": Curve(0.0, float(np.sqrt(2 / np.pi)), 1.0, 1.0, size=7.0, growth=0.75),
    "silu": Curve(0.0, 0.5, 1.0, 1.0, size=4.6, growth=0.56),
    "softplus": Curve(0.0, 0.25, 1.0, 1.0, size=3.9, growth=0.35),
    # tanh″(b) = −2t(1 − t²) at t = tanh b = 1/√3.
    "tanh": Curve(
        float(np.arctanh(3**-0.5)), -4 / 27**0.5, 2.0**-26, 2.0**-25, size=8.0, growth=1.3
    ),
}


def epsilon_for(order: int, eps: float, activation: str) -> float:
    """The balance; where φ(b) = 0 the hidden units are small and rounding grows as ε⁻¹ only."""
    curve = SMOOTH.get(activation, SMOOTH["gelu"])
    vanishing = activation in ("gelu", "silu")
    return balanced(
        order,
        eps,
        truncation=curve.size * curve.growth**order,
        rounding=0.3 * amplification(order) if vanishing else amplification(order) ** 2,
        power=1 if vanishing else 2,
    )


PIECEWISE_LINEAR = {"relu"}


@dataclass(frozen=True)
class Hidden:
    """An MLP: hidden units over [signal; 1], and what they sum up to."""

    W_1: np.ndarray
    W_2: np.ndarray


def squares(
    first: np.ndarray, second: np.ndarray, order: int, epsilon: float, curve: Curve
) -> Hidden:
    """Products of unit-size rows; the rows' last column reads the constant 1."""
    scales = epsilon * np.arange(1, order + 1) / order
    weights = lagrange_at_zero(order) / (4 * curve.bend * scales**2)
    bias = np.zeros_like(first)
    if curve.bias:
        bias[:, -1] = curve.bias
    units, sums = [], []
    for scale, weight in zip(scales, weights, strict=True):
        for total, sign in ((first + second, 1), (first - second, -1)):
            units += [bias + scale * total, bias - scale * total]
            sums += [np.diag(np.full(len(first), sign * weight))] * 2
    return Hidden(np.concatenate(units), np.hstack(sums))


def passes(rows: np.ndarray, curve: Curve) -> Hidden:
    """Rows handed on as they are."""
    identity = np.eye(len(rows)) / curve.slope
    return Hidden(
        np.concatenate([curve.delta * rows, -curve.delta * rows]), np.hstack([identity, -identity])
    )


def scaled_products(gates: Gates, order: int, epsilon: float, curve: Curve) -> Hidden:
    """gate·value for every row, each branch at size one inside the MLP."""
    made = squares(
        gates.gate / gates.size[:, None],
        gates.value / gates.value_size[:, None],
        order,
        epsilon,
        curve,
    )
    return Hidden(made.W_1, (gates.size * gates.value_size)[:, None] * made.W_2)


def lru_in_out_mlp(
    rnn: GatedRNN, order: int, epsilon: float, activation: str
) -> tuple[Stack, tuple[Role, ...]]:
    """Eq. 2 in one layer with a smooth activation."""
    # Without a smooth activation the source is zero, and no unit will be bent.
    curve = SMOOTH.get(activation, SMOOTH["gelu"])
    into = input_gates(rnn)
    p, passed = into.products, np.flatnonzero(into.constant)
    chosen = Gates(*(getattr(into, field.name)[p] for field in fields(into)))
    made = scaled_products(chosen, order, epsilon, curve)
    kept = passes(into.size[passed, None] * into.value[passed], curve)
    # Only an activation that is bent away from zero needs the constant in the second MLP.
    ones = 1 if curve.bias and len(rnn.W_out_m) else 0
    one = np.zeros((ones, rnn.d_in + 1))
    one[:, -1] = 1
    constant = passes(one, curve)
    # Neurons in the source's order, and the constant last.
    hidden = rnn.neurons + ones
    W_in_1 = np.concatenate([made.W_1, kept.W_1, constant.W_1])
    W_in_2 = np.zeros((hidden, len(W_in_1)))
    W_in_2[p, : len(made.W_1)] = made.W_2
    W_in_2[passed, len(made.W_1) : len(made.W_1) + len(kept.W_1)] = kept.W_2
    W_in_2[rnn.neurons :, len(made.W_1) + len(kept.W_1) :] = constant.W_2
    out = output_gates(rnn)
    if ones:
        out = replace(out, gate=append_zero(out.gate), value=append_zero(out.value))
    made_out = scaled_products(out, order, epsilon, curve)
    layer = LRUInOutMLP(
        W_in_1=W_in_1,
        W_in_2=W_in_2,
        **real_recurrence(
            np.append(np.asarray(rnn.decay, np.float64), np.zeros(ones)), np.eye(hidden)
        ),
        W_out_1=made_out.W_1,
        W_out_2=made_out.W_2,
        activation=activation,
    )
    roles = [Role("query" if i in passed else "memory", f"h[{i}]") for i in range(rnn.neurons)]
    roles += [Role("copy", "1")] * ones
    readout = Affine(np.asarray(rnn.D, np.float64))
    return Stack(append_constant(rnn.d_in), [layer], readout), tuple(roles)


def append_zero(rows: np.ndarray) -> np.ndarray:
    """Rows that do not read the constant."""
    return np.pad(rows, ((0, 0), (0, 1)))
