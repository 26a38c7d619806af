"""Can key-values be read from the memory neurons, and queries from the query neurons? (Table 1)

A score is 1 − R² of a linear regression with an intercept, averaged over its targets: 0 when the
neurons hold all of it. Targets are the entries of Σ_s v_s k_sᵀ and of q_t for a given attention,
on fresh normal tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.analysis.arguments import check_gated, check_time
from underhood.analysis.forms.norms import TIME
from underhood.analysis.reading.influences import states_of
from underhood.analysis.shrinking.variable_projection import accumulate
from underhood.common.decay import kinds
from underhood.common.errors import BadInput
from underhood.common.float64 import in_float64
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


def probe(model: Any, attention: Any, *, time: int = TIME, seed: int = 1) -> Probes:
    """How well the neurons of a gated RNN hold what an attention would."""
    check_gated(model, "probe")
    check_time(time, "probe")
    if not isinstance(attention, LinearAttention):
        other = type(attention).__name__
        raise BadInput(f"probe compares with a LinearAttention, not with a {other}.")
    if model.d_in != attention.d_in:
        raise BadInput(
            f"probe: the model reads {model.d_in} numbers, the attention {attention.d_in}."
        )
    attention = in_float64(attention)
    xs, states = states_of(model, time, seed)
    queries = xs @ attention.W_Q.T + (0.0 if attention.b_Q is None else attention.b_Q)
    kind = kinds_beside(model, attention)
    return Probes(
        one_minus_r2(states[:, kind == "memory"], key_values(attention, xs, time)),
        one_minus_r2(states[:, kind == "query"], queries),
        int(np.sum(kind == "memory")),
        int(np.sum(kind == "query")),
    )


def kinds_beside(model: Any, attention: LinearAttention) -> np.ndarray:
    """Which neurons are memory: those that keep as long as some row of the attention does."""
    keeps = tuple(np.unique(decay_of(attention)).tolist())
    return kinds(np.asarray(model.decay, float), keeps)


def decay_of(attention: LinearAttention) -> np.ndarray:
    """One number per row of W_V."""
    return np.ones(attention.d_out) if attention.decay is None else np.asarray(attention.decay)


def key_values(attention: LinearAttention, xs: np.ndarray, time: int) -> np.ndarray:
    """Σ_s v_s k_sᵀ after every token, flat [tokens, d_v·d_k]; xs [tokens, d] in sequences."""
    values, keys = (
        xs @ W.T + (0.0 if b is None else b)
        for W, b in ((attention.W_V, attention.b_V), (attention.W_K, attention.b_K))
    )
    written = np.einsum("ti,tj->tij", values, keys)
    written = written.reshape(-1, time, values.shape[1], keys.shape[1])
    return accumulate(decay_of(attention)[:, None], written).reshape(len(xs), -1)


@dataclass(frozen=True)
class Filling:
    """One sequence: its tokens, the attention's key-values, and what the memory neurons say."""

    tokens: np.ndarray
    attention: np.ndarray
    neurons: np.ndarray


def filling(model: Any, attention: LinearAttention, *, time: int = TIME, seed: int = 1) -> Filling:
    """Key-values as they fill, read from memory neurons by a regression on other sequences."""
    attention = in_float64(attention)
    xs, states = states_of(model, time, seed)
    wanted = key_values(attention, xs, time)
    memory = states[:, kinds_beside(model, attention) == "memory"]
    features = np.concatenate([memory, np.ones((len(memory), 1))], axis=1)
    scale = np.maximum(np.linalg.norm(features[time:], axis=0), 1e-300)
    reader = np.linalg.lstsq(features[time:] / scale, wanted[time:], rcond=1e-12)[0]
    shape = (time, attention.d_out, attention.W_K.shape[0])
    return Filling(
        xs[:time],
        wanted[:time].reshape(shape),
        (features[:time] / scale @ reader).reshape(shape),
    )


def one_minus_r2(features: np.ndarray, targets: np.ndarray) -> float:
    """Σ residual² / Σ (target − mean)², averaged over targets; a constant target counts 0."""
    centred = targets - targets.mean(axis=0)
    total = np.sum(centred**2, axis=0)
    varies = total > 0
    if not varies.any():
        return 0.0
    F = features - features.mean(axis=0)
    scale = np.linalg.norm(F, axis=0)
    F = F / np.where(scale > 0, scale, 1.0)
    solution = np.linalg.lstsq(F, centred, rcond=1e-14)[0]
    residual = centred - F @ solution
    # A second pass takes out what rounding left of the first.
    residual -= F @ np.linalg.lstsq(F, residual, rcond=1e-14)[0]
    return float(np.mean(np.sum(residual**2, axis=0)[varies] / total[varies]))
