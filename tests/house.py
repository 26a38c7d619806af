"""The state of the house: sizes of folders and files, names, variables, and types.

    python tests/house.py [FOLDER]    print what breaks a rule, and totals; status 1 if any does

Rules
    at most 14 Python files in a folder; 300 lines in a file of the package, 450 in a test
    a top-level name is defined in one module of the package
    no variable or argument is called one, found, own or told
    `Any` in a public signature or field has its reason in a comment on that line, or above it
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "underhood"
FOLDERS = ("underhood", "tests", "benchmarks", "examples", "docs")
MOST_FILES, MOST_LINES, MOST_TEST_LINES = 14, 300, 450
EMPTY_NAMES = {"one", "found", "own", "told"}
# A function registered for a type has no name of its own.
NAMELESS = {"_", "__all__", "__getattr__", "__dir__"}


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def crowded_folders() -> Iterator[str]:
    counts = Counter(path.parent for path in python_files(*FOLDERS))
    for folder, count in sorted(counts.items()):
        if count > MOST_FILES:
            yield f"{folder.relative_to(ROOT)}: {count} files, at most {MOST_FILES}"


def long_files() -> Iterator[str]:
    for path in python_files("underhood", "tests"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        most = MOST_LINES if path.is_relative_to(PACKAGE) else MOST_TEST_LINES
        if lines > most:
            yield f"{path.relative_to(ROOT)}: {lines} lines, at most {most}"


def top_level_names(tree: ast.Module) -> set[str]:
    """Names that a module defines: functions, classes, constants and types."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        for target in targets if isinstance(node, ast.Assign | ast.AnnAssign) else []:
            names |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names - NAMELESS


def shared_names() -> Iterator[str]:
    homes = defaultdict(list)
    for path in python_files("underhood"):
        for name in top_level_names(ast.parse(path.read_text(encoding="utf-8"))):
            homes[name].append(str(path.relative_to(PACKAGE)))
    for name, modules in sorted(homes.items()):
        if len(modules) > 1:
            yield f"{name}: defined in {', '.join(modules)}"


def empty_names() -> Iterator[str]:
    for path in python_files(*FOLDERS):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if stored else node.arg if isinstance(node, ast.arg) else None
            if name in EMPTY_NAMES:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}"


def public_annotations(body: list[ast.stmt], *, fields: bool) -> Iterator[ast.expr]:
    """Annotations of public functions, and inside classes of methods and fields."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_annotations(node.body, fields=True)
        elif fields and isinstance(node, ast.AnnAssign):
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and (
            node.name in ("__init__", "__call__") or not node.name.startswith("_")
        ):
            given = node.args
            arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            arguments += [extra for extra in (given.vararg, given.kwarg) if extra]
            yield from (argument.annotation for argument in arguments if argument.annotation)
            if node.returns:
                yield node.returns


def bare_any() -> Iterator[str]:
    for path in python_files("underhood"):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for annotation in public_annotations(ast.parse(text).body, fields=False):
            names = {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)}
            beside = lines[annotation.lineno - 1], lines[annotation.lineno - 2]
            reason = "#" in beside[0] or beside[1].strip().startswith("#")
            if "Any" in names and not reason:
                yield f"{path.relative_to(ROOT)}:{annotation.lineno}: {beside[0].strip()[:80]}"


RULES = {
    "folders with too many files": crowded_folders,
    "files that are too long": long_files,
    "names defined in two modules": shared_names,
    "variables whose name says nothing": empty_names,
    "Any without a reason": bare_any,
}


def lines_in(folder: str) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in python_files(folder))


def main(only: str = "") -> int:
    broken = 0
    for rule, check in RULES.items():
        problems = [problem for problem in check() if only in problem]
        broken += len(problems)
        print(f"{rule}: {len(problems)}")
        for problem in problems:
            print(f"  {problem}")
    for folder in FOLDERS:
        print(f"{folder}: {lines_in(folder):,} lines in {len(python_files(folder))} files")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
