"""Objects of other frameworks where a layer is expected: who reads them as layers.

The reader is imported when such an object comes, and not before, so no folder that takes layers
has to know the bridges.
"""

from importlib import import_module
from typing import Any

# The package that defines the object's class or one of its bases → module and function.
READERS_BY_PACKAGE = {"torch": ("underhood.bridges", "from_torch")}


def as_layer(given: Any) -> Any:  # Any: whatever the caller gave; a layer
    """Return the layer with the weights of a foreign module; anything else comes back as it is."""
    packages = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
    for package, (module, function) in READERS_BY_PACKAGE.items():
        if package in packages:
            return getattr(import_module(module), function)(given)
    return given
