"""The search behind `Recipe.fast`: which settings make a student small and exact in 20,000 steps.

The paper's student (d = 4, 100 neurons, 100 gate outputs) on two teachers with four seeds each.
Every line is one setting: the normalised loss (best, median and worst member), and medians over
members of the neurons that matter, of those with λ > 0.98, of those with λ between 0.02 and 0.98,
and of the gate outputs that matter. The construction needs 14 neurons, 10 of them with λ = 1, and
10 gate outputs.

A neuron matters if its share in the output's quadratic form exceeds 0.3 % of the largest one's.
A block takes half a minute on an H200 and most of an hour on two cores; --only picks blocks.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

import underhood as uh
from underhood.common.provenance import provenance
from underhood.training import Adam, Constant, Cosine, Fade

D, WIDTH, SEEDS, STEPS = 4, 100, 4, 20_000
TEACHERS = [uh.tasks.TeacherStudent.random(D, key=jax.random.key(100 + i)) for i in range(2)]
RATE = Cosine(end=1e-4, warmup=0.02)
RATES, DECAYS = (1e-2, 2e-2, 4e-2), (3e-5, 3e-4, 3e-3)

BOTH = uh.Recipe(
    STEPS, schedule=RATE, decay_schedule=Fade(0.3, 0.7), optimiser=Adam(b2=0.99), clip=1.0
)
BLOCKS = {
    "decay falls with the rate": uh.Recipe(STEPS, schedule=RATE, decay_schedule=Cosine()),
    "decay fades": uh.Recipe(STEPS, schedule=RATE, decay_schedule=Fade(0.3, 0.7)),
    "and clipped": uh.Recipe(STEPS, schedule=RATE, decay_schedule=Fade(0.3, 0.7), clip=1.0),
    "and b2 = 0.99": uh.Recipe(
        STEPS, schedule=RATE, decay_schedule=Fade(0.3, 0.7), optimiser=Adam(b2=0.99)
    ),
    "both": BOTH,
    "both, T = 16": BOTH.change(length=16),
}
# Weight decay inside Adam's gradient, as in Recipe.paper(): it is constant there; here it is strong
# early and fades.
COUPLED = uh.Recipe(STEPS, schedule=RATE, clip=1.0, decay="coupled", length=16)
BLOCKS |= {
    f"coupled, {name}": COUPLED.change(decay_schedule=fade, **changes)
    for name, fade, changes in (
        ("to the end", Constant(), {}),
        ("fades 0.3–0.7", Fade(0.3, 0.7), {}),
        ("fades 0.3–0.7, T = 32", Fade(0.3, 0.7), {"length": None}),
        ("fades 0.3–0.7, b2 = 0.99", Fade(0.3, 0.7), {"optimiser": Adam(b2=0.99)}),
        ("fades 0.6–0.95", Fade(0.6, 0.95), {}),
        ("fades 0.6–0.95, b2 = 0.99", Fade(0.6, 0.95), {"optimiser": Adam(b2=0.99)}),
    )
}


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=D, hidden=width, gated=width, d_out=D, key=key)


def what_matters(model):
    """Neurons, neurons with λ ≈ 1, neurons in between, gate outputs."""
    W_in_m, W_in_x, W_out_m, W_out_x, read = (
        np.asarray(W, float)
        for W in (model.W_in_m, model.W_in_x, model.W_out_m, model.W_out_x, model.D)
    )
    decay = np.asarray(model.decay)
    # The size of a neuron's state, so that scaling it up and its readers down changes nothing.
    size = np.linalg.norm(W_in_m, axis=1) * np.linalg.norm(W_in_x, axis=1)
    size /= np.sqrt(np.maximum(1 - np.minimum(decay, 0.98) ** 2, 1e-3))
    m, x = np.abs(W_out_m) * size, np.abs(W_out_x) * size
    read, m_norm, x_norm = (
        np.linalg.norm(read, axis=0),
        np.linalg.norm(m, axis=1),
        np.linalg.norm(x, axis=1),
    )
    neurons = (read * x_norm) @ m + (read * m_norm) @ x
    gates = read * m_norm * x_norm
    alive = neurons > 3e-3 * neurons.max()
    return (
        np.sum(alive),
        np.sum(alive & (decay > 0.98)),
        np.sum(alive & (decay >= 0.02) & (decay <= 0.98)),
        np.sum(gates > 3e-3 * gates.max()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=[*BLOCKS], default=[*BLOCKS])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rates", type=float, nargs="*", default=RATES)
    parser.add_argument("--decays", type=float, nargs="*", default=DECAYS)
    parser.add_argument("--fade", type=float, nargs=2, help="when weight decay fades out")
    parser.add_argument("--out", type=Path, help="a JSON file for all numbers")
    wanted = parser.parse_args()
    device = provenance()
    print(
        f"{device['device']}, jax {jax.__version__}, {wanted.steps} steps, {2 * SEEDS} members each"
    )
    print(
        f"{'recipe':<36}{'rate':>6}{'decay':>7}   {'normalised loss':<25}{'neurons':>8}{'λ≈1':>5}"
        f"{'mid':>5}{'gates':>6}"
    )
    rows = []
    for name in wanted.only:
        began = time.monotonic()
        recipe = BLOCKS[name].change(steps=wanted.steps)
        if wanted.fade:
            recipe = recipe.change(decay_schedule=Fade(*wanted.fade))
        run = uh.train(
            gated,
            TEACHERS[0],
            recipe,
            seeds=SEEDS,
            widths=WIDTH,
            axes={
                "learning_rate": wanted.rates,
                "weight_decay": wanted.decays,
                "teacher": [task.attention for task in TEACHERS],
            },
            key=jax.random.key(7),
        )
        table = run.members
        counts = np.array([what_matters(model) for model in run.models])
        table[["neurons", "ones", "mid", "gates"]] = counts
        for (rate, decay), cell in table.groupby(["learning_rate", "weight_decay"]):
            loss = cell["normalised_loss"].astype(float).fillna(np.inf)
            middle = cell[["neurons", "ones", "mid", "gates"]].median()
            print(
                f"{name:<36}{rate:>6.0e}{decay:>7.0e}   {loss.min():.1e} {loss.median():.1e} "
                f"{loss.max():.1e}  {middle.iloc[0]:>8.0f}{middle.iloc[1]:>5.0f}"
                f"{middle.iloc[2]:>5.0f}{middle.iloc[3]:>6.0f}",
                flush=True,
            )
            rows.append(
                {
                    "recipe": name,
                    "rate": rate,
                    "decay": decay,
                    "loss": loss.tolist(),
                    **{k: cell[k].tolist() for k in ("neurons", "ones", "mid", "gates")},
                }
            )
        print(f"{'':<36}{time.monotonic() - began:.0f} s", flush=True)
    if wanted.out:
        wanted.out.write_text(json.dumps({"provenance": device, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
