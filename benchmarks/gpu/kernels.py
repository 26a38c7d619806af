"""Kernels of NVIDIA GPUs beside the plain path: time of a training step, and accuracy, in one run.

A line per ensemble and path: microseconds per student and step, and per step, of `uh.train`'s own
programs on the paper's teacher-student task (T = 32, batch 64). Under each pair: by how much the
losses and the weights of the two paths differ after the steps. First the error of the gradients of
LSTM and GRU by both paths, against float64. Needs an NVIDIA GPU; gated RNNs also need nvcc.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import underhood as uh
from underhood.layers import batch_outputs
from underhood.layers.kernels import choice
from underhood.training import step
from underhood.training.arrangement import arrange
from underhood.training.ensemble import make_ensemble
from underhood.training.program_cache import PROGRAMS

TIME, BATCH, WARM = 32, 64, 100
# Inputs of the teacher, neurons, members.
GATED = ((4, 100, 64), (4, 20, 64), (4, 100, 16), (12, 84, 16), (12, 110, 8), (4, 28, 128))
PATHS = ("gpu", "nvidia")


def show_walk_errors() -> None:
    for kind, n in ((uh.LSTM, 64), (uh.GRU, 64), (uh.LSTM, 20)):
        layer = kind.init(d_in=n, hidden=n, key=jax.random.key(0))
        xs = jax.random.normal(jax.random.key(1), (BATCH, TIME, n))

        def slopes(layer, xs, backend):
            def loss(layer):
                return jnp.mean(batch_outputs(layer, xs, backend=backend) ** 2)

            return jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(layer))

        with jax.enable_x64(True):
            wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (layer, xs))
            exact = slopes(*jax.tree.map(jnp.asarray, wide), "gpu")
        for path in PATHS:
            errors = jax.tree.map(relative, slopes(layer, xs, path), exact)
            largest = max(jax.tree.leaves(errors))
            print(f"{kind.__name__} n={n} {path:7s} gradient error {largest:.1e}", flush=True)


def relative(value: np.ndarray, expected: np.ndarray) -> float:
    return float(np.max(np.abs(value - expected)) / np.max(np.abs(expected)))


def run_path(path: str, d: int, n: int, members: int, steps: int) -> list[np.ndarray]:
    """Train by one path; return the losses of the first window and all weights."""
    step.default_backend = choice.default_backend = lambda: path
    PROGRAMS.clear()
    jax.clear_caches()
    task = uh.tasks.TeacherStudent.random(d, length=TIME, key=jax.random.key(1))

    def student(width, *, key):
        return uh.GatedRNN.init(d_in=d, hidden=width, gated=width, d_out=d, key=key)

    ensemble = make_ensemble(
        student, task, uh.Recipe.paper(), widths=n, seeds=members, key=jax.random.key(0)
    )
    arranged = arrange(ensemble)
    states = arranged.advance(arranged.first_states(), 0, WARM)
    began = time.perf_counter()
    states = arranged.advance(states, WARM, WARM + steps)
    taken = 1e6 * (time.perf_counter() - began) / steps
    name = f"gated d={d} n={n}, {members} members, {path}"
    print(f"{name:36s} {taken / members:7.2f} us a student-step {taken:7.0f} us a step", flush=True)
    losses = arranged.curves(states, WARM + steps)[:, 0]
    return [losses, *map(np.asarray, jax.tree.leaves(states[0].weights))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=900)
    steps = parser.parse_args().steps
    if choice.default_backend() != choice.KERNELS:
        raise SystemExit("benchmarks/gpu/kernels.py needs an NVIDIA GPU.")
    jax.config.update("jax_default_matmul_precision", "highest")
    print(jax.devices()[0].device_kind, f"jax {jax.__version__}")
    show_walk_errors()
    for d, n, members in GATED:
        plain, fused = (run_path(path, d, n, members, steps) for path in PATHS)
        losses, *weights = (relative(*pair) for pair in zip(fused, plain, strict=True))
        print(f"    differences: losses {losses:.1e}, weights {max(weights):.1e}", flush=True)


if __name__ == "__main__":
    main()
