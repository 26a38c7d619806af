"""The regression RNN implements one step of gradient descent (Table 2).

On a single token [x; y] the first output of one step is η(x₁² + x₂² + x₃²)y₁ and nothing else. The
coefficients of the learned polynomial are judged by their median over seeds, within 2 % of η*; the
residual is the norm of all other coefficients. The query has y = 0 and only it is judged in
training, so what a network would do with the y of its query gets no gradient: the residual is given
in full, and restricted to the terms that survive when the query's y is zero.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from underhood.analysis import decompile, polynomial
from underhood.analysis.forms.norms import size
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.common.decay import kinds
from underhood.common.float64 import in_float64
from underhood.experiments.protocols.students import REGRESSION, regression_students
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import (
    Number,
    median_at_most,
    median_near,
    near,
    no_more_than,
)
from underhood.experiments.running.setting import Setting
from underhood.layers import GatedRNN
from underhood.training import Recipe

PAPER = {"x1^2 y1": 6.81e-2, "x2^2 y1": 6.82e-2, "x3^2 y1": 6.82e-2}
PAPER_RESIDUAL, PAPER_LOSS, PAPER_GD_LOSS = 1.35e-3, 0.0945, 0.0947
POWERS = ((2, 0, 0, 1, 0, 0), (0, 2, 0, 1, 0, 0), (0, 0, 2, 1, 0, 0))


def run(setting: Setting) -> Outcome:
    """Coefficients, residuals, losses and the decompiled attention."""
    students = regression_students(setting.part(0, 0.9))
    task, models = students.task, students.run.models
    recipe = REGRESSION[setting.scale].recipe
    step = task.best_attention().W_V[0, task.d_x]
    rows = []
    for seed, (model, member) in enumerate(zip(models, students.run.rows, strict=True)):
        setting.tick(0.9 + 0.1 * seed / len(models), 1)
        rows.append({"seed": seed, **of_one(model, task), "loss": member["loss"]})
    setting.tick(1, 1)
    count = len(rows)

    def values(name: str) -> list[float]:
        return [row[name] for row in rows]

    losses = [np.inf if loss is None else loss for loss in values("loss")]
    numbers: list[Number] = [
        median_near(name, values(name), float(step), 0.02, paper=paper)
        for name, paper in PAPER.items()
    ]
    numbers += [
        no_more_than("residual", values("residual"), PAPER_RESIDUAL, what="median"),
        median_at_most(
            "residual_at_query", values("residual_at_query"), 2e-3, paper=PAPER_RESIDUAL
        ),
        median_at_most("loss", losses, 0.0947, paper=PAPER_LOSS),
        near(
            "gd_loss",
            task.best_loss,
            PAPER_GD_LOSS,
            2e-4,
            what="closed form",
            paper=PAPER_GD_LOSS,
            seeds=1,
        ),
    ]
    numbers.append(median_at_most("attention - GD", values("attention - GD"), 0.02, paper=None))
    notes = (
        "residual_at_query: query neurons (λ near 0) read no y, as at the query itself. "
        "attention - GD: the attention that decompile finds in that network, against the optimal "
        "gradient step, both as functions on normal tokens.",
        f"A weight that gets no gradient ends at {undecayed(recipe):.1e} of its first value.",
    )
    learned = np.stack([polynomial(model).coefficients[0] for model in models])
    arrays = {
        "powers": polynomial(models[0]).powers,
        "coefficients": learned,
        "at_query": np.stack([polynomial(at_query(m, task.d_x)).coefficients[0] for m in models]),
        "gradient_step": polynomial(task.best_attention()).coefficients[0],
        "steps": students.run.steps,
        "losses": students.run.losses,
        "decay": np.stack([np.asarray(model.decay) for model in models]),
    }
    seeds = tuple(range(count))
    return Outcome(
        tuple(numbers), tuple(rows), notes, seeds, students.steps, arrays, (students.run,)
    )


def undecayed(recipe: Recipe) -> float:
    """What weight decay alone leaves of a weight."""
    progress = jnp.linspace(0, 1, 10_001)
    mean = float(jnp.mean(jax.vmap(recipe.decay_schedule)(progress)))
    return float(np.exp(-recipe.weight_decay * recipe.steps * mean))


def of_one(model: GatedRNN, task: Any) -> dict[str, Any]:
    """The numbers of one student."""
    own = polynomial(model)
    reading = at_query(model, task.d_x)
    found = decompile(reading)
    best = quadratic_form(task.best_attention())
    kind = kinds(np.asarray(model.decay))
    return {
        **{name: own.coefficient(0, *p) for name, p in zip(PAPER, POWERS, strict=True)},
        "residual": own.residual(0, *POWERS),
        "residual_at_query": polynomial(reading).residual(0, *POWERS),
        "memory neurons": int(np.sum(kind == "memory")),
        "not attention": found.residual,
        "attention - GD": size(quadratic_form(found.attention) - best) / size(best),
    }


def at_query(model: GatedRNN, d_x: int) -> GatedRNN:
    """The network whose query neurons cannot read y.

    On queries with y = 0 it is the same where those neurons have λ = 0; with λ up to 0.02, as they
    are counted, it is so to about a thousandth.
    """
    own = in_float64(model)
    passes_on = kinds(own.decay) == "query"

    def blind(W: np.ndarray) -> np.ndarray:
        W = W.copy()
        W[passes_on, d_x:-1] = 0
        return W

    return eqx.tree_at(
        lambda one: (one.W_in_m, one.W_in_x), own, (blind(own.W_in_m), blind(own.W_in_x))
    )
