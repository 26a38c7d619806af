"""underhood sweep: the students of a study of your own."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from underhood.cli.arguments import EngineOptions, Maybe
from underhood.cli.commands import complain
from underhood.common.errors import refuse


@dataclass(frozen=True, kw_only=True)
class Sweep(EngineOptions):
    file: tyro.conf.Positional[Path]
    """A Python file that ends with study = Study(...)."""
    out: Maybe[Path] = None
    """Folder for the trained students; by default results/FILE."""
    most: int = 256
    """Largest number of students in a work unit."""
    plan: bool = False
    """Only print the work units that are left, and what they cost."""

    def run(self) -> int:
        from underhood.cli.printing import show
        from underhood.common.numbers import whole_problems
        from underhood.sweeps.commands import cost, engine_of, planned, summary
        from underhood.sweeps.display import Display
        from underhood.sweeps.study_files import load_study
        from underhood.sweeps.sweeping import sweep

        refuse(whole_problems(**{"--most": self.most}), about="sweep")
        study = load_study(self.file)
        out = self.out or Path("results") / self.file.stem
        with engine_of(self) as engine:
            units = planned(study, out, engine, self.most)
            if self.plan:
                rows = [{"unit": str(unit), "students": len(unit.addresses)} for unit in units]
                show(rows)
                print(cost(study, units) if units else "Nothing is left to do.")
                return 0
            with Display(len(units)) as display:
                swept = sweep(study, out, engine, most=self.most, watch=display)
        for unit, reason in swept.failed.items():
            complain(f"{unit} failed: {reason.rstrip('.')}.")
        show(summary(out, study))
        done = f"{swept.done} unit{'' if swept.done == 1 else 's'} done"
        print(f"{done}, {len(swept.failed)} failed, {swept.before} students were already finished")
        print(f"{swept.table}: a row per student")
        return 0 if swept.complete else 1
