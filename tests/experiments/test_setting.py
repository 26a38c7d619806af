"""Parts of an experiment: in their order, or side by side on a concurrent engine."""

import threading
from dataclasses import dataclass

import pytest

from underhood.common.errors import BadInput
from underhood.experiments.running.setting import Setting, answers
from underhood.sweeps.engines import Local

PATIENCE = 10.0


@dataclass(frozen=True)
class Concurrent(Local):
    """An engine whose runs are best trained at the same time."""

    concurrent: bool = True


def setting(tmp_path, engine=None) -> tuple[Setting, list[float]]:
    shares: list[float] = []
    tick = lambda done, total: shares.append(done / total)  # noqa: E731
    return Setting("smoke", None, tmp_path, tick, engine or Local()), shares


def test_parts_come_in_their_order_and_share_the_progress(tmp_path) -> None:
    whole, shares = setting(tmp_path)
    begun = []

    def part(name: str):
        def call(inner: Setting) -> str:
            begun.append((name, threading.current_thread() is threading.main_thread()))
            inner.tick(1, 2)
            inner.part(0.5, 1).tick(3, 3)
            return name.upper()

        return call

    assert whole.each([(1, part("a")), (3, part("b"))]) == ["A", "B"]
    assert begun == [("a", True), ("b", True)]
    assert shares == [0.125, 0.25, 0.625, 1.0]
    # An experiment without parts
    assert whole.each([]) == [] and len(shares) == 4


def test_on_a_concurrent_engine_parts_run_side_by_side(tmp_path) -> None:
    whole, shares = setting(tmp_path, Concurrent())
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

    assert whole.each([(1, part(number)) for number in range(3)]) == [0, 1, 2]
    assert sorted(shares)[-1] == pytest.approx(1)


@pytest.mark.parametrize("engine", [Local(), Concurrent()])
def test_what_a_part_raises_is_raised(tmp_path, engine) -> None:
    whole, _ = setting(tmp_path, engine)

    def fails(inner: Setting) -> int:
        raise BadInput("no such thing")

    with pytest.raises(BadInput, match="no such thing"):
        whole.each([(1, fails), (1, lambda inner: 1)])


def test_calls_are_given_back_as_they_end() -> None:
    second_is_over = threading.Event()

    def first() -> int:
        assert second_is_over.wait(PATIENCE)
        return 1

    ended = answers({"first": first, "second": lambda: 2}, concurrent=True)
    assert next(ended) == ("second", 2)
    second_is_over.set()
    assert list(ended) == [("first", 1)]
