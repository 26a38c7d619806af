"""Training speed: a loop in the manner of the paper's stack against our ensembles, in one process.

loop          a Flax module, optax, one jitted call a step, batches made by NumPy on the host, the
              loss read every step
loop, ready   the same with batches that are on the device already, and nothing read
members 1…    `uh.train`'s own programs with 1, 8 and 64 students

All train on the paper's teacher-student task (d = 4, T = 32, batch 64) in float32. The floor is
the arithmetic of the matrix products over the rate of a large product measured in the same run;
`share` is the floor over the time taken. Needs flax: pip install 'underhood[bench]'.
"""

import argparse
import platform
import statistics
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _common import OUT, write

import underhood as uh
from underhood.common.provenance import provenance
from underhood.training.arrangement import arrange
from underhood.training.device import precision_of
from underhood.training.ensemble import make_ensemble

D, TIME, BATCH = 4, 32, 64
TOKENS = TIME * BATCH
KEY = jax.random.key(0)
TASK = uh.tasks.TeacherStudent.random(D, length=TIME, key=jax.random.key(1))
RECIPE = uh.Recipe.paper()


# --- (a) the loop


class FlaxGatedRNN(nn.Module):
    """The paper's gated RNN as its code base would write it: a tree over time, vmapped."""

    hidden: int

    @nn.compact
    def __call__(self, xs):
        n = self.hidden
        normal = nn.initializers.normal(1 / np.sqrt(n))
        nu = self.param("nu", lambda key: jnp.log(-jnp.log(jax.random.uniform(key, (n,)))))
        written = nn.Dense(n)(xs) * nn.Dense(n)(xs)
        decays = jnp.broadcast_to(jnp.exp(-jnp.exp(nu)), written.shape)

        def compose(first, then):
            return first[0] * then[0], then[0] * first[1] + then[1]

        states = jax.lax.associative_scan(compose, (decays, written))[1]
        gates = (nn.Dense(n, use_bias=False, kernel_init=normal)(states)) * (
            nn.Dense(n, use_bias=False, kernel_init=normal)(states)
        )
        return nn.Dense(D, use_bias=False)(gates)


class FlaxLSTM(nn.Module):
    """Embedding, Flax's own LSTM, readout."""

    hidden: int

    @nn.compact
    def __call__(self, xs):
        embedded = nn.Dense(self.hidden)(xs)
        states = nn.RNN(nn.OptimizedLSTMCell(self.hidden))(embedded)
        return nn.Dense(D, use_bias=False)(states)


def host_batches(seed):
    """Batches from NumPy, the teacher included."""
    rng = np.random.default_rng(seed)
    W_V, W_K, W_Q = (
        np.asarray(W, np.float32)
        for W in (TASK.attention.W_V, TASK.attention.W_K, TASK.attention.W_Q)
    )
    while True:
        xs = rng.standard_normal((BATCH, TIME, D), dtype=np.float32)
        scores = np.tril((xs @ W_Q.T) @ (xs @ W_K.T).transpose(0, 2, 1))
        yield xs, scores @ (xs @ W_V.T)


def loop_runner(module):
    """Two functions that make some steps: batches from the host, and batches that are there."""
    model = jax.vmap(module.apply, in_axes=(None, 0))
    params = module.init(KEY, jnp.zeros((TIME, D)))
    schedule = optax.cosine_decay_schedule(1e-3, 1_000_000, 1e-3)
    optimiser = optax.adamw(schedule, weight_decay=0.1)

    @jax.jit
    def step(params, moments, xs, ys):
        def loss_of(params):
            return 0.5 * jnp.mean((model(params, xs) - ys) ** 2)

        loss, slopes = jax.value_and_grad(loss_of)(params)
        updates, moments = optimiser.update(slopes, moments, params)
        return optax.apply_updates(params, updates), moments, loss

    batches = host_batches(0)
    ready = tuple(map(jnp.asarray, next(batches)))

    def from_host(steps):
        now = params, optimiser.init(params)
        for _ in range(steps):
            *now, loss = step(*now, *next(batches))
            float(loss)

    def from_device(steps):
        now = params, optimiser.init(params)
        for _ in range(steps):
            *now, loss = step(*now, *ready)
        loss.block_until_ready()

    return from_host, from_device


# --- (b), (c) ours


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=D, hidden=width, gated=width, d_out=D, key=key)


def lstm(width, *, key):
    def layer(width, *, key):
        return uh.LSTM.init(d_in=width, hidden=width, key=key)

    return uh.Stack.init(layer, d_in=D, hidden=width, d_out=D, key=key)


