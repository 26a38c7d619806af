"""The quick binding of arguments, beside that of `inspect`."""

import inspect

import pytest
from support.checking import OFTEN, QuickSignature


def plain(x, y=2):
    pass


def every_kind(a, b, /, c, d=4, *rest, e, f=6, **others):
    pass


def mutable(x, of=(), *, keep=None):
    pass


CALLS = [
    (plain, (1,), {}),
    (plain, (), {"x": 1, "y": 3}),
    (plain, (), {}),
    (plain, (1, 2, 3), {}),
    (plain, (1,), {"z": 1}),
    (plain, (1,), {"x": 1}),
    (every_kind, (1, 2, 3), {"e": 5}),
    (every_kind, (1, 2, 3, 4, 5, 6), {"e": 5, "g": 7}),
    (every_kind, (1, 2), {"c": 3, "e": 5, "a": 9}),
    (every_kind, (1, 2, 3), {}),
    (every_kind, (1,), {"b": 2, "c": 3, "e": 5}),
    (mutable, (1,), {}),
    (mutable, (1, [2]), {"keep": 3}),
]


def arguments_or_words(signature, given, options):
    try:
        bound = signature.bind(*given, **options)
    except TypeError as error:
        return str(error)
    bound.apply_defaults()
    return dict(bound.arguments)


@pytest.mark.parametrize(("function", "given", "options"), CALLS)
def test_arguments_and_words_are_those_of_inspect(function, given, options):
    expected = arguments_or_words(inspect.signature(function), given, options)
    quick = QuickSignature.from_callable(function)
    for _ in range(OFTEN + 2):
        assert arguments_or_words(quick, given, options) == expected
    assert quick.calls == OFTEN + 2


def test_defaults_are_the_same_objects():
    default = object()

    def function(x=default):
        pass

    quick = QuickSignature.from_callable(function)
    for _ in range(OFTEN + 2):
        bound = quick.bind()
        bound.apply_defaults()
    assert bound.arguments["x"] is default
