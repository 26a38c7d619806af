"""How tests say what is refused, and with which words."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import pytest

import underhood as uh


@contextlib.contextmanager
def refused(words: str) -> Iterator[None]:
    """What is done inside is refused in one line that holds every one of "some … words"."""
    with pytest.raises(uh.BadInput) as caught:
        yield
    line = str(caught.value)
    assert "\n" not in line
    assert [part for part in words.split(" … ") if part not in line] == [], line


def every_refusal(calls: Mapping[str, Callable[[], object]]):
    """A test that every call is refused in one line with its words."""

    @pytest.mark.parametrize("words", calls)
    def test(words: str, unhooked) -> None:
        with refused(words):
            calls[words]()

    return test
