"""Can key-values be read from the memory neurons, and queries from the query neurons? (Table 1)

A score is 1 − R² of a linear regression with an intercept, averaged over its targets: 0 when the
neurons hold all of the target. Targets are the entries of Σ_s v_s k_sᵀ and of q_t for a given
attention, on fresh normal tokens.
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.arguments import GatedNetwork, check_gated
from underhood.analysis.forms.norms import TIME
from underhood.analysis.reading.influences import sample_states
from underhood.analysis.reading.neuron_roles import memory_decays
from underhood.common.decay import kinds
from underhood.common.errors import BadInput, with_article
from underhood.common.linear_algebra import decayed_sums
from underhood.layers import LinearAttention


@dataclass(frozen=True)
class Probes:
    """score_kv from memory neurons, score_q from query neurons; 1 where there are no neurons."""

    score_kv: float
    score_q: float
    memory: int
    query: int

    def __str__(self) -> str:
        return (
            f"1 − R²: key-values from {self.memory} memory neurons {self.score_kv:.3g}, "
            f"queries from {self.query} query neurons {self.score_q:.3g}"
        )


def probe(
    model: GatedNetwork, attention: LinearAttention, *, time: int = TIME, seed: int = 1
) -> Probes:
    """Measure how well the neurons of a gated RNN hold what an attention would.

    time  sequence length of the sampled tokens
    seed  of the sampled tokens
    """
    check_gated(model, "probe", time=time)
    if not isinstance(attention, LinearAttention):
        kind = type(attention).__name__
        raise BadInput(f"probe compares with a LinearAttention, not with {with_article(kind)}.")
    reads, wanted = model.d_in, attention.d_in
    if reads != wanted:
        raise BadInput(f"probe: the model reads {reads} numbers, the attention {wanted}.")
    xs, states = sample_states(model, time, seed)
    kind, Q = neuron_kinds(model, attention), attention.augmented().Q
    memory, query = states[:, kind == "memory"], states[:, kind == "query"]
    score_kv = one_minus_r2(memory, key_values(attention, xs, time))
    score_q = one_minus_r2(query, xs @ Q[:, :-1].T + Q[:, -1])
    return Probes(score_kv, score_q, memory.shape[1], query.shape[1])


def neuron_kinds(model: GatedNetwork, attention: LinearAttention) -> np.ndarray:
    return kinds(np.asarray(model.decay, float), memory_decays(attention))


def key_values(attention: LinearAttention, xs: np.ndarray, time: int) -> np.ndarray:
    """Return Σ_s v_s k_sᵀ after every token, flat; xs [tokens, d] in sequences."""
    V, K, _ = attention.augmented()
    values, keys = (xs @ W[:, :-1].T + W[:, -1] for W in (V, K))
    written = np.einsum("ti,tj->tij", values, keys)
    written = written.reshape(-1, time, values.shape[1], keys.shape[1])
    return decayed_sums(attention.decays[:, None], written).reshape(len(xs), -1)


@dataclass(frozen=True)
class MemoryFilling:
    """One sequence: tokens, the attention's key-values, and those read from memory neurons."""

    tokens: np.ndarray
    attention: np.ndarray
    neurons: np.ndarray


def memory_filling(
    model: GatedNetwork, attention: LinearAttention, *, time: int = TIME, seed: int = 1
) -> MemoryFilling:
    """Return the key-values of one sequence, token by token, and what memory neurons say of them.

    The regression from memory neurons to key-values is fitted on the other sequences.
    """
    xs, states = sample_states(model, time, seed)
    memory = states[:, neuron_kinds(model, attention) == "memory"]
    wanted = key_values(attention, xs, time)
    features = np.concatenate([memory, np.ones((len(memory), 1))], axis=1)
    scale = np.maximum(np.linalg.norm(features[time:], axis=0), 1e-300)
    reader = np.linalg.lstsq(features[time:] / scale, wanted[time:], rcond=1e-12)[0]
    read = features[:time] / scale @ reader
    shape = (time, attention.d_out, attention.W_K.shape[0])
    return MemoryFilling(xs[:time], wanted[:time].reshape(shape), read.reshape(shape))


def one_minus_r2(features: np.ndarray, targets: np.ndarray) -> float:
    """Return Σ residual² / Σ (target − mean)², averaged over the targets that vary."""
    centred = targets - targets.mean(axis=0)
    total = np.sum(centred**2, axis=0)
    varies = total > 0
    if not varies.any():
        return 0.0
    F = features - features.mean(axis=0)
    scale = np.linalg.norm(F, axis=0)
    F = F / np.where(scale > 0, scale, 1.0)
    residual = centred
    # The second pass takes out what rounding left of the first.
    for _ in range(2):
        residual = residual - F @ np.linalg.lstsq(F, residual, rcond=1e-14)[0]
    return float(np.mean(np.sum(residual**2, axis=0)[varies] / total[varies]))
