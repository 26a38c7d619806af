"""Compiled programs, kept by what decides them, so that the same training compiles once a process.

A worker that trains one unit after the other meets the same shapes again and again; a step takes
microseconds and a compilation seconds.
"""

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import jax

from underhood.tasks import Task
from underhood.training.storage.folder import checksum, named_leaves

# Every program holds memory, and memory mappings, of which a process may have few.
KEPT = 16


class Programs:
    """The programs used last, and what their keys point to."""

    def __init__(self, kept: int = KEPT):
        self.kept = kept
        self.found: OrderedDict[Hashable, tuple[Any, Any]] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: Hashable | None, alive: Any, build: Callable[[], Any]) -> Any:
        """The program of a key, built if need be; None as a key: built, and not kept.

        alive: objects whose identity is part of the key; while they are held nothing else can
        have it.
        """
        if key is None:
            return build()
        with self.lock:
            if key in self.found:
                self.found.move_to_end(key)
                return self.found[key][0]
        program = build()
        with self.lock:
            self.found[key] = (program, alive)
            while len(self.found) > self.kept:
                self.found.popitem(last=False)
        return program

    def clear(self) -> None:
        """Let go of all."""
        with self.lock:
            self.found.clear()


PROGRAMS = Programs()

# Every compiled program maps memory of its own. Linux allows a process 65,530 mappings, and ends
# one that wants more.
MOST_MAPPINGS = 40_000
MAPPINGS = Path("/proc/self/maps")


def forget_if_many() -> bool:
    """Let go of all programs of this process, ours and JAX's, before they are too many."""
    if not MAPPINGS.exists() or MAPPINGS.read_bytes().count(b"\n") <= MOST_MAPPINGS:
        return False
    PROGRAMS.clear()
    jax.clear_caches()
    gc.collect()
    return True


def key_of(task: Task, *others: Any) -> Hashable | None:
    """All that decides a program; None where something of it cannot be compared."""
    leaves, structure = jax.tree.flatten(task)
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
    plain = tuple(leaf for leaf in leaves if not hasattr(leaf, "dtype"))
    device = getattr(jax.config, "jax_default_device", None) or jax.devices()[0]
    settings = ("jax_debug_nans", "jax_enable_x64", "jax_disable_most_optimizations")
    traced = (str(device), *(bool(getattr(jax.config, name, None)) for name in settings))
    key = (structure, plain, checksum(named_leaves(arrays), 0), traced, others)
    try:
        hash(key)
    except TypeError:
        return None
    return key
