"""Every rule of benchmarks/house.py finds a planted violation, and all of them hold here."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import house

PLANTED = {
    "folders with too many files": {f"underhood/layers/part{i}.py": "" for i in range(15)},
    "files that are too long": {"underhood/long.py": "#\n" * 301},
    "names defined in two modules": {
        "underhood/layers/a.py": "def decay_of(x): ...",
        "underhood/training/b.py": "try:\n    decay_of: int = 3\nexcept ImportError:\n    pass",
    },
    "variables whose name says nothing": {"docs/refresh.py": "for one in ():\n    pass"},
    "Any without a reason": {"underhood/a.py": "def read(x: 'dict[str, Any]') -> int: ..."},
}


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize("rule", house.RULES)
def test_a_rule_finds_a_planted_violation_and_no_other_does(rule: str, tmp_path) -> None:
    broken = house.broken_rules(plant(tmp_path, PLANTED[rule]))
    assert {name for name, problems in broken.items() if problems} == {rule}
    assert len(broken[rule]) == 1


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        ("files that are too long", "tests/layers/test_long.py", "#\n" * 451),
        ("variables whose name says nothing", "tests/a.py", "f = lambda found: 0"),
        ("variables whose name says nothing", "tests/a.py", "def f(*, own): ..."),
        ("variables whose name says nothing", "tests/a.py", "[told := 1]"),
        ("variables whose name says nothing", "tests/a.py", "try: 0\nexcept OSError as told: 0"),
        ("Any without a reason", "underhood/a.py", "def f() -> typing.Any: ..."),
        ("Any without a reason", "underhood/a.py", "class A:\n    field: list[Any] = []"),
        ("Any without a reason", "underhood/a.py", "async def f(*x: Any): ..."),
    ],
)
def test_a_rule_finds(rule: str, path: str, text: str, tmp_path) -> None:
    assert len(house.broken_rules(plant(tmp_path, {path: text}))[rule]) == 1


def test_rules_let_pass(tmp_path) -> None:
    files = {f"underhood/layers/part{i}.py": "#\n" * 300 for i in range(14)}
    files["tests/test_long.py"] = "#\n" * 450
    files["underhood/a.py"] = "def f(x: Any): ...  # Any: JSON\n# Any: JSON\ndef g(x: Any): ...\n"
    files["underhood/b.py"] = "def _f(x: Any):\n    local: Any = zero.one\n    return local\n"
    assert not any(house.broken_rules(plant(tmp_path, files)).values())


def test_the_house_is_clean() -> None:
    broken = house.broken_rules(house.ROOT)
    assert {rule: problems for rule, problems in broken.items() if problems} == {}
