"""Parts of an experiment: in their order in one process, side by side on an engine."""

import threading

import pytest

from underhood.common.errors import BadInput
from underhood.experiments.running.concurrency import side_by_side
from underhood.experiments.running.setting import Setting
from underhood.sweeps.engines import Local

PATIENCE = 10.0


def setting(tmp_path, engine=None) -> tuple[Setting, list[float]]:
    told: list[float] = []
    return Setting(
        "smoke", None, tmp_path, lambda done, total: told.append(done / total), engine
    ), told


def test_parts_come_in_their_order_and_share_the_progress(tmp_path) -> None:
    own, told = setting(tmp_path)
    begun = []

    def part(name: str):
        def call(inner: Setting) -> str:
            begun.append((name, threading.current_thread() is threading.main_thread()))
            inner.tick(1, 2)
            inner.part(0.5, 1).tick(3, 3)
            return name.upper()

        return call

    assert own.each([(1, part("a")), (3, part("b"))]) == ["A", "B"]
    assert begun == [("a", True), ("b", True)]
    assert told == [0.125, 0.25, 0.625, 1.0]


def test_an_experiment_without_parts(tmp_path) -> None:
    own, told = setting(tmp_path)
    assert own.each([]) == [] and told == []


def test_on_an_engine_parts_run_side_by_side(tmp_path) -> None:
    own, told = setting(tmp_path, Local())
    # None gets past it before all are there.
    meeting = threading.Barrier(3)
    first_may_end = threading.Event()

    def part(number: int):
        def call(inner: Setting) -> int:
            meeting.wait(PATIENCE)
            if number == 0:
                assert first_may_end.wait(PATIENCE)
            inner.tick(1, 1)
            if number == 2:
                first_may_end.set()
            return number

        return call

    assert own.each([(1, part(number)) for number in range(3)]) == [0, 1, 2]
    assert sorted(told)[-1] == pytest.approx(1)


@pytest.mark.parametrize("engine", [None, Local()])
def test_what_a_part_raises_is_raised(tmp_path, engine) -> None:
    own, _ = setting(tmp_path, engine)

    def fails(inner: Setting) -> int:
        raise BadInput("no such thing")

    with pytest.raises(BadInput, match="no such thing"):
        own.each([(1, fails), (1, lambda inner: 1)])


def test_calls_are_given_back_as_they_end() -> None:
    second_is_over = threading.Event()

    def first() -> int:
        assert second_is_over.wait(PATIENCE)
        return 1

    found = side_by_side({"first": first, "second": lambda: 2})
    assert next(found) == ("second", 2)
    second_is_over.set()
    assert list(found) == [("first", 1)]
