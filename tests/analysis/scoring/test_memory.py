"""attention_score counts memory only: pairs, layers without memory, tasks, errors, baselines."""

import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from teachers import attention

import underhood as uh
from underhood.analysis.scoring.baselines import STORED, stored_baselines, untrained
from underhood.analysis.scoring.jackknife import clipped, jackknife_error, with_error
from underhood.analysis.scoring.layer_arrays import make_plan
from underhood.analysis.scoring.pairs import draw_sample, equal_tokens
from underhood.analysis.scoring.scores import attention_score
from underhood.constructions.sources.reference import reference

KEY = jax.random.key(3)
SMALL = {"time": 16, "sequences": 128}


def counted(xs: jax.Array) -> jax.Array:
    return xs * (1 + jnp.arange(len(xs)))[:, None]


def cubed(xs: jax.Array) -> jax.Array:
    return xs**3


def times_square(xs: jax.Array) -> jax.Array:
    return xs * jnp.sum(xs**2, axis=1, keepdims=True)


# --- no memory


@pytest.mark.parametrize("time", [32, 512])
@pytest.mark.parametrize("layer", [cubed, times_square, counted])
def test_layers_without_memory_score_zero(layer, time: int) -> None:
    result = attention_score(layer, key=KEY, d_in=3, time=time)
    numbers = (result.score, result.memory, result.form, result.whole, result.score_with_biases)
    assert numbers == (0, 0, 0, 0, 0)
    assert result.notes[0] == "The past does not change the output: the layer has no memory."


def test_the_first_token_of_a_sequence_is_no_memory_and_the_future_is_none_either() -> None:
    def looks_ahead(xs: jax.Array) -> jax.Array:
        return xs + jnp.flip(jnp.cumsum(jnp.flip(xs, 0), axis=0), 0)

    assert attention_score(looks_ahead, key=KEY, d_in=2, **SMALL).memory == 0
    before = attention_score(lambda xs: jnp.roll(xs, 1, axis=0), key=KEY, d_in=2, **SMALL)
    # The output is the last token but one: nothing but memory, and odd in it.
    assert before.memory == pytest.approx(1, abs=4 * before.errors.memory + 0.02)
    assert before.score == 0


def test_the_share_of_memory_is_that_of_the_closed_form() -> None:
    # y_t = a x_t + Σ_{s<t} x_s has variance a² + t − 1, of which t − 1 is memory.
    a, time = 2.0, 9
    weights = np.arange(1, time)
    expected = weights.sum() / (a**2 + weights).sum()

    def layer(xs: jax.Array) -> jax.Array:
        return jnp.cumsum(xs, axis=0) + (a - 1) * xs

    result = attention_score(layer, key=KEY, d_in=2, time=time, sequences=2048)
    assert result.errors.memory < 0.03
    assert result.memory == pytest.approx(expected, abs=4 * result.errors.memory)


def test_attention_beside_something_memoryless_is_attention_in_form_only() -> None:
    source = attention(3)
    for size, low, high in ((1e3, 0, 0.05), (1e-3, 0.999, 1)):
        result = attention_score(
            lambda xs, size=size: source(xs) + size * xs**2, key=KEY, d_in=3, **SMALL
        )
        assert result.form >= 1 - 1e-6 and result.score == min(result.form, result.whole)
        assert low <= result.whole <= high
    # The memory is another one, while attention explains nearly all of the output.
    result = attention_score(
        lambda xs: counted(xs) + jnp.cumsum(xs, axis=0) - xs, key=KEY, d_in=3, **SMALL
    )
    assert result.score < 0.1


# --- pairs


def test_pairs_have_equal_tokens_and_differences_of_attention() -> None:
    source = attention(2, decay=np.full(2, 0.8))
    plan = make_plan(source, key=KEY, time=6, sequences=40, d_in=None, task=None)
    with jax.enable_x64(True):
        sample = draw_sample(source, KEY, plan)
    pairs = sample.pairs
    assert len(pairs.place) == 20 * 5 and set(pairs.place) == {1, 2, 3, 4, 5}
    memories = pairs.memories(0.8)
    for row, (first, second, place) in enumerate(
        zip(pairs.first, pairs.second, pairs.place, strict=True)
    ):
        past, other_past = pairs.pasts[first].copy(), pairs.pasts[second].copy()
        other_past[place] = past[place]
        ys = reference(source, np.stack([past, other_past]))[:, place]
        np.testing.assert_allclose(sample.differences[row], ys[0] - ys[1], atol=1e-12)
        np.testing.assert_allclose(sample.outputs[row], ys[0], atol=1e-12)
        S = sum(
            0.8 ** (place - s) * (np.outer(a, a) - np.outer(b, b))
            for s, (a, b) in enumerate(zip(past[:place], other_past[:place], strict=True))
        )
        np.testing.assert_allclose(memories.difference[row], S, atol=1e-12)
    higher, lower = (pairs.memories(0.8 + step) for step in (1e-6, -1e-6))
    for value, slope in (("S", "slope"), ("difference", "difference_slope")):
        numeric = (getattr(higher, value) - getattr(lower, value)) / 2e-6
        np.testing.assert_allclose(getattr(memories, slope), numeric, atol=1e-7)


