"""The command line: underhood list | reproduce | report | sweep | compile | decompile | inspect.

Exit status 0: done; 1: something failed, or with --strict a claim did not hold; 2: bad input,
one line on stderr that says what to change, nothing half-written.
"""

import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from underhood.cli.arguments import (
    Compile,
    Decompile,
    Inspect,
    List,
    Report,
    Reproduce,
    Sweep,
    complain,
    interrupted,
    parse,
)
from underhood.common.errors import BadInput, in_words


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and turn whatever goes wrong into one line and a status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character shows a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    try:
        command = parse(sys.argv[1:] if arguments is None else arguments)
        return HANDLERS[type(command)](command)
    except BrokenPipeError:
        # Whoever read our output has left; so do we.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (BadInput, OSError) as error:
        return complain(in_words(error), 2)
    except KeyboardInterrupt:
        return interrupted(sys.argv[1:] if arguments is None else arguments, arguments is None)


def compile_command(command: Compile) -> int:
    import jax

    from underhood.common.files import check_writable
    from underhood.constructions import compile
    from underhood.layers.files.storage import read, save
    from underhood.report.terminal import console, plain_table

    if not 0 <= command.seed < 2**32:
        raise BadInput(f"--seed must be from 0 to 2^32 − 1, not {command.seed}.")
    check_writable(command.output, replace=command.force)
    source = read(command.source).layer
    built = compile(
        source,  # type: ignore[arg-type]
        command.target,
        command.form,
        command.dtype,
        order=command.order,
        epsilon=command.epsilon,
        layers=command.layers,
        activation=command.activation,
    )
    error = built.error(key=jax.random.key(command.seed))
    save(command.output, built)
    facts = {
        "source": type(source).__name__,
        **built.settings,
        "layers": built.layers,
        "neurons": built.neurons,
        "gate_outputs": built.gate_width,
        "parameters": built.parameters,
        "error": error,
        "output": str(command.output),
    }
    if command.json:
        print(json.dumps(facts))
    else:
        told = [
            {"fact": name, "value": value} for name, value in facts.items() if value is not None
        ]
        console().print(plain_table(told))
    return 0


def decompile_command(command: Decompile) -> int:
    from underhood.analysis import decompile
    from underhood.analysis.decompilation.description import decompilation_facts as facts
    from underhood.analysis.decompilation.description import matrices, rows
    from underhood.common.files import check_writable
    from underhood.layers.files.storage import read, save
    from underhood.report.terminal import console, picture, plain_table

    choices = {"auto": None, "yes": True, "no": False}
    if command.biases not in choices:
        raise BadInput(f"--biases is auto, yes or no, not {command.biases!r}.")
    if command.output is not None:
        check_writable(command.output, replace=command.force)
    source = read(command.source).layer
    found = decompile(
        source,  # type: ignore[arg-type]  # decompile refuses other layers
        tolerance=command.tolerance,
        biases=choices[command.biases],
    )
    told = facts(found, command.radius, command.time)
    if command.output is not None and found.is_attention:
        save(command.output, found.attention)
        told["output"] = str(command.output)
    if command.json:
        print(json.dumps(told))
    else:
        screen = console()
        for table in rows(told):
            screen.print(plain_table(table))
        for name, array in matrices(found) if command.pictures else []:
            screen.print(picture(name, array))
    if found.is_attention:
        return 0
    return complain(f"{found.reason}; nothing was written.", 1)


def inspect_command(command: Inspect) -> int:
    from underhood.layers.files.description import array_rows, named_arrays, role_rows
    from underhood.layers.files.description import layer_facts as facts
    from underhood.layers.files.storage import read
    from underhood.report.terminal import console, picture, plain_table

    contents = read(command.file)
    arrays = named_arrays(contents.layer)
    if command.json:
        shapes = {name: list(array.shape) for name, array in arrays}
        print(json.dumps({**facts(contents), "arrays": shapes, "roles": contents.roles}))
        return 0
    screen = console()
    told = [{"fact": name, "value": value} for name, value in facts(contents).items()]
    for rows in (told, array_rows(contents.layer), role_rows(contents.roles)):
        if rows:
            screen.print(plain_table(rows))
    for name, array in arrays if command.pictures else []:
        if array.ndim == 2 and array.size:
            screen.print(picture(name, array))
    return 0


def list_command(command: List) -> int:
    from underhood.experiments.registry import EXPERIMENTS
    from underhood.report.terminal import console, plain_table

    rows = [
        {"name": name, "claim": one.claim}
        | {f"{scale}, min": round(seconds / 60, 1) for scale, seconds in one.budget.items()}
        for name, one in EXPERIMENTS.items()
    ]
    console().print(plain_table(rows))
    print("smoke and quick on two cores, paper on one H200; runs that several share count once.")
    return 0


