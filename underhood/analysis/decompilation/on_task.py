"""Decompiling on a task's own tokens, sampled instead of N(0, I).

A trained network is only asked for its task: x uniform, y = Wx and a query without y, or one-hot
pairs. What it does elsewhere no gradient has seen. So the attention is fitted to the network's
outputs on sequences of the task, at the tokens that count, and judged on fresh ones:

    Φ = E[f f'],  b = E[y f],    f_ec = A_e z_c,  A = Σ_{s≤t} λ^{t−s} v(z_s)    (`projection.py`)

with means over sampled sequences. Features that the task never shows get no weight. Shares come
with one standard error, from the spread over sequences.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from underhood.analysis.arguments import ReadableNetwork
from underhood.analysis.decompilation.fewest import FoundAttention, attention_of
from underhood.analysis.decompilation.heads import fit_any_ranks, with_low_ranks
from underhood.analysis.decompilation.heads_problem import HeadsProblem
from underhood.analysis.decompilation.nearest import (
    FORGETS,
    Projected,
    nearest_attention,
    square_root,
)
from underhood.analysis.decompilation.projection import attention_features
from underhood.analysis.forms.quadratic import QuadraticForm, decay_groups, products, quadratic_form
from underhood.common.errors import BadInput, kind_of
from underhood.common.linear_algebra import decayed_sums
from underhood.tasks import Task

# Sequences to fit and as many to judge, drawn in chunks.
TASK_SEQUENCES, CHUNK_SEQUENCES = 16_384, 2_048
# A decay other than 1 is chosen if it leaves less than this share of what 1 leaves.
CLEARLY_BETTER = 0.25
# Decays of the network that are tried beside 1.
DECAYS_TRIED = 3


@dataclass(frozen=True)
class Share:
    """A share of the network's size on the task, with one standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class TaskAnswer:
    """The attention nearest to a network on a task.

    residual  share of the outputs that the attention misses, on fresh sequences
    any       share that no number of heads explains, at the decay of the attention
    """

    attention: FoundAttention
    heads: int
    residual: Share
    any: Share


