"""From a gated RNN back to the attention that it computes, with a certificate.

`decompile` finds the attention nearest to the network on tokens x ~ N(0, I) (`nearest.py`). The
difference of the two is a function too, known exactly. Its size is the residual, and the
certificate bounds its largest value on bounded sequences.
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.arguments import GatedNetwork, check_gated
from underhood.analysis.decompilation.certificate import Certificate, certify
from underhood.analysis.decompilation.nearest import nearest_attention
from underhood.analysis.decompilation.rounding import rounding_bound
from underhood.analysis.forms.norms import TIME, relative_change, size
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.reading.neuron_roles import memory_decays, roles
from underhood.common.errors import BadInput
from underhood.common.threads import one_thread
from underhood.constructions import Role
from underhood.layers import LinearAttention, SideGatedRNN

# Biases are part of the answer where they leave less than this share of what is left without.
BIASES_PAY = 0.1


@dataclass(frozen=True)
class Decompilation:
    """The attention nearest to a network; `neurons` has the role of every neuron."""

    attention: LinearAttention
    certificate: Certificate
    tolerance: float
    neurons: tuple[Role, ...]

    @property
    def residual(self) -> float:
        """The share of the function that the attention misses, by size."""
        return self.certificate.residual

    @property
    def is_attention(self) -> bool:
        """Whether the residual is at most the tolerance."""
        return self.residual <= self.tolerance

    @property
    def reason(self) -> str:
        """Say in one sentence why the network is attention, or why not."""
        if self.certificate.size == 0:
            return "the network computes zero, and so does an attention of zeros"
        if self.is_attention:
            return (
                f"attention: it explains all but {self.residual:.2g} of the function "
                f"(tolerance {self.tolerance:.2g})"
            )
        return f"not attention: {self.certificate.what_is_left()}"

    def __str__(self) -> str:
        return f"{self.reason}\n{self.certificate}"


@one_thread
def decompile(
    rnn: GatedNetwork, *, tolerance: float = 1e-3, biases: bool | None = None, time: int = TIME
) -> Decompilation:
    """Find the attention that a network computes, and bound how far the two can differ.

    tolerance  the largest residual of a network that counts as attention
    biases     whether the attention may have biases; None: only where they explain ten times more
    time       sequence length at which the residual is stated; the bound takes any length
    """
    check_gated(rnn, "decompile", tolerance=tolerance, time=time, least=2)
    if biases not in (None, True, False):
        raise BadInput(f"decompile: biases is {biases!r}; give None, True or False.")
    form = quadratic_form(rnn)
    whole = size(form, time)
    # Neurons that cancel leave rounding behind, which is no function.
    if whole <= rounding_bound(rnn, np.sqrt(rnn.d_in), time):
        whole = 0.0
    # A side-gated RNN has no constant, so its attention has no biases unless they are asked for.
    choices = (False,) if isinstance(rnn, SideGatedRNN) else (False, True)
    results = []
    for with_biases in choices if biases is None else (biases,):
        attention = LinearAttention(np.zeros((form.d_out, form.d_in)), *np.zeros((2, 0, form.d_in)))
        if whole > 0:
            attention = nearest_attention(form, biases=with_biases, time=time)
        results.append((attention, relative_change(form, quadratic_form(attention), time, whole)))
    plain, best = results[0], results[-1]
    attention, residual = best if best[1] < BIASES_PAY * plain[1] else plain
    certificate = certify(rnn, attention, whole=whole, residual=residual, time=time)
    return Decompilation(attention, certificate, tolerance, roles(rnn, memory_decays(attention)))
