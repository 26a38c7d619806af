"""The experiments by name; a new one is a file and a line here."""

from collections.abc import Callable
from dataclasses import dataclass

from underhood.experiments.paper import (
    figure2,
    figure3 as figure3a,
    figure3b,
    figure3c,
    figure4a,
    figure4b,
    figure6,
    lstm_weights,
    optimal_step,
    recall_gated,
    recall_side,
    reverse,
    table1,
    table2,
    table3,
)
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.setting import Setting

SCALES = ("smoke", "quick", "paper")


@dataclass(frozen=True)
class Experiment:
    """A claim, the function that tests it, and its budget of seconds.

    smoke and quick on two cores, paper on one H200; runs that another experiment has trained
    before are counted there.
    """

    claim: str
    run: Callable[[Setting], Outcome]
    budget: dict[str, int]


def seconds(smoke: int, quick: int, paper: int) -> dict[str, int]:
    return {"smoke": smoke, "quick": quick, "paper": paper}


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment(
        "A trained gated RNN computes its linear-attention teacher's function.",
        table1.run,
        seconds(10, 110, 1100),
    ),
    "figure2": Experiment(
        "After pruning, the learned weights show the compact construction's blocks.",
        figure2.run,
        seconds(5, 10, 200),
    ),
    "figure3a": Experiment(
        "Identification needs mild overparametrisation.",
        figure3a.run,
        seconds(10, 55, 700),
    ),
    "figure3b": Experiment(
        "Low-rank teachers are learned in fewer neurons.",
        figure3b.run,
        seconds(10, 30, 1100),
    ),
    "figure3c": Experiment(
        "In-context regression is learned around the low-rank construction's size.",
        figure3c.run,
        seconds(10, 60, 160),
    ),
    "figure4a": Experiment(
        "Gated RNNs mimic attention best, then LRUs with gates; LSTMs and GRUs do not.",
        figure4a.run,
        seconds(40, 120, 3700),
    ),
    "figure4b": Experiment(
        "Nonlinear RNNs learn in context better than one gradient step; the GRU is best.",
        figure4b.run,
        seconds(30, 165, 2400),
    ),
    "figure6": Experiment(
        "Training and validation loss of all architectures against parameters.",
        figure6.run,
        seconds(5, 5, 60),
    ),
    "table2": Experiment(
        "The regression RNN implements one step of gradient descent.",
        table2.run,
        seconds(10, 60, 120),
    ),
    "table3": Experiment(
        "Layers that each kind of network needs to implement Eq. 2 and attention.",
        table3.run,
        seconds(10, 20, 40),
    ),
    "lstm_weights": Experiment(
        "The two LSTM weight tables: one layer is attention, two are a gated RNN.",
        lstm_weights.run,
        seconds(5, 10, 20),
    ),
    "reverse": Experiment(
        "Attention with decay and biases implements linear RNNs and gated RNNs.",
        reverse.run,
        seconds(5, 5, 10),
    ),
    "optimal_step": Experiment(
        "The best learning rate of one gradient step is 1/(σₓ²(n + dₓ − 1/5)).",
        optimal_step.run,
        seconds(5, 10, 30),
    ),
    "recall_gated": Experiment(
        "Associative recall with output gating: one neuron per y, smaller than attention.",
        recall_gated.run,
        seconds(10, 30, 60),
    ),
    "recall_side": Experiment(
        "Associative recall with side gating: attention with a second, negative peak.",
        recall_side.run,
        seconds(10, 30, 60),
    ),
}
