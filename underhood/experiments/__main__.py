"""python -m underhood.experiments: experiments as a batch job, with few packages.

For machines that have JAX, Equinox and Optax, but not all packages of the command line: it needs
neither tyro nor rich nor jinja2. It writes what `underhood reproduce` writes, except the page and
the figures; `underhood report` makes those later, anywhere. The options mean what they mean in
`underhood reproduce`, and --workers implies its --engine processes (needs cloudpickle).
"""

import argparse
import contextlib
import os
import sys
from pathlib import Path

from underhood.common.errors import BadInput, check_name
from underhood.experiments.registry import EXPERIMENTS, SCALES, at_scale, check_scale
from underhood.experiments.running.planning import plan_experiments, plan_rows, plan_words
from underhood.experiments.running.runner import STATUS_UNFINISHED, run_all
from underhood.sweeps.engines import Engine, Local
from underhood.sweeps.processes import Processes
from underhood.training.deadline import Deadline, parse_duration


def run_job(words: list[str]) -> int:
    """Run a job and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m underhood.experiments")
    parser.add_argument("names", nargs="+", help="names of experiments, or all")
    parser.add_argument("--scale", default="quick", help=", ".join(SCALES))
    parser.add_argument(
        "--out", type=Path, help="folder of the results; results/SCALE if not given"
    )
    parser.add_argument("--resume", action="store_true", help="keep results of this commit")
    parser.add_argument("--workers", type=int, help="processes that share the device")
    parser.add_argument("--stop-after", help="such as 8m: keep what is done, and exit with 75")
    parser.add_argument("--plan", action="store_true", help="print what would be done, and end")
    asked = parser.parse_args(words)
    for name in asked.names:
        check_name("experiment", name, (*EXPERIMENTS, "all"))
    check_name("scale", asked.scale, SCALES)
    names = at_scale(asked.scale) if "all" in asked.names else list(dict.fromkeys(asked.names))
    check_scale(names, asked.scale)
    deadline = None
    if asked.stop_after is not None:
        deadline = Deadline.after(parse_duration(asked.stop_after, about="--stop-after"))
    what = names, asked.scale, None, asked.out or Path("results") / asked.scale
    opened: contextlib.AbstractContextManager[Engine] = contextlib.nullcontext(Local(deadline))
    if asked.workers is not None and not asked.plan:
        opened = Processes(asked.workers, deadline).opened()
    # The engine comes first: it says how processes share the device before this one uses it.
    with opened as engine:
        planned = plan_experiments(*what, resume=asked.resume)
        for row in plan_rows(planned):
            print(f"{row['seconds']:6} s  {row['experiment'] or ' ':18} {row['what']}")
        print(plan_words(planned, asked.scale, asked.workers or 1), flush=True)
        if asked.plan:
            return 0
        ran = run_all(*what, resume=asked.resume, engine=engine)
    for result in ran.results:
        print(f"{result['experiment']}: {result['verdict']}")
    if len(ran.results) + len(ran.unfinished) < len(names):
        return 1
    return STATUS_UNFINISHED if ran.unfinished else 0


if __name__ == "__main__":
    try:
        status = run_job(sys.argv[1:])
    except (BadInput, OSError) as error:
        print(f"underhood: {error}", file=sys.stderr)
        status = 2
    sys.stdout.flush()
    sys.stderr.flush()
    # Experiments that ran out of time may still be judged in threads, which cannot be ended.
    os._exit(status)