def ensemble_runner(make_student, width, members):
    """A function that makes some steps with all members."""
    ensemble = make_ensemble(make_student, TASK, RECIPE, widths=width, seeds=members, key=KEY)
    arranged = arrange(ensemble)
    states = arranged.first_states()

    def run(steps):
        nonlocal states
        states = arranged.advance(states, 0, steps)

    return run


# --- measuring


def per_step(run, about=1.0, repeats=3):
    """Median seconds per step over runs of about a second."""
    run(2)
    start = time.perf_counter()
    run(3)
    steps = max(3, int(about / max((time.perf_counter() - start) / 3, 1e-6)))
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(steps)
        taken.append((time.perf_counter() - start) / steps)
    return statistics.median(taken)


def product_rate():
    """Operations per second of a large float32 product."""
    size, repeats = (1024, 5) if jax.default_backend() == "cpu" else (8192, 10)
    matrix = jax.random.normal(KEY, (size, size)) / np.sqrt(size)

    @jax.jit
    def products(matrix):
        return jax.lax.fori_loop(0, repeats, lambda _, x: x @ matrix, matrix)

    products(matrix).block_until_ready()
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        products(matrix).block_until_ready()
        taken.append(time.perf_counter() - start)
    return repeats * 2 * size**3 / statistics.median(taken)


def operations(kind, n):
    """Of a step's matrix products: forward once, backward twice (inputs need no gradient)."""
    if kind == "gated":
        return 2 * TOKENS * (2 * (2 * n * (D + 1)) + 3 * (2 * n * n + D * n))
    return 2 * TOKENS * (2 * n * (D + 1) + 3 * (8 * n * n + D * n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per timing")
    wanted = parser.parse_args()
    device = provenance()
    print(f"{device['device']}, jax {jax.__version__}, Python {platform.python_version()}")
    rows = []
    with precision_of("float32"):
        rate = product_rate()
        print(f"large float32 product: {rate / 1e9:.0f} GFLOP/s")
        print(f"{'student':<13}{'how':<13}{'ms/step':>9}{'per model':>11}{'× loop':>8}{'share':>7}")
        for kind, n, make_student, module in (
            ("gated", 20, gated, FlaxGatedRNN),
            ("gated", 100, gated, FlaxGatedRNN),
            ("lstm", 64, lstm, FlaxLSTM),
        ):
            from_host, from_device = loop_runner(module(n))
            runs = [("loop", 1, from_host), ("loop, ready", 1, from_device)]
            for members in (1, 8, 64):
                name = f"{members} member{'s' if members > 1 else ''}"
                runs.append((name, members, ensemble_runner(make_student, n, members)))
            loop = None
            for name, members, run in runs:
                taken = per_step(run, wanted.seconds)
                each = taken / members
                loop = each if loop is None else loop
                share = operations(kind, n) / rate / each
                rows.append(
                    {
                        "student": kind,
                        "n": n,
                        "how": name,
                        "members": members,
                        "seconds_per_step": taken,
                        "models_times_steps_per_second": 1 / each,
                        "ratio": loop / each,
                        "share": share,
                    }
                )
                print(
                    f"{f'{kind} n={n}':<13}{name:<13}{1e3 * taken:9.3f}{1 / each:9.0f}/s"
                    f"{loop / each:8.1f}{share:7.0%}",
                    flush=True,
                )
    write("training", {"provenance": device, "rate": rate, "rows": rows})
    plot(rows, device["device"])


def plot(rows, device) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    students = list(dict.fromkeys((row["student"], row["n"]) for row in rows))
    hows = list(dict.fromkeys(row["how"] for row in rows))
    figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for place, how in enumerate(hows):
        ratios = [
            next(r["ratio"] for r in rows if (r["student"], r["n"], r["how"]) == (*student, how))
            for student in students
        ]
        at = np.arange(len(students)) + (place - (len(hows) - 1) / 2) * 0.16
        bars = axis.bar(at, ratios, 0.15, label=how, color=plt.get_cmap("viridis")(place / 5))
        axis.bar_label(bars, [f"{ratio:.1f}" for ratio in ratios], fontsize=7)
    axis.set_xticks(range(len(students)), [f"{kind}, n = {n}" for kind, n in students])
    axis.set_yscale("log")
    axis.set_ylabel("steps per second per model, × loop")
    axis.set_title(f"Training speed on {device}", fontsize=10)
    axis.legend(fontsize=7, ncols=len(hows), loc="upper left")
    axis.set_ylim(0.5, 4 * max(row["ratio"] for row in rows))
    figure.savefig(OUT / "training.png", dpi=150)


if __name__ == "__main__":
    main()
