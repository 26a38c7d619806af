"""Error of the linearised constructions against ε, at orders 1 to 3, and the automatic ε.

Truncation falls as ε^{2n}; then rounding takes over. The plot shows both, the slopes 2, 4, 6 and
where the automatic ε lies; the table says how far its error is from the best on the grid.
"""

import jax
import matplotlib
import numpy as np
from _common import OUT, write

import underhood as uh

matplotlib.use("Agg")
import matplotlib.pyplot as plt

D, LENGTH, TEACHERS = 4, 32, 5
GRID = 10.0 ** np.arange(-6, 0.51, 0.125)
TARGETS = {
    "one LSTM layer": ("lstm", {}),
    "one LRU In-Out layer": ("lru_in_out", {}),
    "two GRU layers": ("gru", {}),
    "one GRU layer": ("gru", {"layers": 1}),
    "two LSTM layers": ("lstm", {"layers": 2}),
    "LRU In-Out MLP, GELU": ("lru_in_out_mlp", {}),
}


def teachers() -> list[uh.LinearAttention]:
    rngs = (np.random.default_rng([21, seed]) for seed in range(TEACHERS))
    return [uh.LinearAttention(*rng.normal(size=(3, D, D)) / np.sqrt(D)) for rng in rngs]


def error(target: str, order: int, epsilon: float | None, options: dict) -> float:
    """The median over teachers."""
    return float(
        np.median(
            [
                uh.compile(source, target, order=order, epsilon=epsilon, **options).error(
                    key=jax.random.key(seed), length=LENGTH, sequences=8
                )
                for seed, source in enumerate(teachers())
            ]
        )
    )


def main() -> None:
    figure, axes = plt.subplots(2, 3, figsize=(12, 7), sharex=True, sharey=True)
    data = {}
    print(f"{'network':<22} order  slope  automatic ε  error     best on the grid  ratio")
    for axis, (name, (target, options)) in zip(axes.flat, TARGETS.items(), strict=True):
        for order, colour in zip((1, 2, 3), ("#0072B2", "#D55E00", "#009E73"), strict=True):
            errors = np.array([error(target, order, float(e), options) for e in GRID])
            chosen = uh.compile(teachers()[0], target, order=order, **options).epsilon
            automatic = error(target, order, None, options)
            best = int(np.argmin(errors))
            # The slope where truncation rules: above the best, below saturation.
            rising = (np.arange(len(GRID)) >= best + 3) & (errors < 1e-4)
            slope = float(np.polyfit(np.log(GRID[rising]), np.log(errors[rising]), 1)[0])
            ratio = automatic / errors[best]
            print(
                f"{name:<22} {order:>5}  {slope:5.2f}  {chosen:11.2e}  {automatic:.2e}  "
                f"{errors[best]:16.2e}  {ratio:5.2f}"
            )
            axis.loglog(GRID, errors, color=colour, label=f"order {order}, slope {slope:.2f}")
            axis.plot([chosen], [automatic], "o", color=colour)
            data[f"{name}, order {order}"] = {
                "epsilon": GRID.tolist(),
                "error": errors.tolist(),
                "slope": slope,
                "automatic": {"epsilon": chosen, "error": automatic},
                "best": float(errors[best]),
            }
        # Its automatic setting has a second scale, for the cubes, so its dots leave the curves.
        axis.set_title(
            f"{name} (dots: two scales)" if name == "one GRU layer" else name, fontsize=10
        )
        axis.legend(fontsize=8, loc="upper left")
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("ε")
    for axis in axes[:, 0]:
        axis.set_ylabel("relative error")
    figure.suptitle(
        f"Error against ε: attention with d = {D}, T = {LENGTH}, float64, median of {TEACHERS} "
        "teachers; dots: the automatic ε"
    )
    figure.tight_layout()
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / "epsilon.png", dpi=110)
    write("epsilon", data)
    print(f"plot: {(OUT / 'epsilon.png').relative_to(OUT.parent.parent)}")


if __name__ == "__main__":
    main()