def sampled_chunks(task: Task, seed: int) -> Iterator[np.ndarray]:
    """Yield chunks of sequences [many, time, d_in] in float64."""
    with jax.enable_x64(True):
        for key in jax.random.split(jax.random.key(seed), TASK_SEQUENCES // CHUNK_SEQUENCES):
            yield np.asarray(task.sample(key, CHUNK_SEQUENCES).inputs, float)


def read_tokens(task: Task, array: np.ndarray) -> np.ndarray:
    """Return the tokens that count of [many, time, ...]: [many, tokens, ...]."""
    return array[:, -1:] if task.reads_last else array


def task_features(task: Task, xs: np.ndarray, decay: float, chosen: np.ndarray) -> np.ndarray:
    """Return A_e z_c at the tokens that count [many, tokens, features]."""
    sums = read_tokens(task, decayed_sums(decay, products(xs)))
    last = read_tokens(task, xs)
    z = np.concatenate([last, np.ones((*last.shape[:-1], 1))], axis=-1)
    every = sums[..., :, None] * z[..., None, :]
    return every.reshape(*every.shape[:2], -1)[..., chosen]


def share_missed(form: QuadraticForm, nearest: QuadraticForm, task: Task) -> Share:
    """Return the share of a network's outputs that another function misses on fresh sequences."""
    missed, sizes = [], []
    for xs in sampled_chunks(task, seed=1):
        outputs = read_tokens(task, form(xs))
        apart = outputs - read_tokens(task, nearest(xs))
        missed.append(np.mean(apart**2, axis=(1, 2)))
        sizes.append(np.mean(outputs**2, axis=(1, 2)))
    return ratio_share(np.concatenate(missed), np.concatenate(sizes))


def ratio_share(missed: np.ndarray, sizes: np.ndarray) -> Share:
    """Return √(mean missed / mean sizes) and its standard error over sequences."""
    whole = float(np.mean(sizes))
    if whole == 0:
        return Share(0.0, 0.0)
    ratio = float(np.mean(missed)) / whole
    spread = float(np.std(missed - ratio * sizes)) / whole / len(missed) ** 0.5
    share = float(np.sqrt(ratio))
    return Share(share, spread / (2 * share) if share > 0 else 0.0)


def fit_tables(
    form: QuadraticForm, task: Task, decay: float, features: np.ndarray
) -> tuple[Projected, float]:
    """Return the network over the task's features, and the share of its variance they leave."""
    chosen = features.ravel()
    width, tokens, whole = int(chosen.sum()), 0, 0.0
    phi, right = np.zeros((width, width)), np.zeros((width, form.d_out))
    for xs in sampled_chunks(task, seed=0):
        f = task_features(task, xs, decay, chosen).reshape(-1, width)
        y = read_tokens(task, form(xs)).reshape(-1, form.d_out)
        phi, right = phi + f.T @ f, right + f.T @ y
        tokens, whole = tokens + len(y), whole + float(np.sum(y**2))
    phi, right, whole = phi / tokens, right / tokens, whole / tokens
    # Features that the task never shows, or shows twice, share their weight as evenly as they can.
    solved = np.linalg.pinv(phi, rcond=1e-10, hermitian=True) @ right
    tables = np.zeros((form.d_out, features.size))
    tables[:, chosen] = solved.T
    factors, decays = [square_root(phi, features)] * form.d_out, np.full(form.d_out, decay)
    # Without biases the last entry of z, the constant, is not read.
    size = features.shape[1] - int(not features[-1, -1])
    projected = Projected(tables.reshape(-1, *features.shape), factors, decays, size)
    return projected, 1 - float(np.sum(solved * right)) / max(whole, 1e-300)


def nearest_on_task(
    form: QuadraticForm, task: Task, *, biases: bool, max_heads: int, tolerance: float
) -> TaskAnswer:
    """Return the attention with the fewest heads that explains a network on a task."""
    features = attention_features(form.d_in, biases=biases)
    decays = [1.0, *strongest_decays(form)]
    fits = [fit_tables(form, task, decay, features) for decay in decays]
    best = int(np.argmin([left for _, left in fits]))
    projected, _ = fits[best if fits[best][1] < CLEARLY_BETTER * fits[0][1] else 0]
    every = share_missed(form, projected.form(form.d_in), task)
    attention: FoundAttention = nearest_attention(projected)
    residual = share_missed(form, quadratic_form(attention), task)
    answer = TaskAnswer(attention, 1, residual, every)
    for heads in range(2, max_heads + 1):
        if answer.residual.value <= tolerance or every.value > tolerance:
            break
        problem = HeadsProblem.of(projected, heads)
        fit = with_low_ranks(problem, fit_any_ranks(problem, tolerance))
        attention = attention_of(fit, projected, np.eye(form.d_out), form.d_in)
        residual = share_missed(form, quadratic_form(attention), task)
        if residual.value < answer.residual.value:
            answer = TaskAnswer(attention, heads, residual, every)
    return answer


def strongest_decays(form: QuadraticForm) -> list[float]:
    """Return the network's decays with the most weight, without those near 0 and 1."""
    values, groups = decay_groups(form.decay, equal=1e-2)
    strength = np.sqrt(np.sum(form.kernels**2, axis=(0, 1))) * np.linalg.norm(form.reads, axis=1)
    weights = [float(np.sum(strength[group])) for group in groups]
    order = [values[place] for place in np.argsort(weights)[::-1]]
    return [value for value in order if FORGETS < value < 0.99][:DECAYS_TRIED]


def check_same_sizes(network: ReadableNetwork, task: object, *, about: str) -> None:
    """Refuse a task of other sizes than the network's."""
    if not isinstance(task, Task):
        raise BadInput(f"{about}: the task is {kind_of(task)}; give one of uh.tasks.")
    if (network.d_in, network.d_out) != (task.d_in, task.d_out):
        raise BadInput(
            f"{about}: the network maps {network.d_in} numbers to {network.d_out}, the task "
            f"{task.d_in} to {task.d_out}."
        )
