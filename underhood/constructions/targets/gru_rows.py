"""The rows of a GRU that a construction fills in, kind by kind (`gru.py` says what each is for)."""

from typing import NamedTuple

import numpy as np

from underhood.common.arrays import FLOATS
from underhood.constructions.construction import Role, roles_of
from underhood.constructions.products.product import OPEN, Product
from underhood.layers import GRU

# Holders carry sums with weights of size 1/ε, so they get a smaller scale still.
HOLD = {FLOATS["float64"]: 2.0**-30, FLOATS["float32"]: 2.0**-12}


class HeldValues(NamedTuple):
    """Sums, the neurons that hold what they no longer sum, and the gate still missing.

    now  what the neurons hold belongs to this step already, and is so many times too small; None
         if it belongs to the step before
    """

    summed: np.ndarray
    held: np.ndarray
    gate: float
    now: float | None = None


class GRURows:
    """Rows of a GRU, added kind by kind; r is 1 unless `sum_steps` says otherwise.

    reset  of the layer; r of a neuron gates what others read of it ("before"), or what it reads
           itself ("after")
    """

    def __init__(self, width: int, hidden: int, reset: str):
        self.reset = reset
        self.U_h, self.U_z = np.zeros((hidden, width)), np.zeros((hidden, width))
        self.V_h, self.V_z = np.zeros((hidden, hidden)), np.zeros((hidden, hidden))
        self.b_h, self.b_z = np.zeros(hidden), np.zeros(hidden)
        self.U_r, self.V_r = np.zeros((hidden, width)), np.zeros((hidden, hidden))
        self.b_r = np.full(hidden, OPEN)
        self.roles: tuple[Role, ...] = ()

    def add(self, roles: tuple[Role, ...], *shape: int) -> np.ndarray:
        """Add neurons with these roles; return their indices, in a shape if it is given."""
        self.roles += roles
        return np.arange(len(self.roles) - len(roles), len(self.roles)).reshape(shape or -1)

    def accumulate(self, at: np.ndarray) -> None:
        """Let h̃ return the state too, so that the neuron adds z·u."""
        self.V_h[at, at] += 1

    def put(self, gate: str, at: np.ndarray, rows: np.ndarray) -> None:
        """Write rows [U|b] of the candidate "h" or the gate "z"."""
        getattr(self, f"U_{gate}")[at], getattr(self, f"b_{gate}")[at] = rows[:, :-1], rows[:, -1]

    def sum_steps(
        self, Y: np.ndarray, half: np.ndarray, where: np.ndarray, dtype: np.dtype
    ) -> tuple[HeldValues, ...]:
        """Let sums of z·u become sums of z·(u − u before); add neurons that hold u before.

        Y, half  the sums at all scales and their copies, whose rows of z and h̃ are finished
        where    the copy of each product
        dtype    precision of the network
        """
        Z = self.add(roles_of("hold", [f"value[{v}] before" for v in range(len(half))]))
        labels = [f"value[{v}] before, gated" for v in where]
        G = self.add(roles_of("hold", labels, scales=len(Y)), *Y.shape)
        before = self.reset == "before"
        for held, summed in ((Z, half), *([(G.ravel(), Y.ravel())] if before else [])):
            for rows in (self.U_h, self.V_h, self.b_h):
                rows[held] = rows[summed]
        self.b_z[Z] = self.b_z[G] = OPEN
        # Gated by r as the sums are by z.
        self.U_r[G], self.V_r[G], self.b_r[G] = self.U_z[Y], self.V_z[Y], self.b_z[Y]
        for summed, gated in zip(Y, G, strict=True):
            self.V_h[summed, Z[where]] -= 1
            if not before:
                # G = r⊙Z of the step before; the scale keeps its tanh linear.
                self.V_h[gated, Z[where]] = HOLD[dtype]
        self.V_h[half, Z] -= 1
        # A copy's gate is ½, and Z is read whole.
        now = None if before else HOLD[dtype]
        gated_values = (HeldValues(*pair, 1.0, now) for pair in zip(Y, G, strict=True))
        return *gated_values, HeldValues(half, Z, 0.5)

    def hold_outputs(
        self,
        at: np.ndarray,
        readout: np.ndarray,
        product: Product,
        size: float,
        values: tuple[HeldValues, ...] = (),
    ) -> None:
        """Let neurons hold the readout of the step before, and the readout subtract it.

        size    scale of the readout, taken out of the holders and put back behind them
        values  what `sum_steps` took out of the sums, to be added to the output
        """
        scale = HOLD[product.dtype] / size * product.linear
        self.V_h[at] = scale * readout[: len(at)]
        for part in values:
            missing = part.gate * readout[: len(at), part.summed]
            if part.now is None:
                self.V_h[np.ix_(at, part.held)] = -scale * missing
            else:
                readout[: len(at), part.held] = missing / part.now
        self.b_z[at] = OPEN
        readout[np.arange(len(at)), at] = -1 / scale

    def layer(self) -> GRU:
        assert len(self.roles) == len(self.U_h), "every neuron has a role"
        return GRU(
            reset=self.reset,
            **{
                f"{letter}_{gate}": getattr(self, f"{letter}_{gate}")
                for letter in "UVb"
                for gate in "rhz"
            },
        )
