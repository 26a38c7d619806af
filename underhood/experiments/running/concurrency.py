"""Calls that mostly wait, run side by side in threads."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

Name = TypeVar("Name")
Answer = TypeVar("Answer")


def side_by_side(calls: Mapping[Name, Callable[[], Answer]]) -> Iterator[tuple[Name, Answer]]:
    """Yield the name and the answer of every call, as they end; raise what a call raises."""
    ended: queue.SimpleQueue[tuple[Name, Answer | None, BaseException | None]] = queue.SimpleQueue()

    def make(name: Name, call: Callable[[], Answer]) -> None:
        try:
            ended.put((name, call(), None))
        except BaseException as error:
            ended.put((name, None, error))

    for name, call in calls.items():
        # Daemons: Ctrl-C does not wait for an analysis to end.
        threading.Thread(target=make, args=(name, call), name=str(name), daemon=True).start()
    for _ in calls:
        name, answer, error = ended.get()
        if error is not None:
            raise error
        yield name, answer  # type: ignore[misc]
