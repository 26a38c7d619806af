"""Gated RNN, and so attention → one LRU In-Out layer whose gates are MLPs (Appendix B.1).

The paper says that this layer cannot compute attention, because it has no products. With ReLU its
outputs are piecewise linear: no weights are exact, and layers of one size do not come arbitrarily
near, but wider layers do. With a smooth activation φ one size suffices, in the limit ε → 0: with
F(z) = φ(b + z) + φ(b − z) = 2φ(b) + φ″(b) z² + O(z⁴), e_i = iε/n, w_i = ℓ_i/(φ″(b) e_i²),

    4ac = (a + c)² − (a − c)² = Σ_i w_i [F(e_i(a + c)) − F(e_i(a − c))] + O(ε^{2n}).

docs/constructions.md has both proofs, the choice of b, and how queries and the constant pass.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from underhood.constructions.construction import Construction, Role
from underhood.constructions.products.gates import Gates, input_gates, output_gates
from underhood.constructions.products.product import (
    Product,
    amplification,
    balanced,
    lagrange_at_zero,
)
from underhood.constructions.sources.gated_rnn import append_constant, constant_rows
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.constructions.sources.minimal import minimal
from underhood.constructions.target import Blueprint
from underhood.layers import Affine, LRUInOutMLP, Stack
from underhood.layers.lru import real_recurrence


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


def reasons_against_mlp(plan: Blueprint) -> list[str]:
    # Every network can compute attention that is zero.
    zero = plan.attention is not None and len(minimal(plan.attention, True).values) == 0
    if plan.activation is None or plan.activation in SMOOTH or zero:
        return []
    return [
        f"With {plan.activation}, an output of this layer is a piecewise linear function of "
        "the tokens, so it is linear on some open set. A polynomial of degree 2 or more is not, so "
        "no weights are exact for it: attention has degree 3, or less if keys or queries are "
        "constant, and Eq. 2 has 4 in general. Wider layers come near, but are not built. A smooth "
        f"activation works to any accuracy: use activation={' or '.join(map(repr, SMOOTH))}."
    ]


def mlp_epsilon(order: int, eps: float, activation: str) -> float:
    """Balance truncation and rounding, which grows as ε⁻¹ only where φ(b) = 0: units are small."""
    curve = SMOOTH.get(activation, SMOOTH["gelu"])
    truncation, rounding = curve.size * curve.growth**order, amplification(order)
    if activation in ("gelu", "silu"):
        return balanced(order, eps, truncation=truncation, rounding=0.3 * rounding, power=1)
    return balanced(order, eps, truncation=truncation, rounding=rounding**2, power=2)


class Hidden(NamedTuple):
    """An MLP: hidden units over [signal; 1], and what they sum up to."""

    W_1: np.ndarray
    W_2: np.ndarray


def passes(rows: np.ndarray, curve: Curve) -> Hidden:
    """Pass rows on as they are."""
    identity = np.eye(len(rows)) / curve.slope
    return Hidden(
        np.concatenate([curve.delta * rows, -curve.delta * rows]), np.hstack([identity, -identity])
    )


def products_by_squares(gates: Gates, product: Product, curve: Curve) -> Hidden:
    """Return gate·value for every row, each branch at size one inside the MLP.

    With a bias, the rows' last column reads the constant 1.
    """
    first, second = gates.gate / gates.size[:, None], gates.value / gates.value_size[:, None]
    weights = lagrange_at_zero(product.order) / (4 * curve.bend * product.scales**2)
    bias = np.zeros_like(first)
    # Without rows there may be no column for the bias either.
    if len(first):
        bias[:, -1] = curve.bias
    units, sums = [], []
    for scale, weight in zip(product.scales, weights, strict=True):
        for total, sign in ((first + second, 1), (first - second, -1)):
            units += [bias + scale * total, bias - scale * total]
            sums += [np.diag(np.full(len(first), sign * weight))] * 2
    size = (gates.size * gates.value_size)[:, None]
    return Hidden(np.concatenate(units), size * np.hstack(sums))


def build_mlp(plan: Blueprint) -> Construction:
    """Compute Eq. 2 in one layer with a smooth activation."""
    rnn, _ = plan.gated_rnn(unit=True)
    activation = plan.activation or "gelu"
    product = plan.product(lambda order, eps: mlp_epsilon(order, eps, activation))
    # Without a smooth activation the source is zero, and no unit will be bent.
    curve = SMOOTH.get(activation, SMOOTH["gelu"])
    weights, into = read_gated_rnn(rnn), input_gates(rnn)
    p, passed = into.products, np.flatnonzero(into.constant)
    chosen = Gates(*(getattr(into, field.name)[p] for field in fields(into)))
    made = products_by_squares(chosen, product, curve)
    kept = passes(into.size[passed, None] * into.value[passed], curve)
    # Only an activation that is bent away from zero needs the constant in the second MLP.
    ones = 1 if curve.bias and len(rnn.W_out_m) else 0
    constant = passes(constant_rows(ones, rnn.d_in + 1), curve)
    # Neurons in the source's order, and the constant last.
    hidden = rnn.neurons + ones
    places = np.concatenate([p, passed, np.arange(rnn.neurons, hidden)])
    W_in_1 = np.concatenate([made.W_1, kept.W_1, constant.W_1])
    W_in_2 = np.zeros((hidden, len(W_in_1)))
    W_in_2[places] = block_diag(made.W_2, kept.W_2, constant.W_2)
    out = output_gates(rnn, plan.length)
    if ones:
        # No row reads the constant.
        wider = {name: np.pad(getattr(out, name), ((0, 0), (0, 1))) for name in ("gate", "value")}
        out = replace(out, **wider)
    made_out = products_by_squares(out, product, curve)
    layer = LRUInOutMLP(
        W_in_1=W_in_1,
        W_in_2=W_in_2,
        **real_recurrence(np.append(weights.decay, np.zeros(ones)), np.eye(hidden)),
        W_out_1=made_out.W_1,
        W_out_2=made_out.W_2,
        activation=activation,
    )
    roles = [Role("query" if i in passed else "memory", f"h[{i}]") for i in range(rnn.neurons)]
    roles += [Role("copy", "1")] * ones
    embed, readout = append_constant(rnn.d_in), Affine(weights.D)
    stack = Stack(embed, [layer], readout, needs_x64=product.needs_x64)
    return plan.finish(stack, tuple(roles), product)
