"""Can attention implement recurrent networks (Appendix B.5)? With decay and biases, exactly.

A diagonal linear RNN is one head, a gated RNN two layers. A gate of several units takes one head
per unit, and not one head as the paper's sentence may be read (docs/constructions.md, Reverse).
"""

import jax
import jax.numpy as jnp
import numpy as np

from underhood.constructions import attention_from_linear_rnn, compile
from underhood.constructions.construction import run_batch
from underhood.experiments.protocols.sources import random_gated_rnn
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import at_most
from underhood.layers import MultiHead, Stack

REVERSE_LIMIT = 1e-12
# d, networks, and tokens of a sequence.
REVERSE_SIZES = {"smoke": (2, 2, 32), "quick": (4, 20, 256), "paper": (8, 100, 256)}


def reproduce_reverse(setting: Setting) -> Outcome:
    d, default_seeds, length = REVERSE_SIZES[setting.scale]
    count = setting.count(default_seeds)
    linear, gated = [], []
    for seed in setting.over(range(count)):
        linear.append(linear_rnn_error(d, seed, length))
        built = compile(random_gated_rnn(d, seed), "decayed_attention")
        gated.append(built.error(key=jax.random.key(seed), length=length, sequences=8))
    assert isinstance(built.layer, Stack)
    heads = sum(len(part.heads) for part in built.layer.layers if isinstance(part, MultiHead))
    what = f"largest error over {count} networks, T = {length},"
    return Outcome(
        numbers=[
            at_most(name, max(errors), REVERSE_LIMIT, what=what, paper="exact", seeds=count)
            for name, errors in (("linear RNN, one head", linear), ("gated RNN, two layers", gated))
        ],
        rows=[
            {"network": network, "layers": layers, "heads": count, "largest error": max(errors)}
            for network, layers, count, errors in (
                ("linear RNN", 1, 1, linear),
                ("gated RNN", built.layers, heads, gated),
            )
        ],
        notes=[
            "A gate of several units needs one head per unit: a head multiplies all of its value "
            "rows by the same number kᵀq."
        ],
        seeds=range(count),
        arrays={"linear": np.array(linear), "gated": np.array(gated)},
    )


def linear_rnn_error(d: int, seed: int, length: int) -> float:
    """Return the error of y_t = λ⊙y_{t−1} + B x_t as a head of attention, on a fresh sequence."""
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
    return float(np.max(np.abs(ys - expected)) / max(float(np.max(np.abs(expected))), 1e-300))
