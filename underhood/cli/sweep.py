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
    engine: str = "local"
    """local (train in this process), processes (train in several of this machine) or dask."""
    out: Maybe[Path] = None
    """Folder for the trained students; by default results/FILE."""
    most: int = 256
    """Largest number of students in a work unit."""
    plan: bool = False
    """Only print the work units that are left, and what they cost."""

    def run(self) -> int:
        from underhood.cli.printing import show
        from underhood.common.numbers import whole_problems
        from underhood.sweeps.cost import cost_in_words
        from underhood.sweeps.display import SweepDisplay
        from underhood.sweeps.store import Store
        from underhood.sweeps.study import load_study
        from underhood.sweeps.sweeping import sweep
        from underhood.sweeps.units import plan

        refuse(whole_problems(**{"--most": self.most}), about="sweep")
        study = load_study(self.file)
        out = self.out or Path("results") / self.file.stem
        with self.opened_engine(may_read=False) as engine:
            if self.plan:
                finished, memory = Store(out).finished(), engine.memory
                units = plan(study, finished, workers=engine.workers, most=self.most, memory=memory)
                show([{"unit": str(unit), "students": len(unit.addresses)} for unit in units])
                print(cost_in_words(study, units) if units else "Nothing is left to do.")
                return 0
            with SweepDisplay() as display:
                swept = sweep(study, out, engine, most=self.most, watch=display)
        for unit, reason in swept.failed.items():
            complain(f"{unit} failed: {reason.rstrip('.')}.")
        show(Store(out).summary(study))
        done = f"{swept.done} unit{'' if swept.done == 1 else 's'} done"
        print(f"{done}, {len(swept.failed)} failed, {swept.before} students were already finished")
        print(f"{swept.table}: a row per student")
        return 0 if swept.complete else 1
