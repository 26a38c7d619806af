"""The rules in benchmarks/house.py: each finds a planted violation, and all of them hold."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import house

NAMES, TYPES = "variables whose name says nothing", "Any without a reason"
PLANTED = [
    ("folders with too many files", {f"underhood/layers/part{i}.py": "" for i in range(15)}),
    ("files that are too long", {"underhood/long.py": "#\n" * 301}),
    ("files that are too long", {"tests/layers/test_long.py": "#\n" * 451}),
    (
        "names defined in two modules",
        {
            "underhood/layers/a.py": "def decay_of(x): ...",
            "underhood/training/b.py": "try:\n    decay_of: int = 3\nexcept ImportError:\n    pass",
        },
    ),
    (NAMES, {"docs/refresh.py": "for one in ():\n    pass"}),
    (NAMES, {"tests/a.py": "f = lambda found: 0"}),
    (NAMES, {"tests/a.py": "def f(*, own): ..."}),
    (NAMES, {"tests/a.py": "[told := 1]"}),
    (NAMES, {"tests/a.py": "try: 0\nexcept OSError as told: 0"}),
    (TYPES, {"underhood/a.py": "def read(x: 'dict[str, Any]') -> int: ..."}),
    (TYPES, {"underhood/a.py": "def f() -> typing.Any: ..."}),
    (TYPES, {"underhood/a.py": "class A:\n    field: list[Any] = []"}),
    (TYPES, {"underhood/a.py": "async def f(*x: Any): ..."}),
]


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(("rule", "files"), PLANTED)
def test_a_rule_finds_a_planted_violation_and_no_other_does(rule, files, tmp_path) -> None:
    broken = house.broken_rules(plant(tmp_path, files))
    assert {name for name, problems in broken.items() if problems} == {rule}
    assert len(broken[rule]) == 1


def test_rules_let_pass(tmp_path) -> None:
    files = {f"underhood/layers/part{i}.py": "#\n" * 300 for i in range(14)}
    files["tests/test_long.py"] = "#\n" * 450
    files["underhood/a.py"] = "def f(x: Any): ...  # Any: JSON\n# Any: JSON\ndef g(x: Any): ...\n"
    files["underhood/b.py"] = "def _f(x: Any):\n    local: Any = zero.one\n    return local\n"
    assert not any(house.broken_rules(plant(tmp_path, files)).values())


def test_the_house_is_clean_and_every_rule_was_tried() -> None:
    assert {rule for rule, _ in PLANTED} == set(house.RULES)
    broken = house.broken_rules(house.ROOT)
    assert {rule: problems for rule, problems in broken.items() if problems} == {}
