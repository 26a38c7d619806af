"""From words to a command: tyro reads them, and one line says what is wrong with them."""

import contextlib
import dataclasses
import importlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union

import tyro

from underhood.cli.commands import COMMANDS
from underhood.common.errors import BadInput, check_name, did_you_mean
from underhood.common.files import check_regular

if TYPE_CHECKING:
    from underhood.sweeps.engines import Engine
    from underhood.training.deadline import Deadline

Value = TypeVar("Value")
# An option that may be left out; help says what happens then.
Maybe = tyro.conf.DisallowNone[Annotated[Value | None, tyro.conf.arg(help_behavior_hint="")]]


OPTIONS_OF_DASK = ("address", "jobqueue", "needs", "insecure", "tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that choose where students are trained."""

    engine: str = "local"
    """local (train in this process), processes (train in several of this machine), dask, or stored
    (train nothing: read what was trained before, and judge it again)."""
    workers: Maybe[int] = None
    """processes: how many share the device; dask: start this many workers on this machine."""
    address: Maybe[str] = None
    """dask: use a running scheduler, tls://HOST:PORT or tcp://127.0.0.1:PORT."""
    jobqueue: Maybe[Path] = None
    """dask: start workers as jobs of Slurm, PBS or others, configured by this YAML file
    (docs/cluster.md)."""
    needs: Maybe[str] = None
    """dask: use only workers that advertise this resource (gpu, cpu, or a custom name)."""
    insecure: bool = False
    """dask: allow connections without TLS that other machines can reach."""
    tls_ca: Maybe[str] = None
    """dask: file with the certificate of the authority."""
    tls_cert: Maybe[str] = None
    """dask: file with the certificate of this process."""
    tls_key: Maybe[str] = None
    """dask: file with the key of this process."""

    def opened_engine(
        self, deadline: "Deadline | None" = None, *, may_read: bool = True
    ) -> contextlib.AbstractContextManager["Engine"]:
        """Return the engine that these options ask for, to be entered.

        deadline  when training stops; None: never
        may_read  whether the command has a use for the engine that only reads
        """
        from underhood.sweeps.engines import Local, Stored
        from underhood.sweeps.processes import Processes

        engines = ("local", "processes", "dask", *(["stored"] if may_read else []))
        check_name("engine", self.engine, engines)
        takers = dict.fromkeys(OPTIONS_OF_DASK, "dask") | {"workers": "processes or dask"}
        if deadline is not None and self.engine in ("dask", "stored"):
            raise BadInput("--stop-after is for --engine local or processes; leave it out.")
        for name, taker in takers.items():
            if getattr(self, name) not in (None, False) and self.engine not in taker:
                option = name.replace("_", "-")
                raise BadInput(f"--{option} is for --engine {taker}; add that, or leave it out.")
        if self.engine == "local":
            return contextlib.nullcontext(Local(deadline))
        if self.engine == "stored":
            return contextlib.nullcontext(Stored())
        if self.engine == "processes":
            if self.workers is None:
                raise BadInput("--engine processes needs --workers, the number of processes.")
            return Processes(self.workers, deadline).opened()
        # Here, because dask.distributed is an extra.
        from underhood.sweeps.dask.certificates import TLSFiles
        from underhood.sweeps.dask.cluster import Cluster
        from underhood.sweeps.dask.queueing import Queue

        return Cluster(
            count=self.workers,
            address=self.address,
            queue=None if self.jobqueue is None else Queue.read(self.jobqueue),
            insecure=self.insecure,
            tls=TLSFiles(self.tls_ca, self.tls_cert, self.tls_key),
            needs=self.needs,
        ).opened()


def check_writable(path: Path, *, replace: bool) -> None:
    """Refuse an output that exists or cannot be written, before any work is done."""
    check_regular(path)
    if path.exists() and not replace:
        raise BadInput(f"The output {path} exists; add --force to replace it.")
    if not path.parent.is_dir():
        raise BadInput(f"The folder {path.parent} does not exist; make it first.")
    try:
        # The system says whether it lets us: some folders only look as if they could be written to.
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError:
        raise BadInput(f"The folder {path.parent} cannot be written to.") from None


# What tyro calls the kinds of values, and what we call them.
VALUE_KINDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path"}


def parse(words: list[str]) -> Callable[[], int] | None:
    """Return what runs the command in the words; None if they ask for help, now printed."""
    kind: Any
    if (name := words[0]) in COMMANDS:
        kind, program, rest = command_class(name), f"underhood {name}", words[1:]
    else:
        # Options of tyro itself, which write completion for shells, need the type of any command.
        kinds = [Annotated[command_class(each), tyro.conf.subcommand(each)] for each in COMMANDS]
        kind, program, rest = Union[tuple(kinds)], "underhood", words  # noqa: UP007
    config = (tyro.conf.PositionalMetavarFromFieldName,)
    try:
        # What tyro prints on stderr is replaced by our line.
        with contextlib.redirect_stderr(io.StringIO()), refusals_heard(kind, program):
            does = COMMANDS.get(name)
            command = tyro.cli(kind, prog=program, description=does, args=rest, config=config)
    except SystemExit as end:
        if end.code:
            raise BadInput(f"{program} cannot read this. See {program} --help.") from None
        return None
    except AssertionError as error:
        # A shell that tyro does not know.
        raise BadInput(f"{error}. See {program} --help.") from None
    return command.run


def command_class(name: str) -> type:
    return getattr(importlib.import_module(f"underhood.cli.{name}"), name.capitalize())


def refusals_heard(kind: type, program: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which BadInput with the reason is raised for whatever tyro refuses.

    tyro's hook is private. If a version has changed it, `parse` gives a general line instead.
    """
    try:
        from tyro._errors import on_parse_error
    except ImportError:
        return contextlib.nullcontext()

    def raise_reason(event: object) -> None:
        with contextlib.suppress(AttributeError, TypeError):
            raise BadInput(f"{reason_in_words(event, kind)} See {program} --help.")

    return on_parse_error(raise_reason)


def reason_in_words(event: Any, kind: type) -> str:  # Any: one of several private classes of tyro
    unknown = [*getattr(event, "tokens", ()), *getattr(event, "unrecognized_tokens", ())]
    if unknown and not unknown[0].startswith("-"):
        return f"Unexpected argument {unknown[0]!r}."
    if unknown:
        option = unknown[0].partition("=")[0]
        known = [field.name.replace("_", "-") for field in dataclasses.fields(kind)]
        known = [f"--{negation}{name}" for negation in ("", "no-") for name in known]
        return f"Unknown option {option}.{did_you_mean(option, known)}"
    if hasattr(event, "missing_arguments"):
        return f"Missing {' and '.join(spelled(item.arg) for item in event.missing_arguments)}."
    wanted = VALUE_KINDS.get(event.argument.lowered.metavar, "a value")
    return f"{spelled(event.argument)} needs {wanted}."


def spelled(argument: Any) -> str:  # Any: a private class of tyro
    """Return an argument as help shows it: --output PATH, or SOURCE."""
    lowered = argument.lowered
    return lowered.metavar if argument.is_positional() else "/".join(lowered.name_or_flags)
