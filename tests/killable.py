"""The run that the tests of storage make, and a process that makes it in forks that can be killed.

The process has imported JAX and not started it, so a fork is ready at once. Each line that it
reads asks for a run, {"out": folder, "chunk_seconds": s, "largest_file": bytes or null}; it
answers with the fork's process number and, when the fork has ended, {"status": -9, "error": ""}.
"""

import json
import logging
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax  # noqa: F401  (so that no fork has to)

import underhood as uh
from underhood.training import training

STEPS = 1000


# NumPy's draws, because every eager JAX function is one more program for a fork to load.
def make_student(width: int, *, key: jax.Array) -> uh.GatedRNN:
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))

    def weights(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    return uh.GatedRNN(
        W_in_m=weights(width, 3),
        W_in_x=weights(width, 3),
        decay=rng.uniform(0.1, 0.9, width).astype(np.float32),
        W_out_m=weights(width, width),
        W_out_x=weights(width, width),
        D=weights(2, width),
    )


def make_task(seed: int = 0) -> uh.tasks.TeacherStudent:
    draws = np.random.default_rng(seed).normal(size=(3, 2, 2)).astype(np.float32)
    return uh.tasks.TeacherStudent(uh.LinearAttention(*draws), length=4)


def train(**changes: Any) -> uh.Run:
    """Two members of four neurons each, unless told otherwise."""
    settings: dict[str, Any] = {
        "make_student": make_student,
        "task": make_task(),
        "recipe": uh.Recipe.fast(STEPS, batch=4),
        "widths": 4,
        "seeds": 2,
        "key": jax.random.key(0),
    }
    return uh.train(**(settings | changes))


def use_cache(folder: Path) -> None:
    """Keep compiled programs in a folder."""
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def run_in_fork(request: dict[str, Any], error_pipe: int) -> None:
    # Checkpoints as often as chunks, on a disk slow enough for kills to land in the writing.
    fsync = os.fsync
    training.CHUNK_SECONDS, training.CHECKPOINT_SHARE = request["chunk_seconds"], 0
    os.fsync = lambda file: (time.sleep(0.003), fsync(file))[1]
    # What a kill left behind must never look damaged.
    logging.getLogger("underhood").addFilter(lambda record: os._exit(2))
    if request["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    try:
        train(out=request["out"])
    except Exception as error:
        os.write(error_pipe, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os._exit(0)


def main() -> None:
    use_cache(Path(sys.argv[1]))
    # Right for a process that runs JAX; this one never does.
    warnings.filterwarnings("ignore", "os.fork")
    for line in sys.stdin:
        reading, writing = os.pipe()
        fork = os.fork()
        if fork == 0:
            run_in_fork(json.loads(line), writing)
        os.close(writing)
        print(fork, flush=True)
        status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        with open(reading) as pipe:
            print(json.dumps({"status": status, "error": pipe.read()}), flush=True)


if __name__ == "__main__":
    main()
