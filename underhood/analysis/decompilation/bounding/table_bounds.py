"""The certificate's bound for functions that are linear in moments and in the current token.

The current token is in a cubic polynomial, and token t − k meets it through C_k = Σ λ^k T_λ
(`tables.py`), so that for |x_s| ≤ r

    |y(t)| ≤ one(C_0) + Σ_{1≤k<t} two(C_k).

The norms of all degrees do not depend on r. Where one decay is left, or all decays are 0 or 1, they
do not depend on k either, up to the factor λ^k. They are computed once.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from underhood.analysis.decompilation.bounding.bounds import (
    entry_scales,
    smallest_norms,
)
from underhood.analysis.decompilation.bounding.lags import FINE, lag_nodes
from underhood.analysis.forms.quadratic import entry_degrees
from underhood.analysis.forms.tables import TableForm
from underhood.common.linear_algebra import symmetric_reads, upper


@dataclass(frozen=True)
class TableBound:
    """Bounds on a function given by tables, on tokens of norm `radius` or less."""

    form: TableForm

    def __call__(self, radius: float, time: int) -> float:
        """Return a bound for sequences of up to `time` tokens."""
        total = float(self.instant @ radius ** np.arange(4.0))
        # Moments of decay 0 hold no past token.
        decays = self.memory.decay
        if time == 1 or not len(decays):
            return total
        lags = lag_nodes(decays, time, FINE)
        powers = radius ** (np.arange(3.0)[:, None] + np.arange(2.0))
        weights, fading = lags.weights[1:], lags.fading[1:]
        if len(decays) == 1:
            total += float(weights @ fading[:, 0] * np.sum(self.undecayed * powers))
        else:
            norms = (token_norms(self.memory, row) for row in fading)
            total += sum(
                float(weight * np.sum(norm * powers))
                for weight, norm in zip(weights, norms, strict=True)
            )
        return total + self.chords(lags.remainder, radius)

    @cached_property
    def memory(self) -> TableForm:
        """The parts that remember."""
        return self.form.keep(lambda decay: decay > 0)

    @cached_property
    def undecayed(self) -> np.ndarray:
        """The norms of C_k without any decay."""
        return token_norms(self.memory, np.ones(len(self.memory.parts)))

    @cached_property
    def instant(self) -> np.ndarray:
        """Norms of the cubic polynomial of the current token, for the degrees 0, 1, 2 and 3."""
        d, d_out = self.form.d_in, self.form.d_out
        P3, P2 = np.zeros((d_out, d, d, d)), np.zeros((d_out, d, d))
        P1, P0 = np.zeros((d_out, d)), np.zeros((d_out, 1))
        for o in range(d_out):
            cubic = symmetric_reads(np.sum(self.form.of_output(o)[1], axis=0).T, d + 1)
            xxx = cubic[:d, :d, :d]
            P3[o] = (xxx + xxx.transpose(1, 2, 0) + xxx.transpose(2, 0, 1)) / 3
            P2[o] = cubic[d, :d, :d] + cubic[:d, :d, d] + cubic[:d, :d, d].T
            P1[o], P0[o] = 2 * cubic[d, :d, d] + cubic[:d, d, d], cubic[d, d, d]
        # A symmetric matrix has the norm of its upper entries, those off the diagonal times √2.
        rows, columns = upper(d)
        folded = P3[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))
        layouts = (
            (P0,),
            (P1,),
            (P2.reshape(d_out, d * d), P2.reshape(d_out * d, d)),
            (P3.reshape(d_out, d**3), folded.reshape(d_out * d, len(rows))),
        )
        return np.array([float(smallest_norms(some)) for some in layouts])

    def chords(self, remainder: np.ndarray, radius: float) -> float:
        """Bound what chords instead of powers change in the moments: Σ remainder_λ · |A_e z_c|."""
        if not np.any(remainder):
            return 0.0
        rows, columns = upper(self.form.d_in + 1)
        sizes = np.where(columns < self.form.d_in, radius, 1.0)
        # |z_k z_l| is at most r²/2 for k ≠ l, and r², r or 1 otherwise.
        halved = np.where((rows != columns) & (columns < self.form.d_in), 0.5, 1.0)
        entries = halved * sizes * np.where(rows < self.form.d_in, radius, 1.0)
        now = np.append(np.full(self.form.d_in, radius), 1.0)
        strength = np.zeros((len(self.memory.parts), self.form.d_out))
        for place, part in enumerate(self.memory.parts):
            strength[place, part.outputs] = entries @ np.abs(part.table) @ now
        return float(np.linalg.norm(remainder @ strength))


def token_norms(form: TableForm, weights: np.ndarray) -> np.ndarray:
    """Return norms [3, 2] of Σ weight · T_λ, by the degrees in the past and in the current token.

    They bound the parts of these degrees on tokens of norm 1.
    """
    d, degrees = form.d_in, entry_degrees(form.d_in)
    total = np.zeros((form.d_out, len(degrees), d + 1))
    for weight, part in zip(weights, form.parts, strict=True):
        total[part.outputs] += weight * part.table
    total *= entry_scales(d)[:, None]
    norms = np.zeros((3, 2))
    for i, j in np.ndindex(3, 2):
        block = total[:, degrees == i][:, :, :d] if j else total[:, degrees == i][:, :, d:]
        o, a, b = block.shape
        layouts = (
            block.reshape(o, a * b),
            block.reshape(o * a, b),
            block.swapaxes(0, 1).reshape(a, o * b),
        )
        norms[i, j] = float(smallest_norms(layouts))
    return norms
