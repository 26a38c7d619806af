"""The command as a process: how it starts, what it imports, and how Ctrl-C and a pipe end it."""

import ast
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import jax
import pytest

import underhood as uh
from underhood.cli.arguments import command_class
from underhood.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
# Tests that run in the background have SIGINT ignored, and so has what they start. The imports
# are Python's own start: what happens before `main` is not ours.
START = """
import signal, sys
from underhood.cli.entry import main
signal.signal(signal.SIGINT, signal.default_int_handler)
# setup
print("ready", flush=True)
sys.exit(main())
"""


def run(*words: str, code: str = "") -> subprocess.CompletedProcess:
    start = ["-c", code] if code else ["-m", "underhood"]
    return subprocess.run(
        [sys.executable, *start, *words], capture_output=True, text=True, timeout=60
    )


def test_help_names_every_command_and_fits_a_terminal_and_a_shell_completes_them() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)
    assert max(map(len, done.stdout.splitlines())) <= 92
    done = run("--tyro-print-completion", "bash")
    assert done.returncode == 0 and "decompile" in done.stdout


def test_the_version_has_one_source_and_the_installed_command_is_main() -> None:
    assert run("--version").stdout == f"underhood {uh.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]
    assert project["scripts"] == {"underhood": "underhood.cli.entry:main"}


IMPORTED = """
import sys
from underhood.cli.entry import main
sys.stdout = open("/dev/null", "w")
main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("words", ["--help", "", "compil", "list --help", "sweep --help"])
def test_help_imports_nothing_heavy(words: str) -> None:
    modules = run(*words.split(), code=IMPORTED).stderr.split()
    assert not {"jax", "numpy", "rich", "pandas"} & set(modules)
    loaded = {name for name in COMMANDS if f"underhood.cli.{name}" in modules}
    command = words.partition(" --help")[0]
    assert loaded == ({command} & set(COMMANDS))
    assert ("tyro" in modules) == bool(loaded)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_frozen_dataclass_with_a_file_of_its_own(name: str) -> None:
    kind = command_class(name)
    assert kind.__dataclass_params__.frozen and callable(kind.run)
    home = ROOT / "underhood" / "cli" / name
    # A command with a folder of its own has its class in command.py.
    file = home / "command.py" if home.is_dir() else home.with_suffix(".py")
    tree = ast.parse(file.read_text())
    assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)] == [kind.__name__]


@pytest.mark.parametrize("words", ["--help", "list"])
def test_a_pipe_that_closes_is_no_traceback(words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "underhood", words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("start")
    uh.save(made / "lstm.safetensors", uh.LSTM.init(d_in=2, hidden=2, key=jax.random.key(0)))
    return made


@pytest.fixture
def interrupted(folder):
    """Start a command and check how it ends after Ctrl-C, pressed after each of the pauses."""

    def check(words: str, *pauses: float, setup: str = "") -> int:
        with subprocess.Popen(
            [sys.executable, "-c", START.replace("# setup", setup), *words.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        ) as process:
            assert process.stdout.readline() == "ready\n"
            for pause in pauses:
                time.sleep(pause)
                process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
        # Progress of experiments is on stderr too.
        progress = re.compile(r"(?!underhood)[a-z0-9_]+: ")
        lines = [line for line in said.splitlines() if not progress.match(line)]
        kept = "; finished work is kept; continue with --resume" if "reproduce" in words else ""
        message = [f"underhood: interrupted{kept}."]
        assert (process.returncode, lines) in [(130, message), (0, [])]
        return process.returncode

    return check


# A second Ctrl-C comes from one who is impatient.
@pytest.mark.parametrize("pauses", [(0.02,), (0.5,), (1.5,), (2.5,), (0.7, 0.01), (1.8, 0.1)])
def test_an_interrupt_is_one_line_and_status_130(pauses, interrupted) -> None:
    assert interrupted("reproduce all --scale smoke --out new", *pauses) == 130
    # This may have finished by then.
    interrupted("inspect lstm.safetensors", *pauses)


INTERRUPT = """
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "{module}":
            import os
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize("module", ["underhood.cli.ending", "tyro", "numpy", "jaxlib._jax"])
def test_an_interrupt_in_an_import_is_heard(module: str, interrupted) -> None:
    setup = INTERRUPT.format(module=module)
    assert interrupted("inspect lstm.safetensors", setup=setup) == 130
