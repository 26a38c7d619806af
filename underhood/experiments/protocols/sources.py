"""Random sources to compile, in float64, and the error of what they are compiled into."""

import jax
import numpy as np

from underhood.constructions import Construction
from underhood.experiments.running import Setting
from underhood.layers import GatedRNN, LinearAttention

# d, and how many sources of each kind, by scale.
SOURCES = {"smoke": (2, 2), "quick": (4, 20), "paper": (4, 100)}


def random_sources(setting: Setting) -> tuple[list[GatedRNN], list[LinearAttention]]:
    d, default = SOURCES[setting.scale]
    seeds = range(setting.count(default))
    networks = [random_gated_rnn(d, seed) for seed in seeds]
    return networks, [random_teacher(d, seed) for seed in seeds]


def random_teacher(d: int, seed: int) -> LinearAttention:
    """Return attention with square weights, entries N(0, 1/d)."""
    rng = np.random.default_rng([1, d, seed])
    return LinearAttention(*(rng.normal(size=(d, d)) / np.sqrt(d) for _ in range(3)))


def random_gated_rnn(d: int, seed: int, *, hidden: int = 12, gated: int = 10) -> GatedRNN:
    """Return a gated RNN with weights N(0, 1/fan-in); λ is 0, 1, then uniform on (0, 1)."""
    rng = np.random.default_rng([2, d, seed])

    def weights(rows: int, columns: int) -> np.ndarray:
        return rng.normal(size=(rows, columns)) / np.sqrt(columns)

    return GatedRNN(
        W_in_m=weights(hidden, d + 1),
        W_in_x=weights(hidden, d + 1),
        decay=np.concatenate([[0.0, 1.0], rng.uniform(size=hidden - 2)]),
        W_out_m=weights(gated, hidden),
        W_out_x=weights(gated, hidden),
        D=weights(d, gated),
    )


def largest_error(built: list[Construction], length: int) -> float:
    """Return the largest error of all networks, each on fresh sequences."""
    return max(
        network.error(key=jax.random.key(seed), length=length, sequences=8)
        for seed, network in enumerate(built)
    )
