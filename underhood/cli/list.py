"""underhood list: the experiments that can be reproduced, and how long they take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class List:
    def run(self) -> int:
        from underhood.cli.printing import show
        from underhood.experiments.registry import EXPERIMENTS

        rows = [
            {"name": name, "claim": experiment.claim}
            | {f"{scale}, min": round(s / 60, 1) for scale, s in experiment.budget.items()}
            for name, experiment in EXPERIMENTS.items()
        ]
        show(rows)
        print(
            "Estimates in minutes: smoke and quick on two cores, paper on one H200; empty: not at "
            "this scale. Students that several experiments share are counted once."
        )
        return 0
