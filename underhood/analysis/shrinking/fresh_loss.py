"""The loss on sequences that no step has seen: when to end a fit, and which model is better."""

import numpy as np

from underhood.training.second_order.examples import Data, half_mean_square
from underhood.training.second_order.separable import SeparableNetwork

# A fit ends when this many steps in a row do not lower the loss on fresh sequences.
PATIENCE = 2
# A gain of fewer standard errors may be chance.
CLEAR_GAIN = 2.0


class FreshLoss:
    """The lowest loss on watched sequences, and the network that has it.

    data    sequences that no step sees
    before  the loss of the model that is to be beaten
    """

    def __init__(self, data: Data, before: float):
        self.data, self.lowest, self.misses = data, before, 0
        self.best: SeparableNetwork | None = None

    def begin(self) -> None:
        """Forget how many networks in a row were not better: another fit begins."""
        self.misses = 0

    def reason_to_stop(self, network: SeparableNetwork) -> str | None:
        """Look at a network; return a reason once several in a row have not been better."""
        loss = loss_on(self.data, outputs_on(self.data, network))
        if loss < self.lowest:
            self.lowest, self.best, self.misses = loss, network, 0
            return None
        self.misses += 1
        if self.misses < PATIENCE:
            return None
        return f"{PATIENCE} steps in a row did not lower the loss on fresh sequences"


def outputs_on(data: Data, network: SeparableNetwork) -> np.ndarray:
    """Return the outputs [rows, d_out] of a network."""
    outputs: np.ndarray = data.features(network) @ network.linear.T
    return outputs


def loss_on(data: Data, outputs: np.ndarray) -> float:
    """Return the loss of outputs [rows, d_out]."""
    return half_mean_square(outputs - data.targets)


def clearly_better(judge: Data, after: np.ndarray, before: np.ndarray) -> bool:
    """Tell whether outputs lose less than others by more than chance, sequence by sequence."""
    sequences = len(judge.tokens)
    gains = [
        np.sum(((outputs - judge.targets) ** 2).reshape(sequences, -1), axis=1)
        for outputs in (before, after)
    ]
    gain = gains[0] - gains[1]
    error = float(np.std(gain)) / np.sqrt(sequences)
    return bool(np.mean(gain) > CLEAR_GAIN * error)
