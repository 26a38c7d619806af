"""The state of the house: sizes of folders and files, names, variables, and types.

    python benchmarks/house.py [FOLDER]    print what breaks a rule, and totals; status 1 if any

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
FOLDERS = ("underhood", "tests", "benchmarks", "examples", "docs")
MOST_FILES, MOST_LINES, MOST_TEST_LINES = 14, 300, 450
EMPTY_NAMES = {"one", "found", "own", "told"}
# A function registered for a type has no name of its own.
NAMELESS = {"_", "__all__", "__getattr__", "__dir__"}


def sources(root: Path, *folders: str) -> Iterator[tuple[str, str]]:
    """Yield the path, from the root, and the text of every Python file in the folders."""
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def crowded_folders(root: Path) -> Iterator[str]:
    counts = Counter(path.rpartition("/")[0] for path, _ in sources(root, *FOLDERS))
    for folder, count in sorted(counts.items()):
        if count > MOST_FILES:
            yield f"{folder}: {count} files, at most {MOST_FILES}"


def long_files(root: Path) -> Iterator[str]:
    for path, text in sources(root, "underhood", "tests"):
        lines = len(text.splitlines())
        most = MOST_LINES if path.startswith("underhood/") else MOST_TEST_LINES
        if lines > most:
            yield f"{path}: {lines} lines, at most {most}"


def top_level_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield names that a module defines: functions, classes, constants and types."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in getattr(node, "targets", [getattr(node, "target", None)]):
                yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            yield from top_level_names([*node.body, *node.orelse])


def shared_names(root: Path) -> Iterator[str]:
    homes = defaultdict(list)
    for path, text in sources(root, "underhood"):
        for name in set(top_level_names(ast.parse(text).body)) - NAMELESS:
            homes[name].append(path.removeprefix("underhood/"))
    for name, modules in sorted(homes.items()):
        if len(modules) > 1:
            yield f"{name}: defined in {', '.join(modules)}"


def empty_names(root: Path) -> Iterator[str]:
    for path, text in sources(root, *FOLDERS):
        for node in ast.walk(ast.parse(text)):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if stored else node.arg if isinstance(node, ast.arg) else None
            if isinstance(node, ast.ExceptHandler):
                name = node.name
            if name in EMPTY_NAMES:
                yield f"{path}:{node.lineno}: {name}"


def public_annotations(body: list[ast.stmt], *, fields: bool = False) -> Iterator[ast.expr]:
    """Yield annotations of public functions, and inside classes of methods and fields."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_annotations(node.body, fields=True)
        elif fields and isinstance(node, ast.AnnAssign):
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.name in ("__init__", "__call__") or not node.name.startswith("_")
        ):
            given = node.args
            arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            arguments += [extra for extra in (given.vararg, given.kwarg) if extra]
            yield from (argument.annotation for argument in arguments if argument.annotation)
            if node.returns:
                yield node.returns


def names_in(annotation: ast.expr) -> Iterator[str]:
    """Yield the names in an annotation, also in those that are written as strings."""
    for part in ast.walk(annotation):
        if isinstance(part, ast.Name | ast.Attribute):
            yield part.id if isinstance(part, ast.Name) else part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield from part.value.replace("[", " ").replace("]", " ").replace(",", " ").split()


def bare_any(root: Path) -> Iterator[str]:
    for path, text in sources(root, "underhood"):
        lines = text.splitlines()
        for annotation in public_annotations(ast.parse(text).body):
            above, line = lines[annotation.lineno - 2], lines[annotation.lineno - 1]
            reason = "#" in line or above.strip().startswith("#")
            if "Any" in names_in(annotation) and not reason:
                yield f"{path}:{annotation.lineno}: {line.strip()[:80]}"


RULES = {
    "folders with too many files": crowded_folders,
    "files that are too long": long_files,
    "names defined in two modules": shared_names,
    "variables whose name says nothing": empty_names,
    "Any without a reason": bare_any,
}


def broken_rules(root: Path, only: str = "") -> dict[str, list[str]]:
    """Return what breaks each rule, or of that what mentions a folder."""
    return {
        rule: [problem for problem in check(root) if only in problem]
        for rule, check in RULES.items()
    }


def main(only: str = "") -> int:
    broken = broken_rules(ROOT, only)
    for rule, problems in broken.items():
        print(f"{rule}: {len(problems)}", *problems, sep="\n  ")
    for folder in FOLDERS:
        counts = [len(text.splitlines()) for _, text in sources(ROOT, folder)]
        print(f"{folder}: {sum(counts):,} lines in {len(counts)} files")
    return 1 if any(broken.values()) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
