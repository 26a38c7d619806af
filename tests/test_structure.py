"""The package's shape: who imports whom, the public names, what files say, a fast start."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import underhood

PACKAGE = Path(underhood.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Imports point one way. A folder may always import itself; "underhood" is the package itself,
# `import underhood`, which holds the names of the folders that its __init__ may import.
ALLOWED = {"common": set(), "layers": {"common"}}
ALLOWED["constructions"] = ALLOWED["tasks"] = {"common", "layers"}
ALLOWED["bridges"] = {"common", "layers", "constructions"}
ALLOWED["training"] = {"common", "layers", "tasks"}
ALLOWED["recall"] = {"common", "layers", "constructions", "tasks"}
ALLOWED["analysis"] = {"common", "layers", "constructions", "tasks", "training"}
ALLOWED["sweeps"] = {*ALLOWED["analysis"], "analysis"}
ALLOWED["underhood"] = {*ALLOWED["sweeps"], "sweeps", "bridges", "recall"}
ALLOWED["planting"] = {"common", "layers", "constructions", "bridges"}
ALLOWED["results"] = {"common"}
ALLOWED["report"] = {"common", "results"}
ALLOWED["experiments"] = {*ALLOWED["sweeps"], "sweeps", "recall", "underhood", "results"}
ALLOWED["cli"] = {*ALLOWED["experiments"], "experiments", "report", "bridges", "planting"}
ALLOWED["__main__"] = {"cli"}

# Inside analysis too; its __init__ alone imports from all of them.
ANALYSIS = {"arguments": set(), "forms": {"arguments"}}
ANALYSIS["reading"] = ANALYSIS["scoring"] = {"arguments", "forms"}
ANALYSIS["shrinking"] = ANALYSIS["decompilation"] = {"arguments", "forms", "reading"}

# Packages that only one folder may know.
DASK = ("dask", "distributed", "dask_jobqueue")

PUBLIC = sorted(
    [
        *("LinearAttention", "MultiHead", "GatedRNN", "SideGatedRNN", "DenseGatedRNN", "Layer"),
        *("LRU", "LRUInOut", "LRUInOutMLP", "LSTM", "GRU", "Mamba", "MambaBlock", "Stack"),
        *("Affine", "linear_recurrence", "stream", "save", "load", "BadInput"),
        *("compile", "Construction", "Role", "ImpossibleConstruction", "can", "AtlasAnswer"),
        *("attention_from_linear_rnn", "tasks", "recall", "train", "Recipe", "Adam", "Cosine"),
        *("Run", "Mamba2", "DeltaNet", "GatedDeltaNet", "KDA", "GLA", "RetNet", "Lightning"),
        *("HGRN2", "RWKV6", "RWKV7", "MLSTM", "RGLRU", "MinGRU", "JambaBlock"),
        *("fit", "Fit", "Shrinking"),
        *("sweep", "Study", "decompile", "Decompilation", "Certificate", "roles"),
        *("prune", "Pruned", "merge", "Merged", "polish", "Polished", "reduce", "Reduced"),
        *("polynomial", "Polynomial", "moment_form", "MomentForm", "probe", "Probes"),
        *("attention_score", "AttentionScore", "attention_map", "AttentionMap"),
        *("from_state_dict", "to_state_dict", "from_torch", "to_torch", "trace"),
    ]
)


# --- imports


def part_of(path):
    """The folder (or top-level module) that a file of the package belongs to."""
    first = path.parts[0]
    return "underhood" if first == "__init__.py" else first.removesuffix(".py")


def imported(tree, path):
    """Every module or name that a file imports, at its top or inside a function, dotted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            if node.level:
                here = ("underhood", *path.parts)
                start = ".".join([*here[: len(here) - node.level], *filter(None, [start])])
            yield from (f"{start}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            function = getattr(node.func, "attr", getattr(node.func, "id", None))
            argument = node.args[0]
            if function in ("import_module", "__import__") and isinstance(argument, ast.Constant):
                yield str(argument.value)


def violations(source, path):
    """What a file, named by its path inside the package, imports and must not."""
    here, problems = part_of(path), []
    inside = path.parts[1].removesuffix(".py") if here == "analysis" else "__init__"
    for name in imported(ast.parse(source), path):
        root, first, second = (*name.split("."), "", "")[:3]
        if root in DASK and path.parts[:2] != ("sweeps", "dask"):
            problems.append(f"{path} imports {name}; only sweeps/dask may")
        if root != "underhood":
            continue
        # `from underhood import load` reads a name of the package, not one of its parts.
        target = first if first in ALLOWED else "underhood"
        if target not in ALLOWED[here] | {here}:
            problems.append(f"{path} imports {name}; {here} may import {sorted(ALLOWED[here])}")
        if inside != "__init__" and target == "analysis":
            allowed = ANALYSIS[inside] | {inside}
            if second not in allowed:
                problems.append(f"{path} imports {name}; {inside} may import {sorted(allowed)}")
    return problems


@pytest.mark.parametrize("path", [source.relative_to(PACKAGE) for source in SOURCES], ids=str)
def test_files_say_what_they_are_and_imports_point_one_way(path):
    source = (PACKAGE / path).read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source))
    assert (PACKAGE / path).with_name("__init__.py").exists()
    assert part_of(path) in ALLOWED, "a new part of the package: say here what it may import"
    assert violations(source, path) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("layers/gru.py", "import underhood.constructions"),
        ("layers/gru.py", "import numpy, underhood.training.recipes as recipes"),
        ("layers/gru.py", "from underhood import training"),
        ("layers/gru.py", "from underhood.analysis.reading.neuron_roles import roles"),
        ("layers/gru.py", "import underhood as uh"),
        ("layers/gru.py", "from underhood import load"),
        ("layers/gru.py", "from ..tasks import TeacherStudent"),
        ("layers/gru.py", "from .. import tasks"),
        ("layers/gru.py", "def later():\n    from underhood.cli import main"),
        ("layers/gru.py", "import importlib\nimportlib.import_module('underhood.report')"),
        ("constructions/targets/gru.py", "from underhood.tasks import TeacherStudent"),
        ("tasks/recall.py", "from underhood.constructions import compile"),
        ("training/recipes.py", "from underhood.constructions import compile"),
        ("training/recipes.py", "from underhood.analysis import prune"),
        ("recall/building.py", "from underhood.training import train"),
        ("constructions/target.py", "from underhood.recall import build"),
        ("analysis/shrinking/pruning.py", "from underhood.experiments import registry"),
        ("analysis/shrinking/pruning.py", "from underhood.bridges import torch"),
        ("bridges/torch.py", "from underhood.training import train"),
        ("report/page.py", "from underhood.layers import load"),
        ("report/page.py", "import underhood"),
        ("results/files.py", "from underhood.training import Run"),
        ("common/errors.py", "from underhood.layers import Layer"),
        ("experiments/paper/table1.py", "from underhood.cli import main"),
        ("experiments/paper/table1.py", "from underhood.report import page"),
        ("__init__.py", "from underhood.experiments import registry"),
        ("sweeps/engines.py", "def later():\n    import distributed"),
        ("sweeps/engines.py", "from dask_jobqueue import SLURMCluster"),
        ("cli/sweep.py", "from distributed.client import Client"),
        ("common/keys.py", "import importlib\nimportlib.import_module('distributed')"),
        ("analysis/reading/probes.py", "from underhood.analysis.shrinking.merging import merge"),
        ("analysis/forms/norms.py", "from ..reading import probes"),
        ("analysis/scoring/scores.py", "from underhood.analysis.decompilation import nearest"),
        ("analysis/decompilation/lags.py", "import underhood.analysis.shrinking.pruning"),
        ("analysis/shrinking/pruning.py", "from underhood.analysis import decompile"),
    ],
)
def test_the_import_check_catches(path, source):
    assert len(violations(source, Path(path))) == 1


