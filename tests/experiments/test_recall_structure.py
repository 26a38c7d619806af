"""What is found in networks built by hand to recall in the ways of the paper (Appendix D.3)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scrambles import orthogonal, rebuilt, swapped_branches
from teachers import random_side

import underhood as uh
from underhood.experiments.paper.recall_gated import (
    ITEMS,
    algorithm,
    judge_algorithm,
    queried,
    received,
)
from underhood.experiments.paper.recall_side import (
    STRUCTURE,
    judge_structure,
    matrices_of,
    oriented,
    structure,
    structure_row,
)
from underhood.experiments.protocols import students
from underhood.experiments.protocols.recall import accuracy_of, judge_accuracy, pair_columns
from underhood.experiments.protocols.students import Students
from underhood.experiments.running import Setting
from underhood.sweeps.engines import MissingRun, Stored
from underhood.tasks import AssociativeRecall
from underhood.training import Run

pytestmark = pytest.mark.usefixtures("x64")

TASK = AssociativeRecall()
S = TASK.symbols
EYE = np.eye(S)
# The number that stands for each x, and another one: +1 and −1 in turn.
VALUE, SIGN = np.linspace(-0.5, 1.5, S), np.cos(np.pi * np.arange(S))


def gated(reads_y, values, asked, W_out_m, W_out_x, D) -> uh.GatedRNN:
    """Memory neuron i receives (reads_y[i]·y)(values[i]·x), query neuron j asked[j]·x."""
    n, q = len(values), len(asked)
    nothing = np.zeros((n + q, 2 * S + 1))
    W_in_m, W_in_x = nothing.copy(), nothing.copy()
    W_in_m[:n, S:-1], W_in_x[:n, :S] = reads_y, values
    W_in_m[n:, -1], W_in_x[n:, :S] = 1, asked
    decay = np.concatenate([np.ones(n), np.zeros(q)])
    return uh.GatedRNN(
        W_in_m=W_in_m, W_in_x=W_in_x, decay=decay, W_out_m=W_out_m, W_out_x=W_out_x, D=D
    )


def squared(reads_y, values, asked, memory) -> uh.GatedRNN:
    """Scores −(memory[y]·h − query)², one query neuron."""
    apart = np.hstack([memory, -np.ones((S, 1))])
    return gated(reads_y, values, asked[None], apart, apart, -EYE)


ALIKE = np.tile(VALUE, (S, 1))
THE_PAPER_S = squared(EYE, ALIKE, VALUE, EYE)
# The same function, the memory turned by an orthogonal matrix.
TURN = orthogonal(np.random.default_rng(0), S)
MIXED = squared(TURN, ALIKE, VALUE, TURN.T)
# Every other y keeps another number of its x.
TWO_VALUES = squared(EYE, np.where(np.arange(S)[:, None] % 2, SIGN, VALUE), VALUE, EYE)
# The query neuron holds a number that has nothing to do with the stored one.
CENTRED = VALUE - VALUE.mean()
UNRELATED = SIGN - CENTRED * (SIGN @ CENTRED) / (CENTRED @ CENTRED)
UNASKED = squared(EYE, ALIKE, UNRELATED, EYE)
# Scores v_query·v_stored.
STORED, QUERY = np.hstack([EYE, np.zeros((S, 1))]), np.repeat([[0.0] * S + [1]], S, axis=0)
PRODUCT = gated(EYE, ALIKE, VALUE[None], STORED, QUERY, EYE)
# Two numbers stand for each x: scores −|v_query − v_stored|² with vectors v.
BOTH = np.hstack([EYE, EYE])
APART = np.hstack([np.eye(2 * S), -np.kron(np.eye(2), np.ones((S, 1)))])
PAIR = np.array([VALUE, SIGN])
TWO_NUMBERS = gated(BOTH.T, np.repeat(PAIR, S, axis=0), PAIR, APART, APART, -BOTH)


def test_the_paper_s_algorithm_is_found_in_full() -> None:
    items = algorithm(THE_PAPER_S, TASK)
    counts = {name: items[name] for name in ("neurons", "memory", "query", "other")}
    assert counts == {"neurons": 9, "memory": 8, "query": 1, "other": 0}
    assert {name: items[name] for name in ITEMS} == pytest.approx(dict.fromkeys(ITEMS, 1.0))
    verdicts = judge_algorithm([items] * 4, TASK, attention=72)
    assert {number.verdict for number in verdicts} == {"reproduced"}
    # It is always right, the turned memory too; one number in the query and two in the memory
    # are not.
    assert accuracy_of(THE_PAPER_S, TASK) == accuracy_of(MIXED, TASK) == 1
    assert accuracy_of(TWO_VALUES, TASK) < 0.9
    # Vectors of numbers take twice the neurons.
    items = algorithm(TWO_NUMBERS, TASK)
    assert (items["memory"], items["query"]) == (2 * S, 2)


def test_what_changes_no_item() -> None:
    # A shift of all values.
    items = algorithm(squared(EYE, ALIKE + 10, VALUE + 10, EYE), TASK)
    assert {name: items[name] for name in ITEMS} == pytest.approx(dict.fromkeys(ITEMS, 1.0))
    # What y alone writes: every y comes once, so it is the same number in every sequence.
    shifts = np.random.default_rng(3).normal(size=(S, 1))
    items = algorithm(squared(EYE, VALUE + shifts, VALUE, EYE), TASK)
    assert items["one value"] == pytest.approx(1) and items["same value"] == pytest.approx(1)
    # A second query neuron: the best of them counts.
    apart = np.hstack([EYE, np.tile([[0, -1]], (S, 1))])
    items = algorithm(gated(EYE, ALIKE, PAIR[::-1], apart, apart, -EYE), TASK)
    assert items["query"] == 2 and items["same value"] == pytest.approx(1)


def test_what_neurons_receive_is_what_they_are_fed() -> None:
    rng = np.random.default_rng(1)
    W_m, W_x = rng.normal(size=(2, 5, 2 * S + 1))
    unused = np.zeros((1, 5))
    given = {"W_in_m": W_m, "W_in_x": W_x, "W_out_m": unused, "W_out_x": unused}
    rnn = uh.GatedRNN(**given, decay=np.ones(5), D=np.zeros((S, 1)))
    G, asked = received(rnn, TASK), queried(rnn, TASK)
    assert G.shape == (5, S, S) and asked.shape == (5, S)
    pairs = np.array([np.concatenate([EYE[x], EYE[y]]) for x in range(S) for y in range(S)])
    written = np.asarray(rnn.write(jnp.asarray(pairs))).reshape(S, S, 5)
    np.testing.assert_allclose(G, np.moveaxis(written, 2, 0), rtol=1e-12, atol=1e-12)
    queries = np.hstack([EYE, np.zeros((S, S))])
    written = np.asarray(rnn.write(jnp.asarray(queries)))
    np.testing.assert_allclose(asked, written.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("between", [False, True])
def test_pairs_are_read_where_they_stand(between: bool) -> None:
    task = uh.tasks.AssociativeRecall(between_tokens=between)
    tokens = np.asarray(task.sample(jax.random.key(0), 3).inputs)
    reads_x, reads_y = pair_columns(task)
    for column in (reads_x, reads_y):
        held = tokens[:, :-1, column].sum(axis=-1)
        # Every pair shows one x and one y; a token between two pairs shows neither there.
        assert np.all(held[:, :: 2 if between else 1] == 1)
        assert not between or np.all(held[:, 1::2] == 0)
    assert np.all(tokens[:, -1, reads_x].sum(axis=-1) == 1)


def test_the_attention_of_the_task_matches_with_tokens_between_too() -> None:
    for between in (False, True):
        task = uh.tasks.AssociativeRecall(4, between_tokens=between)
        built = uh.compile(task.best_attention(), "side_gated_rnn").layer
        row = structure_row(oriented(built, task), task)
        names = set(STRUCTURE) - {"equal peaks"}
        assert all(row[name] >= STRUCTURE[name] for name in names)
        # Attention has no negative peak; the paper's network has.
        assert row["equal peaks"] == pytest.approx(0, abs=1e-12)


# Network, items that fall below these numbers, items that it keeps.
VIOLATIONS = {
    "mixed": (MIXED, {"one y each": 0.6}, {"one value", "same value", "squares", "in general"}),
    "two values": (TWO_VALUES, {"one value": 0.8, "squares": 0.5}, {"one y each"}),
    "no query": (UNASKED, {"same value": 1e-9, "squares": 0.1}, {"one y each", "one value"}),
    "product": (PRODUCT, {"squares": 0.6, "in general": 0.6}, {*ITEMS[:3]}),
    "two numbers": (TWO_NUMBERS, {"one value": 0.8, "squares": 0.9}, {"one y each", "in general"}),
}


@pytest.mark.parametrize(("rnn", "fallen", "kept"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_each_item_falls_where_a_network_does_otherwise(rnn, fallen, kept) -> None:
    items = algorithm(rnn, TASK)
    for name, limit in fallen.items():
        assert items[name] < limit, name
    for name in kept:
        assert items[name] == pytest.approx(1), name
    numbers = judge_algorithm([items] * 4, TASK, attention=72)
    differing = {number.name for number in numbers if number.verdict == "differs"}
    assert set(fallen) <= differing and not kept & differing


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_without_memory_or_query_nothing_is_found(decay: float) -> None:
    items = algorithm(rebuilt(THE_PAPER_S, decay=np.full(S + 1, decay)), TASK)
    assert [items[name] for name in ITEMS] == [0] * len(ITEMS)
    assert items["other"] == (S + 1 if decay == 0.5 else 0)


def from_matrices(A: np.ndarray, B: np.ndarray) -> uh.SideGatedRNN:
    """W_x^in = W^side = [A | 0], W_m^in = [0 | B], D = Bᵀ, λ = 1."""
    left, right = np.hstack([A, np.zeros_like(A)]), np.hstack([np.zeros_like(B), B])
    return uh.SideGatedRNN(W_in_m=right, W_in_x=left, decay=np.ones(len(A)), W_side=left, D=B.T)


READS = ("W_in_x reads x", "W_side reads x", "W_in_m reads y")
AGREE = ("W_in_x and W_side", "D and B")


def test_the_paper_s_weights_read_and_agree_as_it_says() -> None:
    A, B = np.random.default_rng(0).normal(size=(2, 11, S))
    rnn = from_matrices(A, B)
    M = matrices_of(rnn, S)
    items = structure(rnn, M, S)
    assert {name: items[name] for name in READS} == dict.fromkeys(READS, 1.0)
    assert {name: items[name] for name in AGREE} == pytest.approx(dict.fromkeys(AGREE, 1.0))
    assert (items["neurons"], items["not memory"]) == (11, 0)
    # M(x, y) = Bᵀ diag(By ⊙ Ax) A; rank 1 is not a matter of the formula.
    for x, y in ((0, 0), (3, 5), (7, 2)):
        np.testing.assert_allclose(M[x, y], B.T @ np.diag(B[:, y] * A[:, x]) @ A)
    assert items["second singular value"] > 0.3


def test_signs_and_scales_of_neurons_change_no_agreement() -> None:
    rng = np.random.default_rng(1)
    rnn = from_matrices(*rng.normal(size=(2, 11, S)))
    a, b, c = rng.uniform(0.5, 2, size=(3, 11)) * rng.choice([-1, 1], size=(3, 11))
    scaled = rebuilt(
        rnn,
        W_in_m=rnn.W_in_m * a[:, None],
        W_in_x=rnn.W_in_x * b[:, None],
        W_side=rnn.W_side * c[:, None],
        D=rnn.D / (a * b * c),
    )
    np.testing.assert_allclose(matrices_of(scaled, S), matrices_of(rnn, S), atol=1e-12)
    items = structure(scaled, matrices_of(scaled, S), S)
    assert {name: items[name] for name in AGREE} == pytest.approx(dict.fromkeys(AGREE, 1.0))
    # Other matrices do not agree.
    A, B = rng.normal(size=(2, 11, S))
    decay = np.array([0.5] + [1.0] * 10)
    changed = rebuilt(rnn, decay=decay, W_side=np.hstack([A, A]), D=B.T)
    items = structure(changed, matrices_of(changed, S), S)
    assert items["W_side reads x"] == pytest.approx(0.5) and items["not memory"] == 1
    assert items["W_in_x and W_side"] < 0.6 and items["D and B"] < 0.6


def test_attention_adds_one_positive_peak_and_nothing_else() -> None:
    rnn = oriented(uh.compile(TASK.best_attention(), "side_gated_rnn").layer, TASK)
    M = matrices_of(rnn, S)
    np.testing.assert_array_equal(M, np.einsum("yi,xj->xyij", EYE, EYE))
    items = structure(rnn, M, S)
    assert items["second singular value"] == items["negative peak"] == 0
    assert items["peak at (y, x)"] == 1
    assert {name: items[name] for name in READS} == dict.fromkeys(READS, 1.0)
    verdicts = {number.name: number.verdict for number in judge_structure([items] * 4)}
    # The paper's students have a negative peak beside it, and attention has not.
    assert verdicts.pop("negative over positive peak") == "differs"
    assert set(verdicts.values()) == {"reproduced"}


def test_peaks_are_read_off_the_matrices() -> None:
    rnn = from_matrices(EYE, EYE)
    x, y = np.indices((S, S))
    M = np.zeros((S, S, S, S))
    M[x, y, y, x], M[x, y, (y + 1) % S, x] = 2, -1.5
    items = structure(rnn, M, S)
    assert items["peak at (y, x)"] == 1
    assert items["negative peak"] == pytest.approx(0.75)
    assert items["second singular value"] == pytest.approx(0, abs=1e-12)
    # Half of the pairs peak elsewhere; a second direction half as strong.
    M[x, y, (y + 1) % S, (x + 1) % S] = np.where(x % 2, 1.0, 4.0)
    items = structure(rnn, M, S)
    assert items["peak at (y, x)"] == 0.5
    assert items["second singular value"] > 0.3


def test_a_pair_adds_its_matrix_to_the_answers() -> None:
    symbols = 3
    rnn = random_side(np.random.default_rng(0), 2 * symbols, 5, symbols, (1.0,))
    M = matrices_of(rnn, symbols)
    x, y, asked = np.indices((symbols, symbols, symbols)).reshape(3, -1)
    pairs = np.hstack([np.eye(symbols)[x], np.eye(symbols)[y]])
    queries = np.hstack([np.eye(symbols)[asked], np.zeros((len(asked), symbols))])
    answers = jax.vmap(rnn)(jnp.stack([pairs, queries], axis=1))[:, -1]
    # What the query writes itself comes on top.
    alone = jax.vmap(rnn)(jnp.stack([0 * pairs, queries], axis=1))[:, -1]
    np.testing.assert_allclose(M[x, y, :, asked], answers - alone, rtol=1e-9, atol=1e-12)


def test_orienting_undoes_swaps_and_keeps_the_function() -> None:
    rng = np.random.default_rng(2)
    straight = from_matrices(*rng.normal(size=(2, 11, S)))
    swapped = swapped_branches(straight, rng)
    exchanged = np.any(swapped.W_in_x != straight.W_in_x, axis=1)
    assert exchanged.any() and not exchanged.all()
    items = oriented(swapped, TASK)
    for name in ("W_in_m", "W_in_x", "W_side", "D"):
        np.testing.assert_array_equal(getattr(items, name), getattr(straight, name))
    # A network of no such form keeps its function too.
    rnn = random_side(rng, 2 * S, 7, S, (0.0, 0.5, 1.0))
    turned = oriented(rnn, TASK)
    assert np.any(turned.W_in_x != rnn.W_in_x)
    xs = jnp.asarray(rng.normal(size=(6, 2 * S)))
    np.testing.assert_allclose(turned(xs), rnn(xs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.0], "reproduced"),
        ([1.0, 1.0, 1.0, 0.9999], "differs"),
        ([1.0, 1.0, 1.0, None], "differs"),
        ([1.0, 1.0, 1.0], "not judged"),
    ],
)
def test_every_student_must_be_right_on_every_sequence(accuracies, expected: str) -> None:
    rows = [{"accuracy": share, "accuracy, pruned": 1.0} for share in accuracies]
    trained, pruned = judge_accuracy(rows)
    assert trained.verdict == expected
    assert pruned.verdict == ("reproduced" if len(rows) >= 4 else "not judged")
    assert trained.value == min(share or 0.0 for share in accuracies)


@dataclass(frozen=True)
class FormatPlan:
    """Stands for a plan of students; None are missing."""

    students: Students | None

    def train(self, setting: Setting) -> Students:
        if self.students is None:
            raise MissingRun(setting.run_folder("recall"))
        return self.students


def test_a_format_without_stored_students_is_left_out(tmp_path, monkeypatch) -> None:
    setting = Setting("paper", None, tmp_path, lambda *_: None, Stored())
    trained = Students(
        AssociativeRecall(),
        Run((), np.zeros(0), np.zeros((0, 0)), []),
        1,
        lambda width, *, key: None,
        0,
    )
    plans = {"pairs": FormatPlan(trained), "in-between tokens": FormatPlan(None)}
    monkeypatch.setattr(students, "plan_recall_formats", lambda scale, *, side: plans)
    groups = students.recall_formats(setting, side=True)
    assert list(groups) == ["pairs"]
    (note,) = students.left_out(groups, setting, side=True)
    assert "in-between tokens" in note
    # Pairs decide, so they cannot be left out.
    plans["pairs"] = FormatPlan(None)
    with pytest.raises(MissingRun):
        students.recall_formats(setting, side=True)
