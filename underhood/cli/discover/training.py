"""How the command discover trains a student, and what to change when the student fails.

second-order  `uh.fit`; after Ctrl-C its best start so far is the student
gradient      gradient descent on samples, then polishing
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import PRNGKeyArray

    from underhood.cli.discover.command import Discover
    from underhood.layers import GatedRNN
    from underhood.report.discovery import Learning
    from underhood.tasks import MultiHeadTeacher, TeacherStudent

# A success has at most this loss, as a share of the variance of the teacher's outputs.
SUCCESS = 1e-16
# Updates by gradients, unless --steps is given.
UPDATES = 20_000


def train_second_order(
    options: "Discover", task: "TeacherStudent | MultiHeadTeacher", key: "PRNGKeyArray"
) -> tuple["GatedRNN", "Learning"]:
    """Return the student that second-order steps find, and how."""
    import numpy as np

    from underhood.layers import GatedRNN
    from underhood.report.discovery import Learning, StartCurve
    from underhood.report.loss_curve import LossCurve
    from underhood.training import fit

    goal = task.best_loss + SUCCESS * task.scale
    with LossCurve(goal) as display:
        trained = fit(
            options.student,
            task,
            key=key,
            width=options.neurons,
            restarts=options.starts,
            tolerance=SUCCESS,
            progress=False,
            watch=display.watch,
        )
    display.say(f"discover: {trained.message}")
    best = trained.best_start
    others = (losses for start, losses in display.losses.items() if start != best.number)
    learning = Learning(
        summary=f"loss {trained.loss:.2g} after {best.steps} second-order steps, "
        f"{len(trained.starts)} start{'s' if len(trained.starts) > 1 else ''}"
        f"{'; interrupted' if trained.interrupted else ''}",
        winner=StartCurve(np.arange(len(best.losses)), best.losses),
        others=tuple(StartCurve(np.arange(len(losses)), np.array(losses)) for losses in others),
        polished=None,
        loss=trained.loss,
        goal=goal,
        before=starting_decay(options, key, best.number),
        interrupted=trained.interrupted,
    )
    assert isinstance(trained.model, GatedRNN)
    return trained.model, learning


def starting_decay(options: "Discover", key: "PRNGKeyArray", number: int) -> "np.ndarray":
    """Return λ of the student that `fit` drew for a start."""
    import jax
    import numpy as np

    # As `fit` splits its key: one key per start for students, then one per start for data.
    student_key = jax.random.split(key, 2 * options.starts)[number]
    # Compiled, because drawing the matrices one by one takes seconds.
    draw = jax.jit(lambda key: options.student(options.neurons, key=key).decay)
    return np.asarray(draw(student_key))


def train_by_gradient(
    options: "Discover", task: "TeacherStudent | MultiHeadTeacher", key: "PRNGKeyArray"
) -> tuple["GatedRNN", "Learning"]:
    """Return the student that gradient descent and then polishing find, and how."""
    import jax
    import numpy as np

    from underhood.analysis import polish
    from underhood.report.discovery import Learning, StartCurve
    from underhood.training import Recipe
    from underhood.training.ensemble import make_ensemble
    from underhood.training.training import train_members

    train_key, polish_key = jax.random.split(key)
    recipe = Recipe.fast(steps=options.steps or UPDATES)
    ensemble = make_ensemble(options.student, task, recipe, widths=options.neurons, key=train_key)
    run = train_members(ensemble)
    polished = polish(run.best(), task, key=polish_key)
    summary = (
        f"loss {polished.loss_before:.2g} after {recipe.steps} updates by gradients, then "
        f"{polished.loss:.2g} after polishing, which is further training by second-order steps"
    )
    learning = Learning(
        summary=summary,
        winner=StartCurve(run.steps, run.losses[0]),
        others=(),
        polished=polished.loss,
        loss=polished.loss,
        goal=task.best_loss + SUCCESS * task.scale,
        before=np.asarray(ensemble.students[0].joined().decay),
    )
    return polished.model, learning


def advice(options: "Discover", task: "TeacherStudent | MultiHeadTeacher") -> str:
    """Say what to change after a student has failed."""
    from underhood.constructions import compile

    if options.length == 1:
        return (
            "with one token per sequence nothing tells memory from the current token; use "
            "--length 2 or more"
        )
    most = options.d * (options.d + 3) // 2
    # The construction of one head is the smallest that there is (docs/minimal.md).
    needed = compile(task.attention).layer.neurons if options.heads == 1 else most
    if options.neurons < needed:
        needs = "no student with fewer than" if options.heads == 1 else "a student can need"
        rest = " neurons computes this teacher" if options.heads == 1 else " neurons here"
        return f"{needs} {needed}{rest}; use --neurons {needed} or more"
    if options.method == "gradient":
        return "use more --steps or --neurons, or another --seed"
    return "use more --starts or another --seed"
