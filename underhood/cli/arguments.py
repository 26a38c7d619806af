"""The words of the command line: what every command takes, and one line for what is misspelt."""

import contextlib
import dataclasses
import difflib
import io
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from underhood.common.errors import BadInput


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
class Decompile:
    """Find the attention that a gated RNN computes; status 1 where there is none."""

    source: tyro.conf.Positional[Path]
    """A safetensors file with a GatedRNN or a SideGatedRNN."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Where to write the attention; printed only unless given."""
    tolerance: float = 1e-3
    """The share of the function that may be left over for it to count as attention."""
    biases: str = "auto"
    """Whether the attention may have biases: auto (only where they pay), yes or no."""
    radius: float = 2.0
    """Bound the difference for tokens up to this norm."""
    time: int = 32
    """Bound the difference up to this many tokens; the residual is always stated at 32."""
    pictures: bool = True
    """Draw the recovered matrices."""
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


@dataclass(frozen=True, kw_only=True)
class Engines:
    """Where students are trained."""

    engine: str = "local"
    """local (in this process) or dask."""
    workers: int | None = None
    """dask: start so many workers on this machine."""
    address: str | None = None
    """dask: a scheduler that is running, tls://HOST:PORT or tcp://127.0.0.1:PORT."""
    jobqueue: Path | None = None
    """dask: workers as jobs of Slurm, PBS and the like, as a YAML file says (docs/cluster.md)."""
    needs: str | None = None
    """dask: train on workers that offer this alone: gpu, cpu, or a name of your own."""
    insecure: bool = False
    """dask: allow connections that others can reach without TLS."""
    tls_ca: str | None = None
    """dask: the authority's certificate."""
    tls_cert: str | None = None
    """dask: our certificate."""
    tls_key: str | None = None
    """dask: our key."""


@dataclass(frozen=True, kw_only=True)
class Reproduce(Engines):
    """Redo results of the paper and judge them by their rules."""

    names: tyro.conf.Positional[tuple[str, ...]] = ("all",)
    """Experiments, or all."""
    scale: str = "quick"
    """smoke (plumbing only), quick (two CPU cores) or paper."""
    out: Path | None = None
    """Folder for the result files; results/SCALE unless given."""
    seeds: int | None = None
    """Sources or seeds per number; the experiment's own unless given."""
    resume: bool = False
    """Keep results that this commit wrote before, and continue runs that were interrupted."""
    strict: bool = False
    """Exit with status 1 if a claim differs."""


@dataclass(frozen=True)
class Report:
    """Turn the result files in a folder into one page, and into figures for print."""

    folder: tyro.conf.Positional[Path]
    """What reproduce wrote."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Where to write the page; FOLDER/report.html unless given."""
    figures: bool = True
    """Also draw figures for print, as PDF, SVG and PNG: FOLDER/NAME/figure.*, or beside the page
    in PAGE_figures where an output is given."""


@dataclass(frozen=True, kw_only=True)
class Sweep(Engines):
    """Train the students of a study of your own; what is finished is never done again."""

    file: tyro.conf.Positional[Path]
    """A Python file that ends with study = Study(...)."""
    out: Path | None = None
    """Folder for what is found; results/FILE unless given."""
    most: int = 256
    """Most students of a work unit."""
    plan: bool = False
    """Only say what would be done."""


Command = (
    Annotated[Compile, tyro.conf.subcommand("compile")]
    | Annotated[Decompile, tyro.conf.subcommand("decompile")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
)

COMMANDS = (Compile, Decompile, Inspect, List, Reproduce, Report, Sweep)


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
    named = {kind.__name__.lower(): kind for kind in COMMANDS}
    command = arguments[0] if arguments and arguments[0] in named else None
    if command is None:
        near = difflib.get_close_matches(arguments[0], named, n=1) if arguments else []
    else:
        fields = dataclasses.fields(named[command])
        options = [f"--{field.name}" for field in fields]
        options += [f"--no-{field.name}" for field in fields if isinstance(field.default, bool)]
        wrong = [word.rstrip(",:") for word in told.split() if word.startswith("--")]
        unknown = [word for word in wrong if word not in options]
        near = difflib.get_close_matches(unknown[0], options, n=1) if unknown else []
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"{told}{hint} See underhood{f' {command}' if command else ''} --help."


def complain(message: str, status: int) -> int:
    """One line on stderr."""
    print(f"underhood: {' '.join(message.split())}", file=sys.stderr)
    return status


def interrupted(words: list[str], leave: bool) -> int:
    """What to say after Ctrl-C; with `leave`, the end of the process."""
    if leave:
        # Asked once is enough.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    kept = "; what is done is kept, and --resume goes on" if "reproduce" in words else ""
    status = complain(f"interrupted{kept}.", 130)
    if leave:
        # Threads that compile cannot be stopped: Python would wait for them, or die of them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