def test_partners_with_equal_tokens() -> None:
    tokens, others = np.eye(4)[[0, 1, 1, 3, 0]], np.eye(4)[[1, 0, 2, 1, 0]]
    first, second = equal_tokens(tokens, others)
    assert first.tolist() == [0, 1, 2, 4]
    np.testing.assert_array_equal(tokens[first], others[second])
    assert set(second) == {0, 1, 3}
    rng = np.random.default_rng(0)
    assert len(equal_tokens(rng.normal(size=(5, 2)), rng.normal(size=(5, 2)))[0]) == 0


# --- tasks


@pytest.mark.parametrize(
    "task",
    [
        uh.tasks.InContextRegression(2, 1, 5),
        uh.tasks.InContextRegression(2, 1, 5, mirrored=True),
        uh.tasks.AssociativeRecall(3),
        uh.tasks.AssociativeRecall(4, pairs=2),
        uh.tasks.TeacherStudent(attention(2), 8),
    ],
    ids=["regression", "mirrored", "recall", "few pairs", "teacher"],
)
def test_the_best_attention_of_a_task_scores_one_on_its_tokens(task: uh.tasks.Task) -> None:
    layer = uh.compile(task.best_attention()).layer
    result = attention_score(layer, key=KEY, task=task)
    assert min(result.score, result.state_kv, result.state_q) >= 1 - 1e-9
    with jax.enable_x64(True):
        inputs = np.asarray(task.sample(jax.random.key(5), 20).inputs)
    places = slice(-1, None) if task.reads_last else slice(None)
    np.testing.assert_allclose(
        reference(result.attention, inputs)[:, places],
        reference(task.best_attention(), inputs)[:, places],
        atol=1e-8,
    )


def test_what_a_network_does_off_the_task_does_not_count_on_its_tokens() -> None:
    # The query's y is always 0, so a network may do anything with it.
    task = uh.tasks.InContextRegression(2, 1, 5)
    best = task.best_attention()

    def layer(xs: jax.Array) -> jax.Array:
        return best(xs) + jnp.cumsum(xs, axis=0)[:, :1] * xs[:, 2:]

    assert attention_score(layer, key=KEY, task=task).score >= 1 - 1e-9
    assert attention_score(layer, key=KEY, d_in=3).score < 0.5


def test_random_networks_score_low_on_regression() -> None:
    task = uh.tasks.InContextRegression(2, 1, 5)
    for seed in range(2):
        key = jax.random.key(seed)
        layer = uh.GatedRNN.init(d_in=3, hidden=12, gated=12, d_out=1, key=key)
        assert attention_score(layer, key=KEY, task=task).score < 0.1


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"baselines": "all"}, "baselines is 'all'; give True or False"),
        ({"task": attention(2)}, "the task is a LinearAttention; give one of uh.tasks"),
        ({"task": uh.tasks.TeacherStudent(attention(3), 8)}, "d_in is 3 but the layer reads 2"),
        ({"task": uh.tasks.TeacherStudent(attention(2), 8), "time": 9}, "time is 9 .* task has 8"),
        ({"task": uh.tasks.InContextRegression(1, 1, 4)}, "returns 2 numbers .* task reads 1"),
    ],
)
def test_tasks_and_baselines_that_do_not_fit_are_refused_in_one_line(
    settings: dict, message: str
) -> None:
    with pytest.raises(uh.BadInput, match=message) as refusal:
        attention_score(attention(2), key=KEY, **settings)
    assert "\n" not in str(refusal.value)


# --- errors


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=(16, 1))
    mean, error = with_error(lambda sums: sums / 16, values)
    assert mean == pytest.approx(values.mean())
    # Without group g the sum of the rest, over 16, is 15/16 of a mean of 15.
    assert error == pytest.approx(15 / 16 * values.std(ddof=1) / 4)
    rest = np.array([np.delete(values, g).mean() for g in range(16)])
    assert jackknife_error(rest) == pytest.approx(values.std(ddof=1) / 4)


