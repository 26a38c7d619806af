"""Starts of a fit side by side, in threads: NumPy's linear algebra lets them run at once."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from underhood.training.second_order.starts import GatedStudent, Start

# How a start ended, and its network.
EndedStart = tuple[Start, GatedStudent]
# The fit gives up after so many starts that found the function with more neurons than it has.
ENOUGH_TOO_SMALL = 4


class Race:
    """Starts side by side; the first in order that succeeds ends those after it."""

    def __init__(self) -> None:
        self.winner: int | None = None
        self.interrupted = False
        self.needed_more: set[int] = set()

    def too_small(self, number: int) -> None:
        """Note that a start found the function with more neurons than the student has."""
        self.needed_more.add(number)

    def reason_to_stop(self, number: int) -> str | None:
        if self.interrupted:
            return "interrupted"
        beaten = self.winner is not None and number > self.winner
        return "an earlier start has succeeded" if beaten else None

    @property
    def ending(self) -> str:
        """Why another start would repeat what was tried; empty: it has a chance."""
        count = len(self.needed_more)
        if count >= ENOUGH_TOO_SMALL:
            return f"{count} starts found the function with more neurons than the student has"
        return ""

    @property
    def open(self) -> bool:
        """Whether another start has a chance."""
        return self.winner is None and not self.interrupted and not self.ending

    def run(self, run: Callable[[int], EndedStart], count: int, workers: int) -> list[EndedStart]:
        """Run starts until one succeeds and none before it is left; return those that count.

        After Ctrl-C the starts under way end with their next step, and what they have counts.
        """
        ended: dict[int, EndedStart] = {}
        with ThreadPoolExecutor(workers) as pool:
            running: dict[Future[EndedStart], int] = {}
            waiting = iter(range(count))
            while True:
                try:
                    while len(running) < workers and self.open:
                        number = next(waiting, None)
                        if number is None:
                            break
                        running[pool.submit(run, number)] = number
                    if not running:
                        break
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        number = running.pop(future)
                        ended[number] = future.result()
                        if ended[number][0].success:
                            self.winner = (
                                number if self.winner is None else min(self.winner, number)
                            )
                except KeyboardInterrupt:
                    self.interrupted = True
        last = count if self.winner is None else self.winner
        return [ended[number] for number in sorted(ended) if number <= last]
