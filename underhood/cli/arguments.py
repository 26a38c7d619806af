"""From words to a command: tyro reads them, and one line says what is wrong with them."""

import contextlib
import dataclasses
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union

import tyro

from underhood.cli.commands import COMMANDS, suggestion
from underhood.common.errors import BadInput

Value = TypeVar("Value")
# An option that may be left out; help says what happens then.
Maybe = tyro.conf.DisallowNone[Annotated[Value | None, tyro.conf.arg(help_behavior_hint="")]]


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that choose where students are trained."""

    engine: str = "local"
    """local (train in this process) or dask."""
    workers: Maybe[int] = None
    """dask: start this many workers on this machine."""
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


# What tyro calls the kinds of values, and what we call them.
VALUE_KINDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path"}


def parse(words: list[str]) -> Callable[[], int] | None:
    """Return what runs the command in the words; None if they ask for help, now printed."""
    name = words[0]
    kind: Any = command_class(name) if name in COMMANDS else every_command()
    program = f"underhood {name}" if name in COMMANDS else "underhood"
    try:
        # What tyro prints on stderr is replaced by our line.
        with contextlib.redirect_stderr(io.StringIO()), refusals_heard(kind, program):
            command = tyro.cli(
                kind,
                prog=program,
                description=COMMANDS.get(name),
                args=words[1:] if name in COMMANDS else words,
                config=(tyro.conf.PositionalMetavarFromFieldName,),
            )
    except SystemExit as end:
        if end.code:
            raise BadInput(f"{program} cannot read this. See {program} --help.") from None
        return None
    except AssertionError as error:
        # A shell that tyro does not know.
        raise BadInput(f"{error}. See {program} --help.") from None
    return command.run


def command_class(name: str) -> type:
    """Return the class of the command with this name."""
    return getattr(importlib.import_module(f"underhood.cli.{name}"), name.capitalize())


def every_command() -> object:
    """Return the type of any command, for tyro's own options: they write completion for shells."""
    kinds = [Annotated[command_class(name), tyro.conf.subcommand(name)] for name in COMMANDS]
    return Union[tuple(kinds)]  # noqa: UP007


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
    """Return one sentence about what tyro refused in the words for a command."""
    unknown = [*getattr(event, "tokens", ()), *getattr(event, "unrecognized_tokens", ())]
    if unknown and not unknown[0].startswith("-"):
        return f"Unexpected argument {unknown[0]!r}."
    if unknown:
        option = unknown[0].partition("=")[0]
        known = [field.name.replace("_", "-") for field in dataclasses.fields(kind)]
        known = [f"--{negation}{name}" for negation in ("", "no-") for name in known]
        return f"Unknown option {option}{suggestion(option, known)}"
    if hasattr(event, "missing_arguments"):
        return f"Missing {' and '.join(spelled(item.arg) for item in event.missing_arguments)}."
    wanted = VALUE_KINDS.get(event.argument.lowered.metavar, "a value")
    return f"{spelled(event.argument)} needs {wanted}."


def spelled(argument: Any) -> str:  # Any: a private class of tyro
    """Return an argument as help shows it: --output PATH, or SOURCE."""
    lowered = argument.lowered
    return lowered.metavar if argument.is_positional() else "/".join(lowered.name_or_flags)
