"""How the tests check shapes and types: as jaxtyping does, with what it repeats made once.

The hook wraps 2,400 functions, and a run of the tests calls them millions of times. jaxtyping
binds the arguments of each call to their names with `inspect`, which takes longer than the checks
themselves, and makes the checks of a function inside a function anew with every call. Everything
is still checked, with the same messages.
"""

import inspect

import jaxtyping
from jaxtyping import _decorator

# The tower: `float` in an annotation also takes an int, as mypy and PEP 484 read it.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"

# A function that is called this often gets a binder, which takes as long as ten calls to make.
OFTEN = 10


def check_package() -> None:
    """Let every function of the package check what its annotations promise, from now on."""
    jaxtyping.install_import_hook("underhood", CHECKER)
    # A function inside a function is made anew with every call, and so would be its check, which
    # takes a millisecond. It depends on the signature alone. A process of tests calls few of the
    # functions, so a check is made when it is first needed.
    _decorator._make_fn_with_signature = remember(when_checked(_decorator._make_fn_with_signature))
    _decorator._apply_typechecker = remember(when_called(_decorator._apply_typechecker))
    _decorator.inspect = Inspect()


def remember(function):
    """Return the same function with its answers kept; what cannot be looked up is not kept."""
    kept = {}

    def answer(*arguments, **options):
        key = (*arguments, *options.items())
        try:
            if key not in kept:
                kept[key] = function(*arguments, **options)
        except TypeError:
            return function(*arguments, **options)
        return kept[key]

    return answer


def when_checked(make):
    """Return the same maker of functions that stand for a signature, which makes them later."""

    def made(name, qualname, module, signature, *, output):
        if not output:
            return lambda: make(name, qualname, module, signature, output=False)
        returned = _decorator._gensym(frozenset(signature.parameters), prefix="ret")
        return lambda: make(name, qualname, module, signature, output=True)[0], returned

    return made


def when_called(apply):
    """Return the same decorator of checks, which makes a check when it is first called."""

    def applied(typechecker, function):
        made = []

        def check(*arguments, **options):
            if not made:
                made.append(apply(typechecker, function()))
            return made[0](*arguments, **options)

        return check

    return applied


class Inspect:
    """The module `inspect`, with signatures that bind quickly."""

    def __getattr__(self, name):
        return getattr(inspect, name)

    def signature(self, function):
        return QuickSignature.from_callable(function)


class QuickSignature(inspect.Signature):
    """A signature that binds by calling a function which has it, once it is used often."""

    calls, binder = 0, None

    def bind(self, /, *arguments, **options):
        self.calls += 1
        if self.calls < OFTEN:
            return super().bind(*arguments, **options)
        try:
            self.binder = self.binder or binder_of(self)
            return Bound(self.binder(*arguments, **options))
        except TypeError:
            # They do not fit, and `inspect` says so in its words.
            return super().bind(*arguments, **options)


class Bound:
    """Arguments by name, with the defaults of those that were not given."""

    __slots__ = ("arguments",)

    def __init__(self, arguments):
        self.arguments = arguments

    def apply_defaults(self):
        pass


def binder_of(signature):
    """Return a function with this signature that returns its arguments by name."""
    defaults = {name: Written(f"defaults[{name!r}]") for name in signature.parameters}
    bare = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=parameter.default
            if parameter.default is inspect.Parameter.empty
            else defaults[name],
        )
        for name, parameter in signature.parameters.items()
    ]
    text = str(inspect.Signature(bare))[1:-1]
    names = ", ".join(f"{name!r}: {name}" for name in signature.parameters)
    given = {name: parameter.default for name, parameter in signature.parameters.items()}
    return eval(f"lambda {text}: {{{names}}}", {"defaults": given})


class Written:
    """What stands for a value in the text of a program."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text
