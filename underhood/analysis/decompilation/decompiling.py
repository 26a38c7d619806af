"""From a gated RNN back to the attention that it computes, with a certificate.

`decompile` finds the attention nearest to the network on tokens x ~ N(0, I), with the fewest heads
(`nearest.py`, `fewest.py`). The difference of the two is a function too, known up to rounding. Its
size is the residual, and the certificate bounds its largest value on bounded sequences. The verdict
is one of three (`verdict.py`).
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.arguments import ReadableNetwork, check_gated
from underhood.analysis.decompilation.bounding.certificate import (
    Certificate,
    certify,
    unknown_certificate,
)
from underhood.analysis.decompilation.bounding.horizons import LONGEST_HORIZON
from underhood.analysis.decompilation.fewest import (
    FoundAttention,
    MeasuredAttention,
    exact_head,
    measure,
    several_heads,
    single_head,
)
from underhood.analysis.decompilation.function import (
    NetworkFunction,
    lost_in_float64,
    network_function,
)
from underhood.analysis.decompilation.gradient_step import GradientStep, read_gradient_step
from underhood.analysis.decompilation.nearest import METRIC_INPUTS, Projected, project_outputs
from underhood.analysis.decompilation.on_task import check_same_sizes, nearest_on_task
from underhood.analysis.decompilation.verdict import (
    ATTENTION,
    NOT_ATTENTION,
    UNDECIDED,
    beyond_float64,
    judge,
    judge_on_task,
    not_runnable,
)
from underhood.analysis.forms.diagonal import NotDiagonal
from underhood.analysis.forms.norms import TIME
from underhood.analysis.forms.scaling import scaled_attention
from underhood.analysis.reading.neuron_roles import decay_roles, memory_decays
from underhood.common.errors import BadInput, refuse
from underhood.common.numbers import whole_problems
from underhood.common.threads import one_thread
from underhood.constructions import Role
from underhood.layers import DenseGatedRNN, LinearAttention, MultiHead, SideGatedRNN
from underhood.tasks import InContextRegression, Task

# Biases are part of the answer where they leave less than this share of what is left without.
BIASES_PAY = 0.1
MOST_HEADS = 4
# Trained networks follow their task to about a hundredth; Table 2 is judged within 2 % as well.
TOLERANCE, TASK_TOLERANCE = 1e-3, 0.02


@dataclass(frozen=True)
class Decompilation:
    """The attention nearest to a network, and whether the network is that attention.

    attention    one head as a LinearAttention, several as a MultiHead
    certificate  residual, shares of the function, and a bound on the difference
    tolerance    the largest residual of a network that counts as attention
    neurons      the role of every neuron
    verdict      "attention", "not attention" or "undecided"
    reason       the verdict in one sentence
    task_residual  the residual on the task's tokens, if a task was given
    """

    attention: FoundAttention
    certificate: Certificate
    tolerance: float
    neurons: tuple[Role, ...]
    verdict: str
    reason: str
    task_residual: float | None = None

    @property
    def residual(self) -> float:
        """The root mean square of the difference over that of the function; on a task, of outputs.

        The certificate's residual is always that on normal tokens.
        """
        return self.certificate.residual if self.task_residual is None else self.task_residual

    @property
    def is_attention(self) -> bool:
        """Whether the verdict is "attention"."""
        return self.verdict == ATTENTION

    @property
    def heads(self) -> tuple[LinearAttention, ...]:
        """The heads; none if the attention is zero."""
        if isinstance(self.attention, MultiHead):
            return self.attention.heads
        return (self.attention,) if self.attention.neurons else ()

    def horizon(self, radius: float = 2.0) -> int:
        """Return the longest length for which the certificate keeps the promise.

        Up to that many tokens of norm `radius` or less, network and attention differ by at most
        `tolerance` times the attention's largest output. 0: no length is certain.
        """
        return self.certificate.horizon(radius, self.tolerance)

    def promise(self, radius: float = 2.0) -> str:
        """Return the horizon as a sentence."""
        length = self.horizon(radius)
        if not self.is_attention or not length:
            return f"the certificate promises no length at tokens of norm ≤ {radius:g}"
        # Longer lengths are not tried.
        least = "at least " if length == LONGEST_HORIZON else ""
        return (
            f"attention up to {least}{length:,} tokens of norm ≤ {radius:g}: in float64 the "
            f"outputs differ by at most {self.tolerance:g} of the attention's largest"
        )

    def gradient_step(self, task: InContextRegression) -> GradientStep:
        """Read the step of gradient descent out of a network that was trained on regression."""
        return read_gradient_step(self.certificate.network, task)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdict and the matrices of every head."""
        from underhood.analysis.decompilation.description import decompilation_html

        return decompilation_html(self)

    def __str__(self) -> str:
        return f"{self.reason}\n{self.promise()}\n{self.certificate}"


