"""underhood reproduce: results of the paper, redone and judged."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from underhood.cli.arguments import EngineOptions, Maybe
from underhood.cli.commands import complain
from underhood.common.errors import BadInput, check_name, reason_of, refuse


@dataclass(frozen=True, kw_only=True)
class Reproduce(EngineOptions):
    names: tyro.conf.Positional[tuple[str, ...]] = ("all",)
    """Names of experiments (underhood list shows them), or all."""
    scale: str = "quick"
    """smoke (seconds; only checks that everything runs), quick (two CPU cores) or paper (GPU)."""
    out: Maybe[Path] = None
    """Folder for the result files; by default results/SCALE."""
    seeds: Maybe[int] = None
    """Number of seeds (for constructions: of random sources); by default set by the experiment."""
    resume: bool = False
    """Keep results that this commit has finished; interrupted training always continues."""
    strict: bool = False
    """Exit with status 1 if a claim differs."""
    plan: bool = False
    """Print what would be done and about how long it takes, and end."""
    stop_after: Maybe[str] = None
    """Stop after this time, such as 8m or 1h30m (engines local and processes): write what is
    finished, keep the rest, and exit with status 75. The same command goes on."""

    def run(self) -> int:
        from underhood.cli.printing import (
            console,
            details,
            plain_table,
            summary_table,
            verdict_table,
        )
        from underhood.common.numbers import whole_problems
        from underhood.experiments.registry import EXPERIMENTS, SCALES, at_scale, check_scale
        from underhood.experiments.running.planning import plan_experiments, plan_rows, plan_words
        from underhood.experiments.running.runner import STATUS_UNFINISHED, run_all
        from underhood.report.build import build, is_report
        from underhood.results.files import find
        from underhood.results.verdicts import DIFFERS
        from underhood.training.deadline import Deadline, parse_duration

        for name in self.names:
            check_name("experiment", name, (*EXPERIMENTS, "all"))
        check_name("scale", self.scale, SCALES)
        everything = "all" in self.names
        names = at_scale(self.scale) if everything else list(dict.fromkeys(self.names))
        check_scale(names, self.scale)
        if self.seeds is not None:
            refuse(whole_problems(**{"--seeds": self.seeds}), about="reproduce")
        deadline = None
        if self.stop_after is not None:
            deadline = Deadline.after(parse_duration(self.stop_after, about="--stop-after"))
        out = self.out or Path("results") / self.scale
        page = out / "report.html"
        if page.is_file() and not is_report(page):
            raise BadInput(f"{page} was not written by underhood; move it or choose another --out.")
        started = time.monotonic()
        screen = console()
        what = names, self.scale, self.seeds, out
        # At quick scale a plan would only be noise.
        # The engine comes first: it says how processes share the device before this one uses it.
        with contextlib.nullcontext() if self.plan else self.opened_engine(deadline) as engine:
            if self.plan or self.scale == "paper":
                planned = plan_experiments(*what, resume=self.resume)
                screen.print(plain_table(plan_rows(planned)))
                print(plan_words(planned, self.scale, self.workers or 1), flush=True)
            if self.plan:
                return 0
            ran = run_all(*what, resume=self.resume, engine=engine)
        results = ran.results
        for result in results:
            screen.print(details(result, EXPERIMENTS[result["experiment"]].claim))
        if results:
            screen.print(verdict_table(results))
            screen.print(summary_table(results, names))
        page_missing = False
        try:
            built = build(find(out), page, renew=names)
            print(f"{built.page}: the page; {out}/NAME/figure.pdf, .svg, .png: figures for print")
        except Exception as error:
            # The results are written by now, and a page can be made from them later.
            page_missing = True
            complain(f"the results are kept, but there is no page: {reason_of(error)}")
        print(f"{len(results)} of {len(names)} experiments in {time.monotonic() - started:.0f} s")
        if ran.unfinished:
            print(f"Out of time: {', '.join(ran.unfinished)}. The same command goes on.")
        differs = any(result["verdict"] == DIFFERS for result in results)
        failed = page_missing or len(results) + len(ran.unfinished) < len(names)
        if failed or (self.strict and differs):
            return 1
        return STATUS_UNFINISHED if ran.unfinished else 0
