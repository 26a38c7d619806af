"""How time and memory of the analysis grow with the network.

    python benchmarks/analysis.py [compiled | student | a function …]

Every figure is measured in a process of its own: the function is called once, after a small case
that loads the code. CPU time is shown beside wall time. On a quiet machine the two agree, because
the analysis keeps to one thread; on a busy one, CPU time is the better measure.

The floor counts only what cannot be left out: arithmetic over the rate of a large float64 product
on one thread, and bytes over the rate of a copy, both measured in this run. `FLOORS` has the
counts. The growth exponent is fitted to CPU time against the number of coefficients, d_out·
d(d+1)/2·d for networks compiled from d×d attention, and against neurons × gate outputs for
students with random weights.
"""

import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import jax
import numpy as np
from _common import seconds, write

import underhood as uh
from underhood.common.files import Json
from underhood.common.threads import one_thread

SIZES, WIDTHS = (4, 8, 16, 32, 64), (100, 300, 1000)
# Seconds for decompile(compile(d)), from the issue that asked for it.
GOALS = {4: 0.1, 8: 0.3, 16: 1.0, 32: 5.0, 64: 60.0}
STUDENT_INPUTS = 4
RADIUS, BOUND_TIME, TIME = 2.0, 1000, 32
# Processes begin with the code loaded.
PROCESSES = multiprocessing.get_context("forkserver")
LOADED = ["underhood.analysis", "underhood.constructions", "underhood.layers"]
# Exponents are fitted from this size on, where overhead no longer dominates.
FITTED_SIZE, FITTED_WIDTH = 8, 100


@dataclass(frozen=True)
class Case:
    """One call: a function on a network compiled from d×d attention, or on a random student."""

    kind: str
    function: str
    size: int

    @property
    def coefficients(self) -> int:
        """The numbers that the function is made of."""
        d = self.size
        return d * d * (d + 1) // 2 * d if self.kind == "compiled" else d * d

    def network(self) -> uh.GatedRNN:
        if self.kind == "student":
            sizes = {"d_in": STUDENT_INPUTS, "d_out": STUDENT_INPUTS}
            width = self.size
            return uh.GatedRNN.init(hidden=width, gated=width, key=jax.random.key(0), **sizes)
        weights = np.random.default_rng(self.size).normal(size=(3, self.size, self.size))
        return uh.compile(uh.LinearAttention(*weights / np.sqrt(self.size))).layer


@dataclass(frozen=True)
class Measured:
    """Seconds of wall and CPU time, memory in MB at its peak and before the call, what came out."""

    wall: float
    cpu: float
    peak: float
    before: float
    came_out: str


@dataclass(frozen=True)
class Rates:
    """Operations and bytes per second of one thread."""

    operations: float
    bytes: float


def decompiled(network: uh.GatedRNN) -> str:
    result = uh.decompile(network)
    return f"{result.verdict}, residual {result.residual:.1e}"


def reduced(network: uh.GatedRNN) -> str:
    result = uh.reduce(network)
    model = result.model
    return f"{model.neurons} neurons, {model.gate_width} gates, change {result.change:.1e}"


def pruned(network: uh.GatedRNN) -> str:
    result = uh.prune(network)
    gone = f"{result.removed_neurons} neurons, {result.removed_gates} gates"
    return f"{gone} removed, change {result.change:.1e}"


def polynomial_of(network: uh.GatedRNN) -> str:
    return f"{uh.polynomial(network).coefficients.size:,} coefficients"


def scored(network: uh.GatedRNN) -> str:
    return f"score {uh.attention_score(network, key=jax.random.key(1)).score:.2f}"


CALLS: dict[str, Callable[[uh.GatedRNN], str]] = {
    "decompile": decompiled,
    "reduce": reduced,
    "polynomial": polynomial_of,
    "prune": pruned,
    "score": scored,
}
FUNCTIONS = {
    "compiled": ("decompile", "reduce", "polynomial", "prune", "bound"),
    "student": ("prune", "decompile", "score", "reduce", "polynomial", "bound"),
}


def floor(case: Case, rates: Rates) -> float:
    """Return the seconds that the arithmetic and the bytes of a call take at the least.

    compiled    the network is read and its tables are written once
    student     decompile, bound, reduce: what each gate output holds of each token, and the tables
                over pairs of lags for each output; prune: the states and gates of its sample, for
                every output, in both orders; score: the states of all sequences, and one
                factorisation of them
    polynomial  the network is read, and the coefficients are written
    """
    network = case.network()
    numbers = sum(leaf.size for leaf in jax.tree.leaves(network))
    d, n, gates, d_out = network.d_in, network.neurons, network.gate_width, network.d_out
    entries, wide = (d + 1) * (d + 2) // 2, TIME * (d + 1) * (d + 2) // 2
    if case.function == "polynomial":
        monomials = (d + 1) * (d + 2) * (d + 3) * (d + 4) // 24
        return 8 * (numbers + d_out * monomials) / rates.bytes
    if case.kind == "compiled":
        return 8 * (numbers + d_out * entries * (d + 1)) / rates.bytes
    tokens = 128 * TIME
    operations = {
        "prune": 4 * tokens * n * gates * (1 + d_out),
        "score": 2 * 2 * 2 * tokens * n * n,
    }
    over_lags = 4 * wide * n * gates + 2 * d_out * wide * wide * gates
    return operations.get(case.function, over_lags) / rates.operations


