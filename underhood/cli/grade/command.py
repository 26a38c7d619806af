"""The command: compare a method's answers with the keys of planted networks."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True)
class Grade:
    folder: tyro.conf.Positional[Path]
    """A folder that underhood plant wrote."""
    answers: tyro.conf.Positional[Path]
    """A folder with the answers 000.json or 000.safetensors, 001.json, …"""
    json: bool = False
    """Print the grades as JSON."""

    def run(self) -> int:
        from underhood.cli.printing import fact_rows, show
        from underhood.planting import grade_folder

        grades = grade_folder(self.folder, self.answers)
        rows, facts = [each.row() for each in grades.each], grades.facts()
        if self.json:
            print(json.dumps({**facts, "each": rows}, allow_nan=False))
        else:
            show(rows, fact_rows(facts))
        return 0
