"""Modules of other frameworks, where a function takes a layer.

`analysis` must not import `bridges`, and a function there still takes a torch module. So the two
meet here: `underhood/__init__.py`, which may import all, enters the functions of `bridges` below,
and `analysis` asks for them by the framework's name. Nothing is imported before it is needed.

READERS    framework → what turns a module into a layer
OBSERVERS  framework → what runs a module on one sequence and returns its own intermediates, under
           the names of `trace`
"""

from collections.abc import Callable

READERS: dict[str, Callable[[object], object]] = {}
OBSERVERS: dict[str, Callable[[object, object], dict[str, object]]] = {}


def framework_of(layer: object) -> str | None:
    """Return the framework that an object's class stands on, "torch" for example, or None."""
    roots = (kind.__module__.split(".")[0] for kind in type(layer).__mro__)
    return next((root for root in roots if root in READERS), None)


def read_foreign(layer: object) -> object:
    """Return a module of another framework as a layer, and anything else as it is."""
    framework = framework_of(layer)
    return layer if framework is None else READERS[framework](layer)
