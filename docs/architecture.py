"""Draw the folders of the package and their imports: architecture.svg, and a table in the page.

    python docs/architecture.py    write both into docs/

A folder stands above everything that it imports. The picture leaves out an arrow that follows from
two or more others; the table has them all.
"""

import ast
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PACKAGE = DOCS.parent / "underhood"
PAGE, PICTURE = DOCS / "architecture.md", DOCS / "architecture.svg"
BEGIN, END = "<!-- written by docs/architecture.py -->", "<!-- end of what it writes -->"

# Sizes in the picture, in pixels. A bend is where an arrow passes a row between two boxes.
BOX, HEIGHT, BEND, GAP, ROW, MARGIN = 250, 44, 24, 28, 84, 12

# Folder to the folders that it imports.
Imports = dict[str, set[str]]


def folder_of(path: Path) -> str:
    """Return the folder of the package that a file lies in: `analysis` for analysis/forms/x.py."""
    return path.relative_to(PACKAGE).parts[0]


def imported_modules(path: Path) -> set[str]:
    """Return the modules and names that a file imports, at its top or in a function, dotted."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def read_imports() -> Imports:
    """Read from the code which folder imports which."""
    folders: Imports = {path.parent.name: set() for path in PACKAGE.glob("*/__init__.py")}
    for path in PACKAGE.glob("*/**/*.py"):
        for name in imported_modules(path):
            target = name.removeprefix("underhood.").split(".")[0]
            if name.startswith("underhood.") and target in folders:
                folders[folder_of(path)] |= {target} - {folder_of(path)}
    return folders


def without_shortcuts(imports: Imports) -> Imports:
    """Leave out every import that follows from a chain of others."""

    def reach(folder: str) -> set[str]:
        return imports[folder].union(*map(reach, imports[folder]))

    return {
        folder: targets - set().union(*map(reach, targets)) for folder, targets in imports.items()
    }


def rows_of(imports: Imports) -> list[list[str]]:
    """Put each folder one row below the lowest folder that imports it; the first row is on top."""

    def depth(folder: str) -> int:
        above = [depth(user) for user, targets in imports.items() if folder in targets]
        return 1 + max(above, default=-1)

    rows: list[list[str]] = []
    for folder in sorted(imports, key=lambda name: (depth(name), name)):
        rows += [[]] * (depth(folder) + 1 - len(rows))
        rows[depth(folder)] = [*rows[depth(folder)], folder]
    return rows


def with_bends(
    rows: list[list[str]], arrows: Imports
) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Give arrows that pass a row a place in it; return the rows, and pieces one row long."""
    place = {folder: row for row, folders in enumerate(rows) for folder in folders}
    rows, pieces = [list(row) for row in rows], []
    for start in sorted(arrows):
        for end in sorted(arrows[start]):
            chain = [start]
            for row in range(place[start] + 1, place[end]):
                chain.append(f"{start}→{end}:{row}")
                rows[row].append(chain[-1])
            pieces += list(zip(chain, [*chain[1:], end], strict=True))
    return rows, pieces


def width_of(item: str) -> int:
    return BEND if "→" in item else BOX


def places(rows: list[list[str]], pieces: list[tuple[str, str]]) -> tuple[dict[str, float], float]:
    """Return the centre of every item across the picture, and the picture's width.

    Each row is put in the order of the means of its neighbours, down and up a few times.
    """
    total = max(sum(map(width_of, row)) + GAP * (len(row) - 1) for row in rows) + 2 * MARGIN
    centre: dict[str, float] = {}

    def spread(row: list[str]) -> None:
        left = (total - sum(map(width_of, row)) - GAP * (len(row) - 1)) / 2
        for item in row:
            centre[item] = left + width_of(item) / 2
            left += width_of(item) + GAP

    def mean(item: str) -> float:
        beside = [a if b == item else b for a, b in pieces if item in (a, b)]
        return sum(centre[name] for name in beside) / len(beside) if beside else centre[item]

    for row in rows:
        spread(row)
    for _ in range(6):
        for row in [*rows, *reversed(rows)]:
            row.sort(key=lambda item: (mean(item), item))
            spread(row)
    return centre, total


def draw(imports: Imports) -> str:
    """Return the picture of the folders as SVG."""
    rows, pieces = with_bends(rows_of(imports), without_shortcuts(imports))
    centre, width = places(rows, pieces)
    top = {item: MARGIN + ROW * row for row, items in enumerate(rows) for item in items}
    height = 2 * MARGIN + ROW * (len(rows) - 1) + HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" '
        f'width="{width:g}" height="{height}" font-family="sans-serif" text-anchor="middle">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{width:g}" height="{height}" fill="white"/>',
    ]
    for start, end in pieces:
        # A bend is a vertical line through its row.
        points = [(centre[start], top[start] + HEIGHT), (centre[end], top[end])]
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        if "→" in end:
            path += f"L{centre[end]:g} {top[end] + HEIGHT:g}"
        tip = "" if "→" in end else ' marker-end="url(#tip)"'
        lines.append(f'<path d="M{path}" fill="none" stroke="#555" stroke-width="1.5"{tip}/>')
    for folder in sorted(imports):
        x, y = centre[folder], top[folder]
        parts = " · ".join(subfolders(folder))
        lines += [
            f'<rect x="{x - BOX / 2:g}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="6" '
            'fill="#e8eaf6" stroke="#3f51b5"/>',
            f'<text x="{x:g}" y="{y + (19 if parts else 27)}" font-size="15">{folder}</text>',
        ]
        if parts:
            lines.append(f'<text x="{x:g}" y="{y + 35}" font-size="9">{parts}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def subfolders(folder: str) -> list[str]:
    return sorted(path.parent.name for path in (PACKAGE / folder).glob("*/__init__.py"))


def purpose(folder: Path) -> str:
    """Return the first sentence of a folder's docstring."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return escape(text.split("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip("."), quote=False)


def table(imports: Imports) -> str:
    """Return the folders from the bottom up: what each holds, and which folders it imports."""
    lines = ["| folder | holds | imports |", "|---|---|---|"]
    for folder in (name for row in reversed(rows_of(imports)) for name in row):
        names = ", ".join(f"`{name}`" for name in sorted(imports[folder])) or "nothing of ours"
        lines.append(f"| `{folder}` | {purpose(PACKAGE / folder)} | {names} |")
        for part in subfolders(folder):
            lines.append(f"| `{folder}/{part}` | {purpose(PACKAGE / folder / part)} | |")
    return "\n".join(lines)


def with_table(page: str, imports: Imports) -> str:
    """Return the page with its table replaced."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table(imports)}\n\n{END}{tail}"


def main() -> None:
    imports = read_imports()
    PICTURE.write_text(draw(imports), encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), imports), encoding="utf-8")


if __name__ == "__main__":
    main()
