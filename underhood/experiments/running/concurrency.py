"""Things that wait for others most of the time, side by side in threads."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

Name = TypeVar("Name")
Found = TypeVar("Found")


def side_by_side(calls: Mapping[Name, Callable[[], Found]]) -> Iterator[tuple[Name, Found]]:
    """What calls give, as they end; what one of them raises is raised here."""
    ended: queue.SimpleQueue[tuple[Name, Found | None, BaseException | None]] = queue.SimpleQueue()

    def one(name: Name, call: Callable[[], Found]) -> None:
        try:
            ended.put((name, call(), None))
        except BaseException as error:
            ended.put((name, None, error))

    for name, call in calls.items():
        # Daemons: who presses Ctrl-C does not wait for an analysis to end.
        threading.Thread(target=one, args=(name, call), name=str(name), daemon=True).start()
    for _ in calls:
        name, found, error = ended.get()
        if error is not None:
            raise error
        yield name, found  # type: ignore[misc]
