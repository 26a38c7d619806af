"""The command: build a network for MQAR, run it on the published test sets, and compare."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from underhood.cli.arguments import Maybe
from underhood.common.errors import refuse
from underhood.common.files import Json
from underhood.common.numbers import whole_problems

if TYPE_CHECKING:
    from underhood.recall import Measured, RecallNetwork


@dataclass(frozen=True)
class Recall:
    state: int
    """Numbers that the network may carry from token to token."""
    codes: Maybe[str] = None
    """dense or hash; by default the better of the two."""
    values: Maybe[int] = None
    """Numbers of a value's code; by default the best for the state."""
    target: str = "gated_rnn"
    """gated_rnn or side_gated_rnn; with --stacked every target of underhood compile."""
    stacked: bool = False
    """A key and its value are one token."""
    layers: Maybe[int] = None
    """2 token by token, 1 stacked; other numbers are refused with the reason."""
    answers: int = 512
    """About as many answers are scored on each test set."""
    seed: int = 0
    """Seed of the codes and the sequences."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        import jax

        from underhood.cli.printing import fact_rows, show
        from underhood.recall import build
        from underhood.recall.published import nearest_trained

        problems = whole_problems(**{"--state": self.state, "--answers": self.answers})
        problems += whole_problems(least=0, most=2**32 - 1, **{"--seed": self.seed})
        refuse(problems, about="recall")
        code_key, run_key = jax.random.split(jax.random.key(self.seed))
        network = build(
            state=self.state,
            target=self.target,
            codes=self.codes,
            values=self.values,
            stacked=self.stacked,
            layers=self.layers,
            key=code_key,
        )
        measured = network.evaluate(answers=self.answers, key=run_key)
        trained = None if self.stacked else nearest_trained(network.carried)
        facts = network_facts(network, measured)
        if trained is not None:
            facts["nearest trained layer"] = (
                f"{trained.layer}, {trained.bytes} bytes, accuracy {trained.accuracy:g}"
            )
        rows = accuracy_rows(network, measured)
        if self.json:
            print(json.dumps({**facts, "sets": rows}, allow_nan=False))
        else:
            show(fact_rows(facts), rows)
        return 0


def network_facts(network: "RecallNetwork", measured: list["Measured"]) -> Json:
    """Return what a network is, and its mean accuracy over the test sets."""
    split = network.split
    return {
        "task": "stacked" if split.stacked else "token by token",
        "codes": split.codes,
        "numbers per key": split.keys,
        "numbers per value": split.values,
        "target": network.target,
        "layers": len(network.layers),
        "neurons": network.neurons,
        "numbers carried": network.carried,
        "bytes": 4 * network.carried,
        "accuracy by formula": round(split.accuracy, 4),
        "accuracy run": round(sum(each.accuracy for each in measured) / len(measured), 4),
    }


def accuracy_rows(network: "RecallNetwork", measured: list["Measured"]) -> list[Json]:
    """Return a row per test set; `possible` is what the bits of the state allow."""
    from underhood.recall.information import accuracy_limit
    from underhood.recall.prediction import published_tasks

    tasks = published_tasks(network.stacked, network.vocab)
    return [
        {
            "pairs": each.pairs,
            "tokens": each.length,
            "sequences": each.sequences,
            "formula": round(each.predicted, 4),
            "run": round(each.accuracy, 4),
            "error": round(each.error, 4),
            "possible": round(accuracy_limit(task, 32 * network.carried), 4),
        }
        for each, task in zip(measured, tasks, strict=True)
    ]