def reproduce_command(command: Reproduce) -> int:
    from underhood.experiments.registry import EXPERIMENTS, SCALES
    from underhood.experiments.running.rules import DIFFERS
    from underhood.experiments.running.runner import run_all, suggest
    from underhood.report.build import build, is_report
    from underhood.report.terminal import console, details, summary_table, verdict_table
    from underhood.results.files import find
    from underhood.sweeps.commands import engine_of

    for name in command.names:
        if name not in (*EXPERIMENTS, "all"):
            raise BadInput(f"Unknown experiment {name!r}.{suggest(name, EXPERIMENTS)}")
    names = list(EXPERIMENTS) if "all" in command.names else list(dict.fromkeys(command.names))
    if command.scale not in SCALES:
        raise BadInput(f"Unknown scale {command.scale!r}.{suggest(command.scale, SCALES)}")
    if command.seeds is not None and command.seeds < 1:
        raise BadInput(f"--seeds must be at least 1, not {command.seeds}.")
    out = command.out or Path("results") / command.scale
    page = out / "report.html"
    if page.is_file() and not is_report(page):
        raise BadInput(f"{page} is no report of ours; move it, or choose another --out.")
    started = time.monotonic()
    with engine_of(command) as engine:
        results = run_all(
            names,
            command.scale,
            command.seeds,
            out,
            resume=command.resume,
            # In this process a run trains as one, and goes on from its own checkpoints.
            engine=None if command.engine == "local" else engine,
        )
    screen = console()
    for result in results:
        screen.print(details(result, EXPERIMENTS[result["experiment"]].claim))
    screen.print(verdict_table(results))
    screen.print(summary_table(results, names))
    try:
        built = build(find(out), page, renew=names)
        print(f"{built.page}: the page; {out}/NAME/figure.pdf, .svg, .png: figures for print")
    except Exception as error:
        # Results are written by now, and worth more than their pictures.
        print(f"underhood: no report: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"{len(results)} of {len(names)} experiments in {time.monotonic() - started:.0f} s")
    differs = any(result["verdict"] == DIFFERS for result in results)
    return 1 if len(results) < len(names) or (command.strict and differs) else 0


def report_command(command: Report) -> int:
    from underhood.report.build import build, is_report
    from underhood.report.terminal import console, summary_table
    from underhood.results.claims import SECTIONS
    from underhood.results.files import find

    folder = command.folder
    if folder.is_file():
        raise BadInput(f"{folder} is a file; give the folder that underhood reproduce wrote.")
    if not folder.is_dir():
        raise BadInput(f"The folder {folder} does not exist; run underhood reproduce first.")
    found = find(folder)
    if not found.entries and not found.unreadable:
        inside = sorted({path.parent.parent.name for path in folder.glob("*/*/result.json")})
        hint = f"did you mean {folder / inside[0]}?" if inside else "run underhood reproduce."
        if (folder / "result.json").exists():
            hint = f"it is one; did you mean {folder.resolve().parent}?"
        raise BadInput(f"The folder {folder} holds no results; {hint}")
    output = command.output or folder / "report.html"
    if output.is_dir() or not output.parent.is_dir():
        raise BadInput(f"--output {output} is a folder, or lies in one that does not exist.")
    if output.exists() and not is_report(output):
        raise BadInput(f"{output} exists and is not a report; choose another --output.")
    for problem in found.problems:
        print(f"underhood: left out {problem}.", file=sys.stderr)
    built = build(found, output, for_print=command.figures, beside=command.output is None)
    for name, reason in built.without.items():
        print(f"underhood: no figure of {name}: {reason}.", file=sys.stderr)
    known = [section.name for section in SECTIONS]
    names = sorted(
        (one["experiment"] for one in found.results),
        key=lambda name: known.index(name) if name in known else len(known),
    )
    console().print(summary_table(found.results, names))
    if built.figures:
        place = built.figures[0].parent.parent
        print(f"{len(built.figures)} files for print: {place}/NAME/figure.pdf, .svg, .png")
    print(f"{built.page}: {built.size / 1e6:.1f} MB, opens without a network")
    return 0


def sweep_command(command: Sweep) -> int:
    from underhood.report.terminal import console, plain_table
    from underhood.sweeps.commands import cost, engine_of, planned, summary
    from underhood.sweeps.display import Display
    from underhood.sweeps.study_files import load_study
    from underhood.sweeps.sweeping import sweep

    if command.most < 1:
        raise BadInput(f"--most must be at least 1, not {command.most}.")
    study = load_study(command.file)
    out = command.out or Path("results") / command.file.stem
    engine = engine_of(command)
    with engine as opened:
        units = planned(study, out, opened, command.most)
        if command.plan:
            told = [{"unit": str(unit), "students": len(unit.addresses)} for unit in units]
            console().print(plain_table(told) if told else "Nothing is left to do.")
            if units:
                print(cost(study, units))
            return 0
        with Display(len(units)) as display:
            done = sweep(study, out, opened, most=command.most, watch=display)
    for unit, reason in done.failed.items():
        print(f"underhood: {unit} failed: {reason.rstrip('.')}.", file=sys.stderr)
    console().print(plain_table(summary(out, study)))
    units_done = f"{done.done} unit{'' if done.done == 1 else 's'} done"
    print(f"{units_done}, {len(done.failed)} failed, {done.before} students were there")
    print(f"{done.table}: a row per student")
    return 0 if done.complete else 1


HANDLERS: dict[type, Any] = {
    Compile: compile_command,
    Decompile: decompile_command,
    Inspect: inspect_command,
    List: list_command,
    Reproduce: reproduce_command,
    Report: report_command,
    Sweep: sweep_command,
}


if __name__ == "__main__":
    sys.exit(main())
