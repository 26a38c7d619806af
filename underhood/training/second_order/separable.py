"""Gated RNNs as a linear part and parameters that move (variable projection).

An output is linear in the kernels of a gated RNN, y_o = hᵀK_o h, and in the readout of a side-gated
one, y_o = Σ_i D_oi (W_side x)_i h_i. So the linear part is solved for, and only `parameters` move:
W_in_m, W_in_x, the free decays, then W_side. `examples.py` has the features and derivatives.
"""

from dataclasses import dataclass, replace

import numpy as np

from underhood.common.decay import kinds
from underhood.common.linear_algebra import (
    decayed_sums,
    symmetric_part,
    symmetric_products,
    upper,
)
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.training.second_order.gates import eigen_gates


@dataclass(frozen=True)
class SeparableNetwork:
    """A gated RNN (no W_side) or a side-gated one; `linear` is the upper half of K_o, or D.

    crossed  the kernels pair memory (λ = 1) with other neurons only; `linear` has these entries
    """

    W_m: np.ndarray
    W_x: np.ndarray
    decay: np.ndarray
    free: np.ndarray
    linear: np.ndarray
    W_side: np.ndarray | None = None
    crossed: bool = False

    @classmethod
    def of(cls, model: GatedRNN | SideGatedRNN) -> "SeparableNetwork":
        """Return the parts of a model in float64; decays other than 0 and 1 may move."""
        decay = np.asarray(model.decay, float)
        inner = (np.asarray(model.W_in_m, float), np.asarray(model.W_in_x, float), decay)
        free, D = (decay > 0) & (decay < 1), np.asarray(model.D, float)
        if isinstance(model, SideGatedRNN):
            return cls(*inner, free, D, np.asarray(model.W_side, float))
        W_m, W_x = np.asarray(model.W_out_m, float), np.asarray(model.W_out_x, float)
        rows, columns = upper(model.neurons)
        return cls(*inner, free, symmetric_part(W_m.T @ (D[:, :, None] * W_x))[:, rows, columns])

    def rounded(self) -> "SeparableNetwork":
        """Set decays that are nearly 0 or 1 to 0 or 1, and fix them there."""
        kind = kinds(self.decay)
        decay = np.where(kind == "memory", 1.0, np.where(kind == "query", 0.0, self.decay))
        return replace(self, decay=decay, free=(decay > 0) & (decay < 1))

    def settled(self) -> "SeparableNetwork":
        """Set every decay to 0 or 1, whichever is nearer, and fix it there."""
        decay = np.round(self.decay)
        return replace(self, decay=decay, free=np.zeros(len(decay), bool))

    def keep(self, which: np.ndarray) -> "SeparableNetwork":
        """Return the network of some of the neurons."""
        side = self.W_side
        inner = (self.W_m[which], self.W_x[which], self.decay[which], self.free[which])
        if side is not None:
            return SeparableNetwork(*inner, self.linear[:, which], side[which])
        fewer = SeparableNetwork(*inner, self.linear, crossed=self.crossed)
        rows, columns = fewer.pairs
        return replace(fewer, linear=self.kernels[:, which][:, :, which][:, rows, columns])

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the entries of a kernel that `linear` has."""
        rows, columns = upper(len(self.decay))
        if not self.crossed:
            return rows, columns
        memory = self.decay == 1
        counts = memory[rows] != memory[columns]
        return rows[counts], columns[counts]

    @property
    def kernels(self) -> np.ndarray:
        rows, columns = self.pairs
        kernels = np.zeros((len(self.linear), len(self.decay), len(self.decay)))
        kernels[:, rows, columns] = kernels[:, columns, rows] = self.linear
        return kernels

    @property
    def reads(self) -> np.ndarray:
        """What each neuron adds up, over the products of [x; 1]; no side gate reads the 1."""
        return symmetric_products(self.with_constant(self.W_m), self.with_constant(self.W_x))

    @property
    def owners(self) -> np.ndarray:
        """The neuron of each parameter of W_in_m, W_in_x and the free decays."""
        neurons = np.arange(len(self.decay))
        each = np.repeat(neurons, self.W_m.shape[1])
        return np.concatenate([each, each, neurons[self.free]])

    def moved_reads(self) -> np.ndarray:
        """Return how the reads of its neuron change with each parameter of W_in_m and W_in_x."""
        n, p = self.W_m.shape
        unit = np.tile(self.with_constant(np.eye(p)), (n, 1))
        others = (np.repeat(self.with_constant(W), p, axis=0) for W in (self.W_x, self.W_m))
        return np.vstack([symmetric_products(unit, W) for W in others])

    def with_constant(self, W: np.ndarray) -> np.ndarray:
        """Return weights over [x; 1]."""
        return W if self.W_side is None else np.pad(W, ((0, 0), (0, 1)))

    def inputs(self, tokens: np.ndarray) -> np.ndarray:
        """Return what the input gates read: with the constant 1 unless there is a side gate."""
        if self.W_side is not None:
            return tokens
        return np.concatenate([tokens, np.ones((*tokens.shape[:-1], 1))], axis=-1)

    def states(self, tokens: np.ndarray) -> np.ndarray:
        """Return the states [time, …, neurons] on tokens [time, …, d_in]."""
        z = self.inputs(tokens)
        return decayed_sums(self.decay, (z @ self.W_m.T) * (z @ self.W_x.T), axis=0)

    def moved(self, by: np.ndarray) -> "SeparableNetwork":
        """Return the network with its parameters changed; decays stay in [0, 1]."""
        size, free = self.W_m.size, int(self.free.sum())
        by_m, by_x, by_decay, by_side = np.split(by, np.cumsum([size, size, free]))
        decay, side = self.decay.copy(), self.W_side
        decay[self.free] = np.clip(decay[self.free] + by_decay, 0.0, 1.0)
        return replace(
            self,
            W_m=self.W_m + by_m.reshape(self.W_m.shape),
            W_x=self.W_x + by_x.reshape(self.W_x.shape),
            decay=decay,
            W_side=None if side is None else side + by_side.reshape(side.shape),
        )

    def balanced(self) -> "SeparableNetwork":
        """Return the same function with gates of size one; the linear part holds the scale."""
        sizes = [row_sizes(W) for W in (self.W_m, self.W_x)]
        W_m, W_x = self.W_m / sizes[0][:, None], self.W_x / sizes[1][:, None]
        scale, side = sizes[0] * sizes[1], self.W_side
        if side is not None:
            side_sizes = row_sizes(side)
            linear, side = self.linear * (scale * side_sizes), side / side_sizes[:, None]
        else:
            rows, columns = self.pairs
            linear = self.linear * (scale[rows] * scale[columns])
        return replace(self, W_m=W_m, W_x=W_x, linear=linear, W_side=side)

    def model(self) -> GatedRNN | SideGatedRNN:
        """Return the network; gate outputs of a gated RNN are the eigenvectors of its kernels."""
        inner = {"W_in_m": self.W_m, "W_in_x": self.W_x, "decay": self.decay}
        if self.W_side is not None:
            return SideGatedRNN(**inner, W_side=self.W_side, D=self.linear)
        D, W_m, W_x = eigen_gates(self.kernels)
        return GatedRNN(**inner, W_out_m=W_m, W_out_x=W_x, D=D)


def row_sizes(W: np.ndarray) -> np.ndarray:
    """Return the sizes of rows; 1 for a row of zeros."""
    sizes = np.linalg.norm(W, axis=1)
    return np.where(sizes > 0, sizes, 1.0)
