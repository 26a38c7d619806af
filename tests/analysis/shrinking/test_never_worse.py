"""polish never returns a worse model, says what it does, and ends with a reason."""

import time

import jax
import numpy as np
import pytest
from scrambles import rebuilt
from teachers import attention, gated_rnn

import underhood as uh
from underhood.analysis.shrinking.fresh_loss import FreshLoss, clearly_better, outputs_on
from underhood.common.live import QUIET_SECONDS, Speaker
from underhood.training.second_order.examples import Data
from underhood.training.second_order.separable import SeparableNetwork

pytestmark = pytest.mark.usefixtures("x64")

LENGTH = 12


def fresh_losses(models, task, many: int = 512) -> list[float]:
    inputs, targets = task.sample(jax.random.key(777), many)
    outputs = (jax.vmap(model)(inputs) for model in models)
    return [float(task.loss(ys[:, -1] if task.reads_last else ys, targets)) for ys in outputs]


@pytest.mark.parametrize("kind", ["gated", "side"])
@pytest.mark.parametrize("sequences", [1, 2, None])
def test_untrained_networks_are_never_made_worse(kind: str, sequences: int | None) -> None:
    kept = 0
    for seed in range(4):
        task = uh.tasks.TeacherStudent(attention(3, seed), LENGTH)
        sizes = {"d_in": 3, "hidden": 3, "d_out": 3, "key": jax.random.key(seed)}
        if kind == "gated":
            model = uh.GatedRNN.init(**sizes, gated=3)
        else:
            model = uh.SideGatedRNN.init(**sizes)
        polished = uh.polish(model, task, key=jax.random.key(1), sequences=sequences, steps=20)
        assert polished.loss <= polished.loss_before
        before, after = fresh_losses([model, polished.model], task)
        assert after <= before * (1 + 1e-6)
        assert polished.reason and polished.reason in polished.message
        kept += polished.kept_as_trained
        if polished.kept_as_trained:
            assert "kept the model as it was" in polished.message
            np.testing.assert_array_equal(polished.model.D, np.asarray(model.D, float))
    # Fits to one sequence are worse on others, so this test has seen what it is about.
    assert kept > 0 or sequences != 1


def test_a_solved_task_is_left_alone() -> None:
    task = uh.tasks.TeacherStudent(attention(2, 0), LENGTH)
    built = uh.compile(task.attention).layer
    polished = uh.polish(built, task, key=jax.random.key(0))
    assert polished.loss <= polished.loss_before < 1e-25
    assert max(fresh_losses([polished.model], task)) < 1e-24


def test_a_student_of_regression_is_given_up_soon_and_unchanged() -> None:
    # The fit follows the noise of its samples: 300 s went by before it was given up.
    task = uh.tasks.InContextRegression(2, 1, 6)
    best = uh.compile(task.best_attention()).layer
    rng = np.random.default_rng(0)
    wide = uh.GatedRNN.init(d_in=3, hidden=12, gated=12, d_out=1, key=jax.random.key(0))
    model = uh.GatedRNN(
        W_in_m=np.vstack([best.W_in_m, wide.W_in_m]),
        W_in_x=np.vstack([best.W_in_x, wide.W_in_x]),
        decay=np.append(best.decay, rng.uniform(0.2, 0.8, 12)),
        W_out_m=block(best.W_out_m, wide.W_out_m),
        W_out_x=block(best.W_out_x, wide.W_out_x),
        D=np.hstack([best.D, 1e-3 * wide.D]),
    )
    lines: list[str] = []
    polished = uh.polish(
        model, task, key=jax.random.key(1), thresholds=(0.0,), progress=lines.append
    )
    assert polished.loss <= polished.loss_before
    assert polished.attempts[-1].steps <= 20
    before, after = fresh_losses([model, polished.model], task, 20_000)
    assert after <= before + 0.002 * task.best_loss
    assert lines[0].startswith("polish: fitting 1") and "step 0" in lines[1]


def block(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    zeros = np.zeros
    return np.block(
        [[A, zeros((len(A), B.shape[1]))], [zeros((len(B), A.shape[1])), np.asarray(B, float)]]
    )


def test_a_fit_ends_when_fresh_sequences_do_not_gain() -> None:
    rng = np.random.default_rng(0)
    network = SeparableNetwork.of(rebuilt(gated_rnn(2)))
    tokens = rng.normal(size=(30, 5, 2))
    right = Data(tokens, np.zeros((150, 3)), last=False)
    data = Data(tokens, outputs_on(right, network), last=False)
    fresh = FreshLoss(data, before=1.0)
    # The network is exact, so it is a new low; a second look is not.
    assert fresh.reason_to_stop(network) is None and fresh.best is network
    assert fresh.reason_to_stop(network) is None
    assert "2 steps in a row" in fresh.reason_to_stop(network)


def test_a_gain_within_chance_is_none() -> None:
    rng = np.random.default_rng(0)
    data = Data(np.zeros((400, 3, 1)), rng.normal(size=(400, 2)), last=True)
    before = np.zeros((400, 2))
    noise = 1e-3 * rng.normal(size=(400, 2))
    assert clearly_better(data, 0.1 * data.targets, before)
    assert not clearly_better(data, before, before)
    assert not clearly_better(data, -0.1 * data.targets, before)
    assert sum(clearly_better(data, side * noise, before) for side in (1, -1)) <= 1


# --- what is said


def test_long_work_speaks_on_stderr_by_itself(capsys, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    speaker = Speaker(None)
    for moment in (0.5, QUIET_SECONDS, QUIET_SECONDS + 1, 2 * QUIET_SECONDS + 0.1):
        now[0] = moment
        speaker.say(f"at {moment}")
    speaker.say("before a long step", long=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["at 2.0", "at 4.1", "before a long step"]
    for shown, expected in ((True, "a line\n"), (False, "")):
        Speaker(shown).say("a line")
        assert capsys.readouterr().err == expected


def test_every_step_is_shown_or_none(capsys) -> None:
    task = uh.tasks.TeacherStudent(attention(2, 0), LENGTH)
    model = gated_rnn(2, hidden=4, gated=4)
    model = rebuilt(model, D=np.asarray(model.D)[:2])
    polished = uh.polish(model, task, key=jax.random.key(0), steps=3, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert any("step 0, loss" in line for line in lines)
    again = uh.polish(model, task, key=jax.random.key(0), steps=3, progress=False)
    assert capsys.readouterr().err == "" and again.loss == polished.loss