def test_errors_of_shares_reach_no_further_than_zero_and_one() -> None:
    values, errors = clipped(np.array([-0.1, 0.5, 1.01, -3.0]), np.array([0.3, 0.2, 0.1, 0.2]))
    np.testing.assert_allclose(values, [0, 0.5, 1, 0])
    np.testing.assert_allclose(errors, [0.2, 0.2, 0.09, 0], atol=1e-12)


def test_errors_are_those_of_repeated_measurements() -> None:
    source = attention(2, decay=np.full(2, 0.7))

    def layer(xs: jax.Array) -> jax.Array:
        return jnp.tanh(source(xs)) + 0.3 * xs**2

    results = [
        attention_score(layer, key=jax.random.key(seed), d_in=2, time=8, sequences=256)
        for seed in range(24)
    ]
    for name in ("memory", "form", "whole", "decay", "missed_by_degree_5"):
        seen = np.std([getattr(result, name) for result in results], ddof=1)
        said = np.sqrt(np.mean([getattr(result.errors, name) ** 2 for result in results]))
        assert 0.5 < said / seen < 2, name
    result = results[0]
    assert result.beyond_degrees == result.missed_by_degree_5
    assert str(result).count("±") == 6 + 6 + 1
    assert vars(result.errors).keys() <= {*vars(result), "decay"}


# --- baselines


def test_stored_baselines_are_what_is_measured() -> None:
    stored = json.loads(STORED.read_text())
    assert dict(stored_baselines()) == stored["baselines"]
    assert set(stored["baselines"]) == {"identity", "random", "untrained", "compiled"}
    layer = uh.LSTM.init(d_in=3, hidden=16, key=jax.random.key(3))
    result = attention_score(layer, key=KEY, baselines=True)
    for name, score in result.baselines.items():
        assert score == pytest.approx(stored["baselines"][name], abs=0.05)
    assert result.baselines["compiled"] >= 1 - 1e-9 and result.baselines["identity"] == 0
    assert "for comparison" in str(result)


def test_an_untrained_layer_keeps_its_sizes_and_vectors() -> None:
    layer = uh.GatedRNN.init(d_in=3, hidden=30, gated=5, d_out=2, key=KEY)
    other = untrained(layer, key=jax.random.key(4))
    np.testing.assert_array_equal(other.decay, layer.decay)
    assert other.W_out_m.shape == (5, 30) and not np.allclose(other.W_out_m, layer.W_out_m)
    assert np.std(other.W_out_m) == pytest.approx(30**-0.5, rel=0.3)
    plain = attention_score(cubed, key=KEY, d_in=2, baselines=True, **SMALL)
    assert set(plain.baselines) == {"identity", "random", "compiled"}


def test_the_table_of_the_page_is_the_stored_one_and_says_what_it_should() -> None:
    rows = json.loads(STORED.read_text())["rows"]
    assert len(rows) >= 20
    page = (STORED.parents[3] / "docs" / "scores.md").read_text()
    (block,) = re.findall(r"<!-- scores -->\n```text\n(.*?)```", page, flags=re.DOTALL)
    lines = block.splitlines()[1:]
    assert len(lines) == len(rows)
    for row, line in zip(rows, lines, strict=True):
        assert line.startswith(row["kind"]) and row["layer"] in line
        assert f"{row['score']:8.6f}" in line and row["score"] == min(row["form"], row["whole"])
    scores = {kind: [row["score"] for row in rows if row["kind"] == kind] for kind in LIMITS}
    for kind, (low, high) in LIMITS.items():
        assert scores[kind] and low <= min(scores[kind]) <= max(scores[kind]) <= high, kind


LIMITS = {"compiled": (1 - 1e-6, 1), "no memory": (0, 0), "random": (0, 0.1)}


def test_trained_students_are_ordered_as_in_figure4a() -> None:
    rows = json.loads(STORED.read_text())["rows"]
    trained = {row["layer"]: row for row in rows if row["kind"] == "trained"}
    root = STORED.parents[3] / "results" / "reference" / "quick" / "figure4a" / "result.json"
    result = json.loads(root.read_text())
    losses = {row["architecture"]: row["loss"] for row in result["rows"] if row["layers"] == 1}
    assert set(losses) == set(trained)
    order = sorted(losses, key=lambda name: losses[name])
    for better, worse in itertools.pairwise(order):
        a, b = trained[better], trained[worse]
        assert a["score"] >= b["score"] - 2 * np.hypot(a["error"], b["error"]), (better, worse)
    # Those that the paper sets apart are apart.
    assert trained["gated RNN"]["score"] > trained["LRU In+Out"]["score"] > 0.95
    assert trained["LRU In+Out"]["score"] > max(trained[name]["score"] for name in ("LSTM", "GRU"))
