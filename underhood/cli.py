"""The command line: underhood list | reproduce | report | compile | inspect.

Exit status 0: done; 1: something failed, or with --strict a claim did not hold; 2: bad input,
one line on stderr that says what to change, nothing half-written.
"""

import contextlib
import dataclasses
import difflib
import io
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from underhood.layers.checks import BadInput


@dataclass(frozen=True)
class Compile:
    """Compile attention weights, or a gated RNN, into a recurrent network."""

    source: tyro.conf.Positional[Path]
    """A safetensors file with W_V, W_K, W_Q, or one that underhood wrote."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Where to write the network."""
    target: str = "gated_rnn"
    """gated_rnn, side_gated_rnn, lru, lru_in_out, lru_in_out_mlp, mamba, mamba_block, lstm, gru or
    decayed_attention."""
    form: str | None = None
    """full, compact, low_rank or minimal."""
    dtype: str = "float64"
    """float64 or float32."""
    order: int | None = None
    """Order of the linearisation, where the target needs one."""
    epsilon: float | None = None
    """Scale of the linearisation; chosen for the dtype unless given."""
    layers: int | None = None
    """1 or 2, where the target allows both."""
    activation: str | None = None
    """Of lru_in_out_mlp: gelu, silu, softplus, tanh or relu."""
    seed: int = 0
    """Seed of the sequences on which the error is measured."""
    force: bool = False
    """Replace an existing output file."""
    json: bool = False
    """Print the result as JSON."""


@dataclass(frozen=True)
class Inspect:
    """Show what is in a file: layers, sizes, roles, and a block picture of every matrix."""

    file: tyro.conf.Positional[Path]
    """A safetensors file."""
    pictures: bool = True
    """Draw the matrices."""
    json: bool = False
    """Print the facts as JSON."""


@dataclass(frozen=True)
class List:
    """List the experiments that can be reproduced."""


@dataclass(frozen=True)
class Reproduce:
    """Redo results of the paper and judge them by their rules."""

    names: tyro.conf.Positional[tuple[str, ...]] = ("all",)
    """Experiments, or all."""
    scale: str = "quick"
    """smoke (plumbing only), quick (two CPU cores) or paper."""
    out: Path | None = None
    """Folder for the result files; results/SCALE unless given."""
    seeds: int | None = None
    """Sources or seeds per number; the experiment's own unless given."""
    strict: bool = False
    """Exit with status 1 if a claim differs."""


@dataclass(frozen=True)
class Report:
    """Print the verdicts of the result files in a folder."""

    folder: tyro.conf.Positional[Path]
    """What reproduce wrote."""


Command = (
    Annotated[Compile, tyro.conf.subcommand("compile")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and turn whatever goes wrong into one line and a status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character shows a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    try:
        command = parse(sys.argv[1:] if arguments is None else arguments)
        return HANDLERS[type(command)](command)
    except BadInput as error:
        return complain(str(error), 2)
    except BrokenPipeError:
        # Whoever read our output has left; so do we.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        return complain(f"cannot use{where}: {error.strerror or error}.", 2)
    except KeyboardInterrupt:
        return complain("interrupted.", 130)


def complain(message: str, status: int) -> int:
    """One line on stderr."""
    print(f"underhood: {' '.join(message.split())}", file=sys.stderr)
    return status


def parse(arguments: list[str]) -> Any:
    """The command; a mistake in it becomes one line instead of a framed page."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                Command,
                prog="underhood",
                description="Finds the attention under the hood of recurrent networks.",
                args=arguments,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise BadInput(one_line(said.getvalue(), arguments)) from None


def one_line(framed: str, arguments: list[str]) -> str:
    """The first sentence of a framed message, and the nearest option where one was misspelt."""
    # A title, then parts between rules; terminals without box drawing get rules of hyphens.
    lines = [line.strip(" │╭╮╰╯") for line in framed.splitlines()[1:]]
    lines = lines[1:] if lines and not lines[0].strip("─-") else lines
    rules = [i for i, line in enumerate(lines) if line and not line.strip("─-")]
    told = " ".join(line for line in lines[: rules[0] if rules else None] if line)
    told = told.split(" Got errors:")[0].strip().rstrip(".:")
    named = {kind.__name__.lower(): kind for kind in HANDLERS}
    command = arguments[0] if arguments and arguments[0] in named else None
    if command is None:
        near = difflib.get_close_matches(arguments[0], named, n=1) if arguments else []
    else:
        options = [f"--{field.name}" for field in dataclasses.fields(named[command])]
        wrong = [word.rstrip(",:") for word in told.split() if word.startswith("--")]
        unknown = [word for word in wrong if word not in options]
        near = difflib.get_close_matches(unknown[0], options, n=1) if unknown else []
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"{told}{hint} See underhood{f' {command}' if command else ''} --help."


def compile_command(command: Compile) -> int:
    import jax

    from underhood.constructions import compile
    from underhood.layers.files import check_writable, read, save
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


def inspect_command(command: Inspect) -> int:
    from underhood.layers.describe import array_rows, facts, named_arrays, role_rows
    from underhood.layers.files import read
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
        | {f"{scale}, s": seconds for scale, seconds in one.budget.items()}
        for name, one in EXPERIMENTS.items()
    ]
    console().print(plain_table(rows))
    return 0


def reproduce_command(command: Reproduce) -> int:
    from underhood.experiments.registry import EXPERIMENTS, SCALES
    from underhood.experiments.running import run_all, suggest
    from underhood.experiments.verdicts import DIFFERS
    from underhood.report.terminal import console, details, verdict_table

    names = list(EXPERIMENTS) if "all" in command.names else list(dict.fromkeys(command.names))
    for name in names:
        if name not in EXPERIMENTS:
            raise BadInput(f"Unknown experiment {name!r}.{suggest(name, EXPERIMENTS)}")
    if command.scale not in SCALES:
        raise BadInput(f"Unknown scale {command.scale!r}.{suggest(command.scale, SCALES)}")
    if command.seeds is not None and command.seeds < 1:
        raise BadInput(f"--seeds must be at least 1, not {command.seeds}.")
    out = command.out or Path("results") / command.scale
    if out.exists() and not out.is_dir():
        raise BadInput(f"The output {out} is a file; name a folder.")
    started = time.monotonic()
    results = run_all(names, command.scale, command.seeds, out)
    screen = console()
    for result in results:
        screen.print(details(result, EXPERIMENTS[result["experiment"]].claim))
    screen.print(verdict_table(results))
    print(f"{len(results)} of {len(names)} experiments in {time.monotonic() - started:.0f} s")
    differs = any(result["verdict"] == DIFFERS for result in results)
    return 1 if len(results) < len(names) or (command.strict and differs) else 0


def report_command(command: Report) -> int:
    from underhood.report.results import find
    from underhood.report.terminal import console, verdict_table

    if not command.folder.is_dir():
        raise BadInput(
            f"The folder {command.folder} does not exist; run underhood reproduce first."
        )
    found = find(command.folder)
    for problem in found.problems:
        print(f"underhood: left out {problem}.", file=sys.stderr)
    if not found.results:
        raise BadInput(f"The folder {command.folder} holds no results; run underhood reproduce.")
    console().print(verdict_table(found.results))
    return 0


HANDLERS: dict[type, Any] = {
    Compile: compile_command,
    Inspect: inspect_command,
    List: list_command,
    Reproduce: reproduce_command,
    Report: report_command,
}
