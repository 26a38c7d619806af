"""Decoys: networks that do not compute attention with few heads.

added     an attention, and beside it a block of neurons with random weights that is read too
shuffled  the entries of each array in random order, the readout scaled to the same outputs
"""

import jax
import jax.numpy as jnp
import numpy as np

from underhood.common.errors import BadInput
from underhood.constructions.construction import run_batch
from underhood.layers import Layer
from underhood.planting.scrambling import Wiring

DECOYS = ("added", "shuffled")
NO_DECOYS = {
    "side_gated_rnn": "each neuron (a·x_s)(b·x_s)(c·x_t) is a head of rank one, so every "
    "side-gated RNN is a sum of heads and none is a decoy"
}
# The block of a decoy adds this share of the attention's outputs, by root mean square.
ADDED_SHARE = 0.5
MOST_SHUFFLES = 1000


def run_network(layer: Layer, xs: np.ndarray) -> np.ndarray:
    """Return what a network gives on a batch, in float64."""
    with jax.enable_x64(True):
        return np.asarray(run_batch(layer, jnp.asarray(xs)))


def with_dead_read(
    wiring: Wiring, dead: int, rng: np.random.Generator, xs: np.ndarray, expected: np.ndarray
) -> Wiring:
    """Let the readout read the dead units, so that they add a share of the attention's outputs."""
    name = wiring.peers[-1].columns[-1]
    readout = wiring.arrays[name]
    weights = rng.normal(size=(len(readout), dead))
    alone = np.zeros_like(readout)
    alone[:, -dead:] = weights
    added = run_network(wiring.changed(**{name: alone}).layer(), xs)
    scale = ADDED_SHARE * np.sqrt(np.mean(expected**2) / np.mean(added**2))
    return wiring.changed(**{name: readout + scale * alone})


def with_entries_shuffled(
    wiring: Wiring, rng: np.random.Generator, xs: np.ndarray, expected: np.ndarray
) -> Wiring:
    """Shuffle the entries of each array, and scale the readout to outputs of the same size."""
    name = wiring.peers[-1].columns[-1]
    # In a small network a shuffle can cut every path to the outputs. Then it is drawn again.
    for _ in range(MOST_SHUFFLES):
        arrays = {
            key: rng.permutation(array.ravel()).reshape(array.shape)
            for key, array in wiring.arrays.items()
        }
        shuffled = wiring.changed(**arrays)
        size = np.sqrt(np.mean(run_network(shuffled.layer(), xs) ** 2))
        if size > 0:
            scale = np.sqrt(np.mean(expected**2)) / size
            return shuffled.changed(**{name: scale * arrays[name]})
    raise BadInput(
        "plant: no shuffled decoy of this size has outputs; use a larger --d or --rank, or "
        "--decoys 0."
    )
