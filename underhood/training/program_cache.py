"""Compiled programs, kept by what decides them, so that a process compiles each only once.

A worker that trains one unit after the other meets the same shapes again and again; a step takes
microseconds and a compilation seconds.
"""

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

import jax

from underhood.tasks import Task
from underhood.training.storage.checksums import tree_checksum

# Every program holds memory, and memory mappings, of which a process may have few.
KEPT_PROGRAMS = 16
Program = TypeVar("Program")


class Programs(Generic[Program]):
    """The programs used last, and the objects that their keys point to."""

    def __init__(self, kept: int = KEPT_PROGRAMS):
        self.kept = kept
        self.entries: OrderedDict[Hashable, tuple[Program, object]] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: Hashable | None, alive: object, build: Callable[[], Program]) -> Program:
        """Return the program of a key, built if need be.

        key    None: the program is built and not kept
        alive  objects whose identity is part of the key; while they are held, no other object
               can have the same identity
        """
        if key is None:
            return build()
        with self.lock:
            if key in self.entries:
                self.entries.move_to_end(key)
                return self.entries[key][0]
        program = build()
        with self.lock:
            self.entries[key] = (program, alive)
            while len(self.entries) > self.kept:
                self.entries.popitem(last=False)
        return program

    def clear(self) -> None:
        with self.lock:
            self.entries.clear()


PROGRAMS: Programs[jax.stages.Compiled] = Programs()

# Every compiled program maps memory of its own. Linux allows a process 65,530 mappings, and ends
# one that wants more.
MOST_MAPPINGS = 40_000
MAPPINGS = Path("/proc/self/maps")


def forget_if_many() -> bool:
    """Let go of all programs of this process, ours and JAX's, before they are too many."""
    if not MAPPINGS.exists() or MAPPINGS.read_bytes().count(b"\n") <= MOST_MAPPINGS:
        return False
    forget_programs()
    return True


def forget_programs() -> None:
    """Let go of all programs of this process, ours and JAX's."""
    PROGRAMS.clear()
    jax.clear_caches()
    gc.collect()


def program_key(task: Task, *parts: object) -> Hashable | None:
    """Return all that decides a program; None where something of it cannot be compared."""
    leaves, structure = jax.tree.flatten(task)
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
    plain = tuple(leaf for leaf in leaves if not hasattr(leaf, "dtype"))
    device = getattr(jax.config, "jax_default_device", None) or jax.devices()[0]
    settings = ("jax_debug_nans", "jax_enable_x64", "jax_disable_most_optimizations")
    traced = (str(device), *(bool(getattr(jax.config, name, None)) for name in settings))
    key = (structure, plain, tree_checksum(arrays), traced, parts)
    try:
        hash(key)
    except TypeError:
        return None
    return key
