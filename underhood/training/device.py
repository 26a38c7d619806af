"""The machine that training runs on: cores, free memory, and how a program is compiled for it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import jax

# What is left to the rest of the system, and to allocations that XLA does not foresee.
USABLE = 0.8


@contextlib.contextmanager
def precision_of(precision: str) -> Iterator[None]:
    """Compute in float32 with products in full precision (no TF32), or in float64."""
    with jax.enable_x64(precision == "float64"), jax.default_matmul_precision("highest"):
        yield


def is_cpu() -> bool:
    return jax.default_backend() == "cpu"


def core_numbers() -> list[int]:
    affinity = getattr(os, "sched_getaffinity", None)
    return sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))


def free_memory() -> int:
    if not is_cpu():
        stats = jax.devices()[0].memory_stats() or {}
        if "bytes_limit" in stats:
            return int(USABLE * (stats["bytes_limit"] - stats.get("bytes_in_use", 0)))
    return int(USABLE * free_host_memory())


def free_host_memory() -> int:
    """Return the bytes that the system or the container has left, whichever is less."""
    free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable"))
        free.append(1024 * int(line.split()[1]))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        free.append(limit - int((group / "memory.current").read_text()))
    return max(min(free), 0)


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile a program; on a CPU for one thread, because programs run side by side there.

    A second thread gains nothing (measured up to width 724 on two cores), and with one thread a
    result does not depend on which other members were trained. XLA still cuts loops by the number
    of cores, so sums of larger students differ in their last digit between machines.
    """
    if is_cpu():
        # Another version of XLA may not know the option, which only saves threads.
        with contextlib.suppress(Exception):
            return lowered.compile(compiler_options={"xla_cpu_multi_thread_eigen": False})
    return lowered.compile()


def bytes_needed(program: jax.stages.Compiled) -> tuple[int, int]:
    """Return the bytes that a program keeps (arguments), and those it needs while it runs."""
    analysis = program.memory_analysis()
    if analysis is None:
        return 0, 0
    running = analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    return analysis.argument_size_in_bytes, running - analysis.alias_size_in_bytes
