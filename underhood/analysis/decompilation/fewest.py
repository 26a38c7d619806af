"""The attention with the fewest heads, and why not fewer.

One head is tried first, with one decay per output (`nearest.py`). If it leaves too much, the tables
decide what else can be attention: heads are added one by one, from the number that every attention
needs (`exclusion.py`). Outputs that read memories of several decays get one row for each decay,
and W_O adds the rows up.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from underhood.analysis.decompilation.exclusion import missed_by_heads
from underhood.analysis.decompilation.function import NetworkFunction
from underhood.analysis.decompilation.heads import HeadFit, fit_any_ranks, with_low_ranks
from underhood.analysis.decompilation.heads_problem import HeadsProblem
from underhood.analysis.decompilation.nearest import (
    FORGETS,
    METRIC_INPUTS,
    Projected,
    canonical,
    nearest_attention,
    square_root,
)
from underhood.analysis.decompilation.projection import attention_features, exact_table, metric
from underhood.analysis.forms.absolute import absolute_form, rounding_of
from underhood.analysis.forms.attention_fit import attention_with
from underhood.analysis.forms.norms import size
from underhood.analysis.forms.quadratic import QuadraticForm, decay_groups
from underhood.analysis.forms.tables import TableForm
from underhood.layers import LinearAttention, MultiHead

# Heads are searched in tables of at most this many rows.
MOST_ROWS = 64
# A head that misses less than this share of the function is the function up to rounding; its table
# is fitted as far as float64 goes.
EXACT_SHARE, EXACT_GOAL = 1e-13, 1e-16

FoundAttention = LinearAttention | MultiHead


@dataclass(frozen=True)
class MeasuredAttention:
    """An attention, its distance to the network, and the least number of heads that will do.

    left    size of the difference
    noise   what rounding may add to it
    least   heads that every attention within the tolerance has
    unique  whether several heads are the only ones in general
    """

    attention: FoundAttention
    heads: int
    left: float
    noise: float
    least: int = 0
    unique: bool = False


def measure(
    function: NetworkFunction,
    attention: FoundAttention,
    heads: int,
    least: int = 0,
    unique: bool = False,
) -> MeasuredAttention:
    """Measure an attention against the network."""
    left = size(function.without(attention), function.time)
    absolute = absolute_form(attention)
    noise = function.noise + rounding_of(absolute, attention.neurons, function.time)
    return MeasuredAttention(attention, heads, left, noise, least, unique)


def single_head(function: NetworkFunction, projected: Projected) -> MeasuredAttention:
    """Return the nearest attention with one head and one decay per output."""
    return measure(function, nearest_attention(projected), 1)


def exact_head(function: NetworkFunction, *, biases: bool) -> MeasuredAttention | None:
    """Return the head that is the whole function up to rounding; None if there is none.

    Then the tables are those of an attention already, and nothing has to be projected.
    """
    form = function.given
    if not isinstance(form, TableForm) or np.any(form.decay <= FORGETS):
        return None
    features = attention_features(form.d_in, biases=biases)
    tables, decay = np.zeros((form.d_out, *features.shape)), np.full(form.d_out, np.nan)
    for part in form.parts:
        if np.any(part.table[:, ~features]) or not np.all(np.isnan(decay[part.outputs])):
            return None
        tables[part.outputs], decay[part.outputs] = part.table, part.decay
    decay[np.isnan(decay)] = 1.0
    projected = Projected(tables, [], decay, form.d_in + biases)
    result = measure(function, nearest_attention(projected, goal=EXACT_GOAL), 1)
    exact = result.left <= min(EXACT_SHARE * function.size, result.noise)
    return result if exact else None


def several_heads(
    function: NetworkFunction,
    first: MeasuredAttention,
    projected: Projected,
    most: int,
    tolerance: float,
) -> MeasuredAttention:
    """Return the attention with the fewest heads within the tolerance; otherwise the nearest.

    first      the answer with one head
    most       how many heads are tried
    tolerance  largest share that may be left
    """
    allowed, d_in = tolerance * function.size, function.given.d_in
    best = first
    if first.left <= allowed or d_in > METRIC_INPUTS:
        return best
    candidates = [
        (projected, np.eye(function.form.d_out)),
        *rows_by_decay(function, projected, most),
    ]
    for rows, mix in candidates:
        # What is left with as many heads as one likes.
        if size(function.form - mixed(rows.form(d_in), mix), function.time) > allowed:
            continue
        for heads, least, fit in added_heads(function, rows, most, allowed):
            attention = attention_of(fit, rows, mix, d_in)
            result = measure(function, attention, heads, least, fit.unique)
            best = min(best, result, key=lambda result: result.left)
            if best.left <= allowed:
                return best
    return best


def added_heads(
    function: NetworkFunction, rows: Projected, most: int, goal: float
) -> Iterator[tuple[int, int, HeadFit]]:
    """Yield fits with more and more heads, from the least number that the tables need."""
    least = int(np.sum(missed_by_heads(function.given, function.time) > goal + function.noise))
    for heads in range(max(least, 1), most + 1):
        problem = HeadsProblem.of(rows, heads)
        fit = fit_any_ranks(problem, goal / function.size)
        if fit.residual * function.size <= goal:
            fit = with_low_ranks(problem, fit)
        yield heads, least, fit


def rows_by_decay(
    function: NetworkFunction, projected: Projected, most: int
) -> list[tuple[Projected, np.ndarray]]:
    """Return one row per output and decay of memory, and how rows add up to outputs.

    Moments of different decays are independent functions, so the tables are exact. There are none
    if the network has too many decays, or if one head is asked for and there are several.
    """
    form = function.form.gathered()
    features = attention_features(form.d_in, biases=projected.size > form.d_in)
    decays = [value for value in decay_groups(form.decay)[0] if value > FORGETS]
    exact = {value: exact_table(form, value) * features for value in decays}
    tables = {value: table for value, table in exact.items() if np.any(table)}
    if not tables or len(tables) * form.d_out > (MOST_ROWS if most > 1 else form.d_out):
        return []
    rows, factors, decay, outputs = [], [], [], []
    for value, table in tables.items():
        factor = square_root(
            metric(form.d_in, value, function.time)[np.ix_(features.ravel(), features.ravel())],
            features,
        )
        for output in np.flatnonzero(np.any(table, axis=(1, 2))):
            rows.append(table[output])
            factors.append(factor)
            decay.append(value)
            outputs.append(output)
    mix = np.eye(form.d_out)[:, outputs]
    return [(Projected(np.array(rows), factors, np.array(decay), projected.size), mix)]


def mixed(form: QuadraticForm, mix: np.ndarray) -> QuadraticForm:
    """Return the outputs mix · y."""
    kernels = np.tensordot(mix, form.kernels, axes=1)
    return QuadraticForm(form.d_in, form.reads, form.decay, kernels)


def attention_of(fit: HeadFit, rows: Projected, mix: np.ndarray, d_in: int) -> FoundAttention:
    """Return heads of a fit as a layer, the largest first; W_O adds up rows and heads."""
    biases, unread = rows.size > d_in, (0, d_in + 1 - rows.size)
    all_V, all_M = np.pad(fit.V, ((0, 0), (0, 0), unread)), np.pad(fit.M, ((0, 0), unread, unread))
    sizes = np.linalg.norm(all_V, axis=(1, 2)) * np.linalg.norm(all_M, axis=(1, 2))
    if len(all_V) == 1 and np.array_equal(mix, np.eye(len(mix))):
        return canonical(all_V[0], all_M[0], rows.decay, biases)
    heads, outs = [], []
    for place in np.argsort(-sizes, kind="stable"):
        V, M = all_V[place], all_M[place]
        scale = np.sqrt(np.linalg.norm(M) / max(float(np.linalg.norm(V)), 1e-300))
        sign = np.sign(V.ravel()[np.argmax(np.abs(V))]) or 1.0
        V, M, out, decay = V * scale * sign, M / scale * sign, mix, rows.decay
        if len(np.unique(decay)) == 1:
            # Values of as many numbers as V has rank; W_O takes them to the outputs.
            left, values, right = np.linalg.svd(V, full_matrices=False)
            rank = max(int(np.sum(values > 1e-9 * values[0])), 1)
            V, out = values[:rank, None] * right[:rank], mix @ left[:, :rank]
            decay = np.full(rank, rows.decay[0])
        heads.append(attention_with(V, M, decay, d_in=d_in, biases=biases, noise=1e-12))
        outs.append(out)
    return MultiHead(heads, np.hstack(outs))
