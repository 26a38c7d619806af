"""How much of a layer is linear attention, measured from outside on fresh sequences.

The layer is only called (`layer_arrays.py`); its weights are not read. Outputs are compared in
pairs of sequences with the same current token and different pasts (`pairs.py`), so that only memory
counts. The nearest attention is fitted to the differences Δy of one sample (`fitting.py`), and all
numbers are taken on a second sample, with errors by the jackknife (`jackknife.py`). In float64.

    form   1 − Σ|Δy − Δŷ|²/Σ|Δy|²        of what the past decides, the share that is attention
    whole  1 − Σ|y − ŷ|²/Σ|y − mean_t|²  of the output at fixed t, the share that it explains
    score  the smaller of the two, and 0 without memory

The page docs/scores.md says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.analysis.scoring import layer_arrays
from underhood.analysis.scoring.baselines import baseline_layers, stored_baselines
from underhood.analysis.scoring.degrees import degree_spectrum
from underhood.analysis.scoring.judging import judge_nearest, memory_share, spread_at_fixed_time
from underhood.analysis.scoring.pairs import draw_sample
from underhood.analysis.scoring.report import score_report
from underhood.analysis.scoring.states import StateMeasures, measure_states
from underhood.common.errors import BadInput
from underhood.common.threads import one_thread
from underhood.layers import LinearAttention
from underhood.tasks import Task

# A past that moves outputs by less than a millionth of their size is rounding.
NO_MEMORY = 1e-12


@dataclass(frozen=True)
class ScoreNumbers:
    """The numbers that a score and its errors have under the same names."""

    score: float
    form: float
    whole: float
    memory: float
    score_with_biases: float
    state_kv: float | None
    state_q: float | None
    state_dimension: float | None
    state_rank: int | None
    degrees: tuple[float, ...]
    missed_by_degree_5: float


@dataclass(frozen=True)
class ScoreErrors(ScoreNumbers):
    """Standard errors of the fields of an `AttentionScore`, under the same names.

    They are jackknife errors over the judged sequences. That of `decay` is over the fitted ones.
    That of `state_rank` is how far the ranks on the two halves of the sequences differ.
    """

    decay: float


@dataclass(frozen=True)
class AttentionScore(ScoreNumbers):
    """The attention nearest to a layer, and what the layer has in common with it.

    score               the smaller of `form` and `whole`; 0 for a layer without memory
    memory              share of the outputs' variance at fixed t that the past decides
    form                R² of `attention` on what the past decides
    whole               R² of `attention` on the outputs at fixed t
    score_with_biases   the score of `attention_with_biases`
    decay               λ of `attention`, the same for all outputs
    state_kv, state_q   R² of linear maps from the state after token t to the key-values
                        W_V S_t W_Kᵀ of `attention`, and to its queries W_Q x_t
    state_dimension     participation ratio (Σσ²)²/Σσ⁴ of the centred states
    state_rank          singular values of the centred states above 1e-6 of the largest
    degrees[k]          |y_k|²/Σ_j|y_j|² for k = 0…5, where y(r·x) = Σ_k r^k y_k on scaled inputs
    missed_by_degree_5  share of |y(r·x)|² that no polynomial of degree 5 in r explains
    errors              standard errors, under the same names
    baselines           scores of known layers, to compare with
    notes               what else to know, one sentence each

    Fields about the state are None for a layer without `step` and `initial_state`.
    """

    attention: LinearAttention
    attention_with_biases: LinearAttention
    errors: ScoreErrors
    baselines: Mapping[str, float]
    notes: tuple[str, ...]

    @property
    def decay(self) -> float:
        """λ of `attention`, the same for all outputs."""
        return float(self.attention.decays[0])

    @property
    def beyond_degrees(self) -> float:
        """The old name of `missed_by_degree_5`."""
        return self.missed_by_degree_5

    def __str__(self) -> str:
        return score_report(self)


@one_thread
def attention_score(
    layer: Any,  # Any: an AnyLayer, or a module of another framework
    *,
    key: PRNGKeyArray,
    task: Task | None = None,
    time: int | None = None,
    sequences: int | None = None,
    d_in: int | None = None,
    baselines: bool = False,
) -> AttentionScore:
    """Fit linear attention to what any layer [time, d_in] → [time, d_out] remembers, and judge it.

    layer      any layer, any callable, or a torch module that `from_torch` reads
    task       draw this task's tokens, and judge where it reads outputs; None: N(0, I) tokens
    time       length of the sequences; the task's, or 32
    sequences  how many; half are fitted, half are judged; None: 256, or more if 4,096 pairs or the
               fit need more
    d_in       numbers per token, for a layer without a field `d_in`
    baselines  score the known layers on the same kind of tokens too, instead of the stored scores
    """
    if not isinstance(baselines, bool):
        raise BadInput(f"attention_score: baselines is {baselines!r}; give True or False.")
    layer = layer_arrays.from_any_framework(layer)
    plan = layer_arrays.make_plan(
        layer, key=key, time=time, sequences=sequences, d_in=d_in, task=task
    )
    with jax.enable_x64(True):
        layer = layer_arrays.promoted(layer)
        layer_arrays.check_layer(layer, plan)
        fitted, judged = (draw_sample(layer, part, plan) for part in jax.random.split(key))
        degrees = degree_spectrum(layer, judged.xs, plan.counted)
        streams = layer_arrays.streams(layer)
        hs = tuple(
            layer_arrays.read_states(layer, sample.xs, sample.ys)
            for sample in (fitted, judged)
            if streams
        )
    size = float(max(np.max(np.abs(sample.ys), initial=0.0) for sample in (fitted, judged))) or 1.0
    fitted, judged = fitted.divided(size), judged.divided(size)
    constant = not np.any(spread_at_fixed_time(judged, judged.outputs) > 1e-24)
    forgets = bool(memory_share(judged) <= NO_MEMORY)
    plain, biased = (
        judge_nearest(fitted, judged, size, biases=biases, nothing=constant or forgets)
        for biases in (False, True)
    )
    states = state_errors = StateMeasures()
    if streams:
        xs = (fitted.xs, judged.xs)
        states, state_errors = measure_states((hs[0], hs[1]), xs, plan.counted, plain.attention)
    known = stored_baselines()
    if baselines:
        again = partial(
            attention_score, key=key, task=task, time=plan.time, sequences=plan.sequences
        )
        sizes = {"d_in": plan.d_in, "d_out": judged.ys.shape[2]}
        others = baseline_layers(layer, **sizes, key=jax.random.fold_in(key, 1))
        known = {name: again(other, d_in=plan.d_in).score for name, other in others.items()}
    _, form, whole, _ = plain.values
    notes = (
        (constant, "At every time the output is the same for all inputs."),
        (forgets and not constant, "The past does not change the output: the layer has no memory."),
        (whole < form - 0.1, "The memory is nearer to attention than the whole output is."),
        (not streams, "The layer has no step and initial_state, so its state was not read."),
        (degrees.cancel, "Parts of different degree cancel: the outputs are no low polynomial."),
    )
    numbers = score_numbers(plain.values, biased.values, states, degrees.shares, degrees.missed)
    errors = score_numbers(
        plain.errors, biased.errors, state_errors, degrees.share_errors, degrees.missed_error
    )
    return AttentionScore(
        **vars(numbers),
        attention=plain.attention,
        attention_with_biases=biased.attention,
        errors=ScoreErrors(**vars(errors), decay=plain.decay_error),
        baselines=known,
        notes=tuple(note for holds, note in notes if holds),
    )


def score_numbers(
    plain: tuple[float, ...],
    biased: tuple[float, ...],
    states: StateMeasures,
    degrees: tuple[float, ...],
    missed: float,
) -> ScoreNumbers:
    """Return the numbers; `plain` and `biased` are score, form, whole and memory of a fit each."""
    score, form, whole, memory = plain
    of_state = (states.kv, states.q, states.dimension, states.rank)
    return ScoreNumbers(score, form, whole, memory, biased[0], *of_state, degrees, missed)
