"""The experiments by name; a new one is a file and a line here."""

from collections.abc import Callable
from dataclasses import dataclass

from underhood.experiments import lstm_weights, optimal_step, reverse, table1, table3
from underhood.experiments.results import Outcome
from underhood.experiments.setting import Setting

SCALES = ("smoke", "quick", "paper")


@dataclass(frozen=True)
class Experiment:
    """A claim, the function that tests it, and its budget of seconds on two cores."""

    claim: str
    run: Callable[[Setting], Outcome]
    budget: dict[str, int]


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment(
        "A trained gated RNN computes its linear-attention teacher's function.",
        table1.run,
        {"smoke": 30, "quick": 300, "paper": 900},
    ),
    "table3": Experiment(
        "Layers that each kind of network needs to implement Eq. 2 and attention.",
        table3.run,
        {"smoke": 30, "quick": 120, "paper": 600},
    ),
    "lstm_weights": Experiment(
        "The two LSTM weight tables: one layer is attention, two are a gated RNN.",
        lstm_weights.run,
        {"smoke": 20, "quick": 60, "paper": 300},
    ),
    "optimal_step": Experiment(
        "The best learning rate of one gradient step is 1/(σₓ²(n + dₓ − 1/5)).",
        optimal_step.run,
        {"smoke": 10, "quick": 30, "paper": 120},
    ),
    "reverse": Experiment(
        "Attention with decay and biases implements linear RNNs and gated RNNs.",
        reverse.run,
        {"smoke": 10, "quick": 30, "paper": 60},
    ),
}
