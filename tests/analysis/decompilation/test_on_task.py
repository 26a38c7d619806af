"""On the task's own tokens: regression and recall networks are recognised, and steps are read."""

import equinox as eqx
import jax
import numpy as np
import pytest
from scrambles import weights

import underhood as uh
from underhood.analysis.decompilation.on_task import ratio_share, sampled_chunks, task_features
from underhood.analysis.decompilation.projection import attention_features

pytestmark = pytest.mark.usefixtures("x64")

REGRESSION = uh.tasks.InContextRegression(d_x=2, d_y=2, pairs=6)
STEP = float(REGRESSION.best_attention().W_V[0, 2])


def at_the_optimum(task=REGRESSION):
    return uh.compile(task.best_attention()).layer


def careless(rnn, task, strength=1.0):
    """The same answers at queries without y; other tokens meet more: neurons of λ = 0 read y."""
    given = weights(rnn)
    query = given["decay"] == 0
    W = given["W_in_m"]
    noise = np.random.default_rng(0).normal(size=W.shape)
    W[np.ix_(query, np.arange(task.d_x, task.d_in))] += (
        strength * noise[np.ix_(query, np.arange(task.d_x, task.d_in))]
    )
    return uh.GatedRNN(**(given | {"W_in_m": W}))


def test_a_network_at_the_optimum_is_recognised_on_its_task():
    rnn = careless(at_the_optimum(), REGRESSION)
    assert uh.decompile(rnn).residual > 0.1
    result = uh.decompile(rnn, task=REGRESSION)
    assert result.is_attention and result.residual < 1e-6
    assert "on the task's tokens" in result.reason and "InContextRegression" in result.reason
    # The certificate speaks of all sequences, so it is far off where the task never goes.
    assert result.certificate.residual > 0.1


def test_the_step_is_read_with_its_preconditioner():
    result = uh.decompile(careless(at_the_optimum(), REGRESSION), task=REGRESSION)
    step = result.gradient_step(REGRESSION)
    assert step.step == pytest.approx(STEP, rel=1e-9) and step.best_step == pytest.approx(STEP)
    np.testing.assert_allclose(step.preconditioner, np.eye(2), atol=1e-9)
    assert step.residual < 1e-9 and "one gradient step" in str(step)
    P = np.array([[1.5, 0.2], [0.0, 0.5]])
    source = REGRESSION.best_attention()
    other = eqx.tree_at(lambda layer: layer.W_K, source, P.T @ np.asarray(source.W_K))
    skewed = uh.decompile(uh.compile(other).layer, task=REGRESSION).gradient_step(REGRESSION)
    assert skewed.step == pytest.approx(STEP, rel=1e-9)
    np.testing.assert_allclose(skewed.preconditioner, P, atol=1e-9)


def test_scale_changes_nothing():
    rnn = at_the_optimum()
    huge = eqx.tree_at(lambda layer: layer.D, rnn, np.asarray(rnn.D) * 2.0**500)
    result = uh.decompile(huge, task=REGRESSION)
    assert result.is_attention
    assert result.gradient_step(REGRESSION).step == pytest.approx(STEP * 2.0**500, rel=1e-9)


def test_untrained_and_disturbed_networks_are_refused():
    sizes = {"d_in": 4, "hidden": 12, "gated": 12, "d_out": 2, "key": jax.random.key(0)}
    for rnn in (uh.GatedRNN.init(**sizes), disturbed(at_the_optimum(), 0.1)):
        result = uh.decompile(rnn, task=REGRESSION)
        assert result.verdict == "not attention" and "no number of heads" in result.reason


def disturbed(rnn, share):
    rng = np.random.default_rng(1)
    return uh.GatedRNN(
        **{
            name: W if name == "decay" else W + share * rng.normal(size=W.shape)
            for name, W in weights(rnn).items()
        }
    )


@pytest.mark.parametrize("between", [False, True])
def test_recall_is_recognised(between):
    task = uh.tasks.AssociativeRecall(2 if between else 3, between)
    result = uh.decompile(at_the_optimum(task), task=task)
    assert result.is_attention and result.residual < 1e-6


def test_several_heads_on_a_task():
    rng = np.random.default_rng(0)
    made = [uh.LinearAttention(*rng.normal(size=(3, 3, 3))) for _ in range(2)]
    rnn = uh.compile(uh.MultiHead(made, rng.normal(size=(3, 6)))).layer
    teacher = uh.tasks.TeacherStudent(uh.LinearAttention(*rng.normal(size=(3, 3, 3))), length=8)
    result = uh.decompile(rnn, task=teacher)
    assert result.is_attention and len(result.heads) == 2
    assert uh.decompile(rnn, task=teacher, max_heads=1).verdict == "undecided"


def test_features_are_those_of_a_loop():
    features = attention_features(REGRESSION.d_in, biases=True)
    xs = next(sampled_chunks(REGRESSION, 0))[:5]
    fast = task_features(REGRESSION, xs, 0.5, features.ravel())[:, 0]
    rows, columns = np.triu_indices(5)
    for sequence, row in zip(xs, fast, strict=True):
        zs = np.hstack([sequence, np.ones((len(sequence), 1))])
        S = sum(0.5**k * np.outer(z, z) for k, z in enumerate(zs[::-1]))
        np.testing.assert_allclose(row, np.outer(S[rows, columns], zs[-1]).ravel(), rtol=1e-12)


def test_errors_are_those_of_repetition():
    rng = np.random.default_rng(0)
    shares = [
        ratio_share(*(scale * rng.chisquare(4, size=400) for scale in (0.01, 1.0)))
        for _ in range(400)
    ]
    spread = np.std([share.value for share in shares])
    assert np.mean([share.error for share in shares]) == pytest.approx(spread, rel=0.1)


@pytest.mark.usefixtures("unhooked")
def test_bad_tasks_are_refused_in_one_line():
    rnn = at_the_optimum()
    for task, message in (
        ("regression", "the task is a str"),
        (uh.tasks.InContextRegression(), "maps 4 numbers to 2"),
    ):
        with pytest.raises(uh.BadInput, match=message):
            uh.decompile(rnn, task=task)
    result = uh.decompile(rnn)
    for task, message in (
        (uh.tasks.AssociativeRecall(2), "give an InContextRegression"),
        (uh.tasks.InContextRegression(), "maps 4 numbers to 2"),
    ):
        with pytest.raises(uh.BadInput, match=message):
            result.gradient_step(task)
