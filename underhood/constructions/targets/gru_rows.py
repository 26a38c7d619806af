"""A GRU's weights while they are written, neuron by neuron."""

import numpy as np

from underhood.common.arrays import FLOATS
from underhood.constructions.construction import Role
from underhood.constructions.products.product import OPEN, Product
from underhood.layers import GRU

# Holders carry sums with weights of size 1/ε, so they get a smaller scale still.
HOLD = {FLOATS["float64"]: 2.0**-30, FLOATS["float32"]: 2.0**-12}


class GRURows:
    """Rows of a GRU, added kind by kind; r is 1 throughout."""

    def __init__(self, width: int, hidden: int):
        self.U_h, self.U_z = np.zeros((hidden, width)), np.zeros((hidden, width))
        self.V_h, self.V_z = np.zeros((hidden, hidden)), np.zeros((hidden, hidden))
        self.b_h, self.b_z = np.zeros(hidden), np.zeros(hidden)
        self.roles: list[Role] = []

    def add(self, roles: list[Role], *shape: int) -> np.ndarray:
        """Add neurons with these roles; return their indices, in a shape if it is given."""
        self.roles += roles
        return np.arange(len(self.roles) - len(roles), len(self.roles)).reshape(shape or -1)

    def accumulate(self, at: np.ndarray) -> None:
        """Let h̃ return the state too, so that the neuron adds z·u."""
        self.V_h[at, at] += 1

    def put(self, gate: str, at: np.ndarray, rows: np.ndarray) -> None:
        """Write rows [U|b] of the candidate "h" or the gate "z"."""
        getattr(self, f"U_{gate}")[at], getattr(self, f"b_{gate}")[at] = rows[:, :-1], rows[:, -1]

    def hold_outputs(
        self, at: np.ndarray, readout: np.ndarray, product: Product, size: float
    ) -> None:
        """Let neurons hold the readout of the step before, and the readout subtract it.

        size  scale of the readout, taken out of the holders and put back behind them
        """
        scale = HOLD[product.dtype] / size * product.linear
        self.V_h[at] = scale * readout[: len(at)]
        self.b_z[at] = OPEN
        readout[np.arange(len(at)), at] = -1 / scale

    def layer(self) -> GRU:
        hidden, width = self.U_h.shape
        assert len(self.roles) == hidden, "every neuron has a role"
        weights = {name: getattr(self, name) for name in ("U_h", "V_h", "b_h", "U_z", "V_z", "b_z")}
        U_r, V_r = np.zeros((hidden, width)), np.zeros((hidden, hidden))
        return GRU(U_r=U_r, V_r=V_r, b_r=np.full(hidden, OPEN), **weights)
