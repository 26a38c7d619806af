"""A gated RNN as an exact polynomial of decayed second moments.

    z = [x; 1]    S_λ(t) = Σ_{s≤t} λ^{t−s} z_s z_sᵀ    so that S_0 = z_t z_tᵀ is the current token

A neuron holds a linear function of the moment with the neuron's decay, and an output is a quadratic
form of the neurons (`quadratic.py`). Neurons of equal decay add up, so

    y_o = Σ_{a≤b} ⟨C_ab[o], s_a ⊗ s_b⟩,    s = the entries of S on and above its diagonal,

one table of coefficients per pair of decays. The tables describe the network on all sequences. They
do not change when neurons are permuted, rescaled or split, or when dead neurons are added. Moments
of different decays are independent functions. So, with C_aa symmetric, one freedom is left:
products of entries of S_0 can be written in several ways (z_i z_j · z_k z_l = z_i z_k · z_j z_l).
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from underhood.analysis.forms.quadratic import ExactLayer, decay_groups, products, quadratic_form


@dataclass(frozen=True)
class MomentForm:
    """Coefficients [d_out, entries, entries] for pairs (a, b), a ≤ b, of places in `decays`."""

    d_in: int
    d_out: int
    decays: tuple[float, ...]
    terms: dict[tuple[int, int], np.ndarray]

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        """Return the outputs on one sequence [time, d_in], token by token."""
        written = products(xs)
        moments = np.zeros((len(self.decays), written.shape[1]))
        outputs = np.zeros((len(written), self.d_out))
        for t, now in enumerate(written):
            moments = np.array(self.decays)[:, None] * moments + now
            for (a, b), table in self.terms.items():
                outputs[t] += np.einsum("oij,i,j->o", table, moments[a], moments[b])
        return outputs


def moment_form(layer: ExactLayer) -> MomentForm:
    """Return the exact function of a gated RNN, a side-gated RNN or attention."""
    form = quadratic_form(layer)
    decays, groups = decay_groups(form.decay)
    terms = {
        (a, b): (1 if a == b else 2) * form.table(first, second)
        for (a, first), (b, second) in combinations_with_replacement(enumerate(groups), 2)
    }
    return MomentForm(form.d_in, form.d_out, decays, terms)