def test_the_import_check_lets_pass():
    for path, source in (
        ("layers/gru.py", "import jax\nfrom underhood.layers.base.layer import Layer"),
        ("layers/gru.py", "from .base import layer\nfrom . import gru"),
        ("layers/gru.py", "import underhood_extras.training"),
        ("training/recipes.py", "from underhood.tasks import TeacherStudent\nimport optax"),
        ("analysis/shrinking/pruning.py", "from underhood.training import train"),
        ("experiments/paper/table1.py", "import underhood\nfrom underhood.analysis import prune"),
        ("report/page.py", "from underhood.results.files import find"),
        ("recall/building.py", "from underhood.constructions import compile"),
        ("cli/report.py", "from underhood import bridges, experiments, report"),
        ("sweeps/dask/worker.py", "import distributed, cloudpickle"),
        ("analysis/__init__.py", "from underhood.analysis.shrinking.pruning import prune"),
        ("analysis/shrinking/pruning.py", "from underhood.analysis.reading.probes import probe"),
        ("analysis/scoring/scores.py", "from underhood.analysis.forms.norms import norm"),
    ):
        assert violations(source, Path(path)) == [], path


# --- public names


def test_public_names_are_exactly_these_for_type_checkers_too():
    assert underhood.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(underhood))
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert sorted(alias.asname for node in imports for alias in node.names) == PUBLIC
    # Modules do not count: Python puts the folders that were imported beside the names.
    values = {name: value for name, value in vars(underhood).items() if not name.startswith("_")}
    assert {name for name, value in values.items() if not inspect.ismodule(value)} <= set(PUBLIC)


def test_names_that_are_not_there_are_refused():
    for name in ("complie", "_private", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"'underhood' has no attribute '{name}'"):
            getattr(underhood, name)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name):
    value = getattr(underhood, name)
    # Its own words: not an ancestor's, and not the signature that a dataclass writes for itself.
    documentation = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    assert documentation
    assert not documentation.startswith(f"{name}(")


# --- start


# A fresh interpreter, because the tests have imported all kinds of things by now.
@pytest.mark.parametrize(
    ("use", "heavy"),
    [
        ("underhood", ["jax", "numpy", "typing", "equinox"]),
        ("underhood.compile", ["matplotlib", "pandas", "optax", "tyro", "torch", "sympy"]),
        ("underhood.train", ["matplotlib", "pandas", "tyro", "torch", "sympy"]),
        ("from underhood import *; assert compile is underhood.compile and tasks.Task", []),
    ],
)
def test_a_use_of_the_package_imports_only_what_it_needs(use, heavy):
    script = f"import sys, underhood; {use}; print([x for x in {heavy} if x in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")
