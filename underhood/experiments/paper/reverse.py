"""Can attention implement recurrent networks (Appendix B.5)? With decay and biases, exactly.

Judged: a diagonal linear RNN as one head, and a gated RNN as two layers with one head per neuron
and one per gate output. That a gate of several units takes one head per unit, and not one head as
the paper's sentence may be read, is proved in `constructions/reverse.py`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from underhood.constructions import attention_from_linear_rnn, compile
from underhood.constructions.construction import run_batch
from underhood.experiments.protocols.sources import random_gated_rnn
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import Number, at_most
from underhood.experiments.running.setting import Setting
from underhood.layers import MultiHead, Stack

LIMIT = 1e-12
SIZES = {"smoke": (2, 2, 32), "quick": (4, 20, 256), "paper": (8, 100, 256)}


def run(setting: Setting) -> Outcome:
    """The linear RNN and the gated RNN."""
    d, default_seeds, length = SIZES[setting.scale]
    count = setting.count(default_seeds)
    linear, gated = [], []
    for seed in range(count):
        setting.tick(seed, count)
        linear.append(linear_rnn_error(d, seed, length))
        built = compile(random_gated_rnn(d, seed), "decayed_attention")
        gated.append(built.error(key=jax.random.key(seed), length=length, sequences=8))
    setting.tick(count, count)
    what = f"largest error over {count} networks, T = {length},"
    numbers: tuple[Number, ...] = (
        at_most("linear RNN, one head", max(linear), LIMIT, what=what, paper="exact", seeds=count),
        at_most("gated RNN, two layers", max(gated), LIMIT, what=what, paper="exact", seeds=count),
    )
    assert isinstance(built.layer, Stack)
    heads = [len(one.heads) for one in built.layer.layers if isinstance(one, MultiHead)]
    rows: list[dict[str, Any]] = [
        {"network": "linear RNN", "layers": 1, "heads": 1, "largest error": max(linear)},
        {
            "network": "gated RNN",
            "layers": built.layers,
            "heads": sum(heads),
            "largest error": max(gated),
        },
    ]
    notes = (
        "A gate of several units needs one head per unit: a head multiplies all of its value rows "
        "by the same number kᵀq.",
    )
    arrays = {"linear": np.array(linear), "gated": np.array(gated)}
    return Outcome(numbers, tuple(rows), notes, tuple(range(count)), arrays=arrays)


def linear_rnn_error(d: int, seed: int, length: int) -> float:
    """y_t = λ⊙y_{t−1} + B x_t against its head of attention, on one fresh sequence."""
    rng = np.random.default_rng([3, d, seed])
    decay, B = rng.uniform(size=d), rng.normal(size=(d, d)) / np.sqrt(d)
    xs = rng.normal(size=(length, d))
    state, expected = np.zeros(d), np.zeros((length, d))
    for t in range(length):
        state = decay * state + B @ xs[t]
        expected[t] = state
    with jax.enable_x64(True):
        head = attention_from_linear_rnn(decay, B)
        ys = np.asarray(run_batch(head, jnp.asarray(xs[None])))[0]
    return float(np.max(np.abs(ys - expected)) / max(float(np.max(np.abs(expected))), 1.0))