def measure(case: Case) -> Measured:
    """Make the network, load the code on a small one, and call the function once."""
    small = Case(case.kind, case.function, 2 if case.kind == "compiled" else 6)
    prepared(small)()
    call = prepared(case)
    before = memory()
    wall, cpu = time.perf_counter(), time.process_time()
    came_out = call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Measured(wall, cpu, memory(), before, came_out)


def prepared(case: Case) -> Callable[[], str]:
    network = case.network()
    if case.function != "bound":
        return lambda: CALLS[case.function](network)
    certificate = uh.decompile(network).certificate
    bound = one_thread(lambda: certificate.bound(RADIUS, BOUND_TIME))
    return lambda: f"{bound():.1e}"


def memory() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@one_thread
def rates() -> Rates:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 1000, 1000))
    long = np.zeros(20_000_000)
    copy = np.empty_like(long)
    product = seconds(lambda: a @ b)
    copied = seconds(lambda: np.copyto(copy, long))
    return Rates(2 * 1000**3 / product, 2 * long.nbytes / copied)


def exponent(cases: list[Case], measured: list[Measured], least: int) -> float:
    """Return the slope of log CPU time against log coefficients."""
    rows = [
        (case.coefficients, result.cpu)
        for case, result in zip(cases, measured, strict=True)
        if case.size >= least
    ]
    if len(rows) < 2:
        return float("nan")
    x, y = np.log(np.array(rows)).T
    return float(np.polyfit(x, y, 1)[0])


def table(kind: str, function: str, sizes: tuple[int, ...], machine: Rates) -> list[Json]:
    cases = [Case(kind, function, size) for size in sizes]
    measured = []
    for case in cases:
        # A process of its own, so that its memory is that of this case alone.
        with ProcessPoolExecutor(1, mp_context=PROCESSES) as pool:
            result = pool.submit(measure, case).result()
        measured.append(result)
        least = floor(case, machine)
        goal = GOALS.get(case.size) if (kind, function) == ("compiled", "decompile") else None
        judged = (
            ""
            if goal is None
            else f"  goal {goal:g} s: {'met' if result.wall <= goal else 'missed'}"
        )
        print(
            f"{function:<11}{case.size:>5} {result.wall:>8.2f} {result.cpu:>8.2f} {least:>8.4f} "
            f"{result.peak:>7.0f} {result.peak - result.before:>7.0f}  {result.came_out}{judged}",
            flush=True,
        )
    least_size = FITTED_SIZE if kind == "compiled" else FITTED_WIDTH
    slope = exponent(cases, measured, least_size)
    print(f"{'':<11} grows as (coefficients)^{slope:.2f} from {least_size} on", flush=True)
    return [
        {**asdict(case), **asdict(result), "slope": slope}
        for case, result in zip(cases, measured, strict=True)
    ]


def main() -> None:
    wanted = set(sys.argv[1:])
    PROCESSES.set_forkserver_preload(LOADED)
    machine = rates()
    print(
        f"one thread: float64 product {machine.operations / 1e9:.0f} GFLOP/s, "
        f"copy {machine.bytes / 1e9:.1f} GB/s"
    )
    rows: list[Json] = []
    for kind, sizes in (("compiled", SIZES), ("student", WIDTHS)):
        name = "d" if kind == "compiled" else "n"
        print(f"\n{kind:<11}{name:>5}   wall s    CPU s  floor s peak MB    + MB")
        for function in FUNCTIONS[kind]:
            if not wanted or {kind, function} <= wanted or wanted <= {kind, function}:
                rows += table(kind, function, sizes, machine)
    for width in WIDTHS:
        parts = [
            row
            for row in rows
            if row["size"] == width
            and row["kind"] == "student"
            and row["function"] in ("prune", "decompile", "score")
        ]
        if len(parts) == 3:
            wall, cpu = (sum(row[clock] for row in parts) for clock in ("wall", "cpu"))
            print(f"{width} neurons pruned, decompiled and scored: {wall:.0f} s, CPU {cpu:.0f} s")
    write("analysis", json.loads(json.dumps(rows)))


if __name__ == "__main__":
    main()