@one_thread
def decompile(
    rnn: ReadableNetwork,
    *,
    tolerance: float | None = None,
    biases: bool | None = None,
    time: int = TIME,
    max_heads: int = MOST_HEADS,
    task: Task | None = None,
) -> Decompilation:
    """Find the attention that a network computes, and bound how far the two can differ.

    tolerance  the largest residual of a network that counts as attention; unless given, 0.001, and
               0.02 on a task
    biases     whether the attention may have biases; None: only if the residual is then less than
               a tenth of the residual without them
    time       sequence length at which the residual is stated; the bound takes any length
    max_heads  a network that needs more heads is not attention
    task       measure on this task's sequences, at the tokens that count, instead of on N(0, I)
    """
    if tolerance is None:
        tolerance = TOLERANCE if task is None else TASK_TOLERANCE
    check_gated(rnn, "decompile", tolerance=tolerance, time=time, least=2, dense=True)
    if biases not in (None, True, False):
        raise BadInput(f"decompile: biases is {biases!r}; give None, True or False.")
    refuse(whole_problems(max_heads=max_heads), about="decompile")
    if task is not None:
        check_same_sizes(rnn, task, about="decompile")
    try:
        function = network_function(rnn, time)
    except NotDiagonal as problem:
        reason = f"undecided: {problem} A matrix with decays would decide."
        zeros = zero_attention(rnn.d_in, rnn.d_out)
        unknown = unknown_certificate(rnn, zeros, time)
        return Decompilation(zeros, unknown, tolerance, (), UNDECIDED, reason)
    if task is None or function.is_zero or function.is_rounding:
        result, projected = nearest(function, rnn, biases, max_heads, tolerance)
        # A side-gated RNN has no constant, and so no biases unless they are asked for.
        allowed = not isinstance(rnn, SideGatedRNN) if biases is None else biases
        judgement = judge(function, result, projected, max_heads, tolerance, biases=allowed)
    else:
        fit = nearest_on_task(
            function.form, task, biases=bool(biases), max_heads=max_heads, tolerance=tolerance
        )
        result = measure(function, fit.attention, fit.heads)
        judgement = judge_on_task(fit, task, max_heads, tolerance)
    if judgement.verdict == ATTENTION and not function.is_zero:
        lost = lost_in_float64(rnn, function)
        judgement = judgement if lost is None else not_runnable(judgement, lost)
    attention = result.attention
    try:
        attention = scaled_attention(attention, function.exponent)
    except OverflowError:
        judgement = beyond_float64(function)
    left = result.left / function.size if function.size and not function.is_zero else 0.0
    certificate = certify(rnn, attention, function=function, scaled=result.attention, residual=left)
    reason = judgement.reason
    if judgement.verdict == NOT_ATTENTION and task is None:
        reason = f"not attention: {certificate.what_is_left()}; {reason}"
    # The neurons of a dense recurrence are its eigenvectors.
    decay = function.given.decay if isinstance(rnn, DenseGatedRNN) else np.asarray(rnn.decay, float)
    neurons = decay_roles(decay, memory_decays(attention))
    on_task = None if task is None else judgement.residual
    verdict = judgement.verdict
    return Decompilation(attention, certificate, tolerance, neurons, verdict, reason, on_task)


def nearest(
    function: NetworkFunction,
    rnn: ReadableNetwork,
    biases: bool | None,
    max_heads: int,
    tolerance: float,
) -> tuple[MeasuredAttention, Projected | None]:
    """Return the attention nearest to a function, and the tables it was found in."""
    given = function.given
    if function.size == 0:
        return measure(function, zero_attention(given.d_in, given.d_out), 0), None
    # A side-gated RNN has no constant, so its attention has no biases unless they are asked for.
    choices = (False,) if isinstance(rnn, SideGatedRNN) else (False, True)
    choices = choices if biases is None else (biases,)
    for with_biases in choices:
        exact = exact_head(function, biases=with_biases)
        if exact is not None:
            return exact, None
    form = given if given.d_in > METRIC_INPUTS else function.form
    tables = [
        project_outputs(form, biases=with_biases, time=function.time) for with_biases in choices
    ]
    results = [(single_head(function, projected), projected) for projected in tables]
    if results[-1][0].left < BIASES_PAY * results[0][0].left:
        results = results[::-1]
    allowed = tolerance * function.size
    for place, (first, projected) in enumerate(results):
        if results[0][0].left > allowed:
            more = several_heads(function, first, projected, max_heads, tolerance)
            results[place] = (more, projected)
            if more.left <= allowed:
                return results[place]
    return results[0]


def zero_attention(d_in: int, d_out: int) -> LinearAttention:
    """Return the attention without keys, which computes zero."""
    return LinearAttention(np.zeros((d_out, d_in)), *np.zeros((2, 0, d_in)))
