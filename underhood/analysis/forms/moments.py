"""A gated RNN as an exact polynomial of decayed second moments.

    z = [x; 1]    S_λ(t) = Σ_{s≤t} λ^{t−s} z_s z_sᵀ    so that S_0 = z_t z_tᵀ is the current token

A neuron holds a linear function of the moment with its own decay, and an output is a quadratic
form of the neurons (`quadratic.py`). Neurons of equal decay add up, so

    y_o = Σ_{a≤b} ⟨C_ab[o], s_a ⊗ s_b⟩,    s = the entries of S on and above its diagonal,

one table of coefficients per pair of decays. It describes the network on all sequences, whatever
its neurons: permuted, rescaled, split or dead ones leave it as it is. Moments of different decays
are independent functions, so with C_aa symmetric the only other freedom is that products of
entries of S_0 can be written in several ways (z_i z_j · z_k z_l = z_i z_k · z_j z_l).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.analysis.forms.quadratic import equal_decays, products, quadratic_form


@dataclass(frozen=True)
class MomentForm:
    """Coefficients [d_out, entries, entries] for pairs (a, b), a ≤ b, of places in `decays`."""

    d_in: int
    d_out: int
    decays: tuple[float, ...]
    terms: dict[tuple[int, int], np.ndarray]

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        """The outputs on one sequence [time, d_in], token by token."""
        written = products(xs)
        moments = np.zeros((len(self.decays), written.shape[1]))
        outputs = np.zeros((len(written), self.d_out))
        for t, now in enumerate(written):
            moments = np.array(self.decays)[:, None] * moments + now
            for (a, b), table in self.terms.items():
                outputs[t] += np.einsum("oij,i,j->o", table, moments[a], moments[b])
        return outputs


def moment_form(layer: Any) -> MomentForm:
    """The exact function of a gated RNN, a side-gated RNN or attention."""
    form = quadratic_form(layer)
    decays, place = equal_decays(form.decay)
    members = [place == a for a in range(len(decays))]
    terms = {}
    for a, first in enumerate(members):
        for b in range(a, len(decays)):
            second = members[b]
            kernels = form.kernels[:, first][:, :, second]
            table = form.reads[first].T @ kernels @ form.reads[second]
            terms[a, b] = table if a == b else 2 * table
    return MomentForm(form.d_in, form.d_out, decays, terms)
