"""From a gated RNN back to the attention that it computes, with a certificate.

`decompile` finds the attention nearest to the network on tokens x ~ N(0, I) (`nearest.py`). What is
left over is a function of its own, known exactly, whose size is the residual and whose largest
value on bounded sequences the certificate bounds.

W_V and M = W_KᵀW_Q are determined up to one scale: |W_V| = |M| (Frobenius), and the largest entry
of W_V is positive. M is split by its singular values, W_K = √Σ Uᵀ and W_Q = √Σ Vᵀ. If both have
rank 1, W_V = u vᵀ and M = k qᵀ, then v and k may change places; v is the one whose largest entry
comes first.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.analysis.arguments import check_gated, check_share, check_time
from underhood.analysis.decompilation.certificate import Certificate, certify
from underhood.analysis.decompilation.nearest import Nearest, nearest_attention
from underhood.analysis.decompilation.rounding import rounding_bound
from underhood.analysis.forms.norms import TIME, size
from underhood.analysis.forms.quadratic import QuadraticForm, quadratic_form
from underhood.analysis.reading.neuron_roles import roles
from underhood.common.errors import BadInput
from underhood.common.threads import one_thread
from underhood.constructions import Role
from underhood.layers import LinearAttention, SideGatedRNN

# Biases are part of the answer where they leave less than this share of what is left without.
BIASES_PAY = 0.1


@dataclass(frozen=True)
class Decompilation:
    """`attention` is the nearest one there is, `residual` the share of the function it misses.

    `is_attention` says whether the residual is at most `tolerance`; `reason` says why, or why not.
    `neurons` has the role of every neuron.
    """

    attention: LinearAttention
    residual: float
    certificate: Certificate
    tolerance: float
    neurons: tuple[Role, ...]

    @property
    def is_attention(self) -> bool:
        return self.residual <= self.tolerance

    @property
    def reason(self) -> str:
        """One sentence."""
        if self.certificate.size == 0:
            return "the network computes zero, and so does an attention of zeros"
        if self.is_attention:
            return (
                f"attention: it explains all but {self.residual:.2g} of the function "
                f"(tolerance {self.tolerance:.2g})"
            )
        return f"no attention here: {self.certificate.what_is_left()}"

    def __str__(self) -> str:
        return f"{self.reason}\n{self.certificate}"


@one_thread
def decompile(
    rnn: Any, *, tolerance: float = 1e-3, biases: bool | None = None, time: int = TIME
) -> Decompilation:
    """The attention that a GatedRNN or SideGatedRNN computes, and how far the two can differ.

    biases: whether the attention may have biases; None: only where they explain ten times as
    much. time: the length of the sequences on which the residual is stated; the certificate's bound
    takes any length.
    """
    check_gated(rnn, "decompile")
    check_share(tolerance, "decompile")
    check_time(time, "decompile", least=2)
    if biases not in (None, True, False):
        raise BadInput(f"decompile: biases is {biases!r}; give None, True or False.")
    form = quadratic_form(rnn)
    whole = size(form, time)
    # Neurons that cancel leave rounding behind, which is no function.
    if whole <= rounding_bound(rnn, np.sqrt(rnn.d_in), time):
        whole = 0.0
    found = [
        candidate(form, whole, with_biases, time)
        for with_biases in ((False, True) if biases is None else (biases,))
        # A side-gated RNN has no constant, so its attention has no biases.
        if not (with_biases and biases is None and isinstance(rnn, SideGatedRNN))
    ]
    plain, best = found[0], found[-1]
    attention, residual = best if best[1] < BIASES_PAY * plain[1] else plain
    certificate = certify(form, attention, whole, time, rnn)
    keeps = (1.0,) if attention.decay is None else tuple(np.unique(attention.decay).tolist())
    return Decompilation(attention, residual, certificate, tolerance, roles(rnn, keeps))


def candidate(
    form: QuadraticForm, whole: float, biases: bool, time: int
) -> tuple[LinearAttention, float]:
    """The nearest attention with or without biases, and the share that it misses."""
    if whole == 0:
        zeros = np.zeros((form.d_out, form.d_in))
        return LinearAttention(zeros, np.zeros((0, form.d_in)), np.zeros((0, form.d_in))), 0.0
    attention = canonical(nearest_attention(form, biases=biases, time=time), biases)
    return attention, size(form - quadratic_form(attention), time) / whole


def canonical(found: Nearest, biases: bool) -> LinearAttention:
    """The documented choice among all weights of one function."""
    V, M = swapped(found.V, found.M)
    norms = np.linalg.norm(V), np.linalg.norm(M)
    if 0 in norms:
        V, M = np.zeros_like(V), np.zeros_like(M)
    else:
        scale = np.sqrt(norms[1] / norms[0])
        sign = np.sign(V.ravel()[np.argmax(np.abs(V))])
        V, M = V * scale * sign, M / scale * sign
    left, values, right = np.linalg.svd(M)
    rank = int(np.sum(values > max(M.shape) * np.finfo(float).eps * values[0])) if M.size else 0
    K = np.sqrt(values[:rank])[:, None] * left[:, :rank].T
    Q = np.sqrt(values[:rank])[:, None] * right[:rank]
    extra = {"b_V": V[:, -1], "b_K": K[:, -1], "b_Q": Q[:, -1]} if biases else {}
    decay = None if np.all(found.decay == 1) else found.decay
    return LinearAttention(V[:, :-1], K[:, :-1], Q[:, :-1], decay=decay, **extra)


def swapped(V: np.ndarray, M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of two splits of a rank-1 pair the one whose value vector has its largest entry first."""
    u, s, vt = np.linalg.svd(V, full_matrices=False)
    k, r, qt = np.linalg.svd(M, full_matrices=False)
    if len(s) == 0 or len(r) == 0 or s[0] == 0 or r[0] == 0:
        return V, M
    if np.any(s[1:] > 1e-9 * s[0]) or np.any(r[1:] > 1e-9 * r[0]):
        return V, M
    value, key = vt[0], k[:, 0]
    if np.argmax(np.abs(value)) <= np.argmax(np.abs(key)):
        return V, M
    return s[0] * np.outer(u[:, 0], key), r[0] * np.outer(value, qt[0])
