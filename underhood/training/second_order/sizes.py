"""How many neurons a start has, how many starts are worth trying, and what memory holds.

The kernels of n neurons have n(n+1)/2 unknowns, so a step costs about n⁶, and its arrays have about
n⁴ numbers. No attention with one head needs more than d(d+1)/2 + d neurons for d inputs.
"""

import numpy as np

from underhood.common.errors import BadInput
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.training.second_order.separable import SeparableNetwork
from underhood.training.second_order.stages import ROWS_PER_UNKNOWN
from underhood.training.second_order.starts import GatedStudent

# A start has so many times the neurons that one head of attention can need. Fewer end in wrong
# places more often, and more take longer. Every fourth start has a quarter more, up to twice.
STARTING_SHARE, SIZE_GROWTH, MOST_SIZE_GROWTH = 1.4, 1.25, 2.0
# Steps on all outputs at once are for so many neurons at most: with more they take too long.
MOST_AT_ONCE = 40
# A fit makes so many starts at most. Where starts grow, it makes this many of the largest size
# and at least that many in all: what they have not found, more of them rarely find.
MOST_STARTS, LARGEST_STARTS, FEWEST_STARTS = 64, 8, 16
# With more inputs the stages of a gated RNN take many gigabytes, and with more neurons so do
# steps on all outputs.
MOST_INPUTS_STAGED, MOST_FITTED = 16, 128
# Starts that run side by side share this memory. A start keeps about four arrays of the size of
# its features.
SHARED_BYTES, ARRAYS_PER_START = 4 * 2**30, 4


def wanted_neurons(d_in: int, number: int) -> int:
    """Return how many neurons a start has, if its student does not have fewer."""
    smallest = STARTING_SHARE * d_in * (d_in + 3) / 2
    grown = smallest * min(SIZE_GROWTH ** (number // 4), MOST_SIZE_GROWTH)
    return int(min(np.ceil(grown), max(np.ceil(smallest), MOST_AT_ONCE)))


def starts_worth_trying(d_in: int) -> int:
    """Return how many starts it takes to try every size, and the largest several times."""
    sizes = [wanted_neurons(d_in, number) for number in range(MOST_STARTS)]
    return max(sizes.index(max(sizes)) + LARGEST_STARTS, FEWEST_STARTS)


def starts_in_memory(neurons: int) -> int:
    """Return how many starts of gated RNNs may run side by side."""
    features = neurons * (neurons + 1) // 2
    return max(SHARED_BYTES // (8 * ARRAYS_PER_START * ROWS_PER_UNKNOWN * features**2 + 1), 1)


def check_memory(model: GatedStudent, *, wider: bool) -> None:
    """Refuse a student whose starts would take too much memory."""
    if isinstance(model, SideGatedRNN):
        return
    if wider and model.d_in > MOST_INPUTS_STAGED:
        raise BadInput(
            f"fit: the student has {model.d_in} inputs, and second-order training of gated RNNs "
            f"takes at most {MOST_INPUTS_STAGED}. Use uh.train, or wider=False for a small student."
        )
    fitted = min(model.neurons, wanted_neurons(model.d_in, 0))
    if not wider and fitted > MOST_FITTED:
        raise BadInput(
            f"fit: {fitted} neurons would be fitted at once; give the student at most "
            f"{MOST_FITTED}, or use uh.train."
        )


def starting_network(
    model: GatedStudent, rng: np.random.Generator, number: int, *, wider: bool
) -> SeparableNetwork:
    """Return the neurons of a student that are fitted, with more random ones if it has few.

    Of a wide network a random choice is fitted.
    """
    wanted = wanted_neurons(model.d_in, number)
    network = SeparableNetwork.of(model)
    if model.neurons > wanted:
        chosen = rng.choice(model.neurons, wanted, replace=False)
        return network.keep(np.isin(np.arange(model.neurons), chosen))
    if not wider or not isinstance(model, GatedRNN) or model.neurons == wanted:
        return network
    # As `GatedRNN.init` draws them.
    more, inputs = wanted - model.neurons, model.d_in + 1
    gates = rng.normal(size=(2, more, inputs)) / np.sqrt(inputs)
    return SeparableNetwork(
        W_m=np.concatenate([network.W_m, gates[0]]),
        W_x=np.concatenate([network.W_x, gates[1]]),
        decay=np.append(network.decay, rng.uniform(size=more)),
        free=np.ones(wanted, bool),
        linear=np.zeros((model.d_out, wanted * (wanted + 1) // 2)),
    )
