"""underhood verify: results computed again from the stored students, and compared."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from underhood.common.errors import check_name


@dataclass(frozen=True)
class Verify:
    folder: tyro.conf.Positional[Path]
    """The folder that underhood reproduce wrote; nothing in it is changed."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")] = ()
    """Names of experiments to look at; by default all that have a result."""
    json: bool = False
    """Print what was compared as JSON."""

    def run(self) -> int:
        from underhood.cli.report import results_in
        from underhood.experiments.running.verifying import AGREES, verify

        results = results_in(self.folder)
        names = [*(path.name for path in results.entries), *results.unreadable]
        for name in self.only:
            check_name("result", name, names)
        checks = verify(results, self.folder, self.only or None)
        agreeing = sum(check.state == AGREES for check in checks)
        if self.json:
            print(json.dumps([check.as_json() for check in checks], ensure_ascii=False, indent=1))
        else:
            for check in checks:
                print(check)
            print(f"{agreeing} of {len(checks)} results agree with what is stored beside them.")
        return 0 if agreeing == len(checks) else 1
