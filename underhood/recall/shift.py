"""A layer that remembers the last key: the first of the two that token-by-token MQAR needs.

    u_t = ε u_{t−1} + φ(x_t)/ε = φ(x_t)/ε + φ(x_{t−1}) + ε φ(x_{t−2}) + …

Values have φ = 0, so at a value token u is the code of the token before it, up to O(ε). Inside the
pairs the token before that is a value too, and the error is ε². At a key token u is large, but the
value's code ψ is 0 there, so the memory of the second layer writes nothing.

Tokens are [φ; ψ] (side gates: [φ; ψ; 1]); outputs are [u; ψ; φ].
"""

import numpy as np

from underhood.constructions import ImpossibleConstruction, Role
from underhood.layers import GatedRNN, SideGatedRNN

# ε, by precision. Nothing cancels: numbers of size 1/ε are only multiplied by ε, by 1 or by 0.
SHIFTS = {"float32": 1e-6, "float64": 1e-13}

PARITY = (
    "Token by token a key and its value are two tokens, and the query is a third. An output of one "
    "such layer is a sum of functions of two tokens each.",
    "For two keys and two values, the difference of the two values' scores must have the sign of "
    "the product of three signs: the order of the keys, the order of the values, and which key is "
    "asked. Functions of two of them are orthogonal to that product (docs/recall.md).",
    "Use layers=2, or stacked=True.",
)


def refuse_single_layer(target: str) -> None:
    """Raise the parity argument against one layer for token-by-token MQAR."""
    raise ImpossibleConstruction(f"Token-by-token MQAR in one {target} layer", list(PARITY))


def shift_layer(
    keys: int, values: int, *, side: bool, dtype: str
) -> tuple[GatedRNN | SideGatedRNN, tuple[Role, ...]]:
    """Return the layer and the roles of its neurons.

    Neurons: dk that shift (λ = ε), dv and dk that pass ψ and φ on (λ = 0), and a constant that
    side gates do not need.
    """
    epsilon, width = SHIFTS[dtype], keys + values
    passed = keys + width
    decay = np.concatenate([np.full(keys, epsilon), np.zeros(width)])
    # Column of the token that a neuron reads: φ, then ψ, then φ.
    reads = np.concatenate([np.arange(keys), keys + np.arange(values), np.arange(keys)])
    chosen = np.eye(width)[reads]
    chosen[:keys] /= epsilon
    labels = [f"key[{i}] of the last token" for i in range(keys)]
    labels += [f"value[{i}]" for i in range(values)] + [f"key[{i}]" for i in range(keys)]
    roles = tuple(Role("copy", label) for label in labels)
    always = np.zeros((passed, width + 1))
    always[:, -1] = 1
    chosen = np.hstack([chosen, np.zeros((passed, 1))])
    kind = np.dtype(dtype)
    if side:
        weights = {"W_in_m": chosen, "W_in_x": always, "W_side": always, "D": np.eye(passed)}
        cast = {name: weight.astype(kind) for name, weight in weights.items()}
        return SideGatedRNN(decay=decay.astype(kind), **cast), roles
    constant = np.zeros((1, width + 1))
    constant[0, -1] = 1
    read = np.eye(passed, passed + 1)
    last = np.zeros((passed, passed + 1))
    last[:, -1] = 1
    weights = {
        "W_in_m": np.vstack([chosen, constant]),
        "W_in_x": np.vstack([always, constant]),
        "W_out_m": read,
        "W_out_x": last,
        "D": np.eye(passed),
    }
    cast = {name: weight.astype(kind) for name, weight in weights.items()}
    decay = np.append(decay, 0.0).astype(kind)
    return GatedRNN(decay=decay, **cast), (*roles, Role("copy", "1"))
