"""The atlas: every answer agrees with `compile`, and every theorem with its witness."""

from functools import partial

import atlas_table
import jax
import numpy as np
import pytest
from refusals import refused

import underhood as uh
from underhood.constructions import TARGETS
from underhood.constructions.atlas import ATLAS_SOURCES, THEOREMS, atlas_targets
from underhood.constructions.atlas.adversaries import closest_error
from underhood.constructions.atlas.facts import FACTS, facts_of
from underhood.constructions.atlas.min_gru_pair import pair_error
from underhood.constructions.atlas.sources import (
    compilable,
    example_of,
    run_source,
    run_wide,
)
from underhood.constructions.atlas.witnesses import (
    compare_constant,
    compare_pieces,
    compare_scales,
    degree_combination,
    growth_exponent,
    swap_combination,
)

# Pairs that `compile` does not build although they are exact or a limit.
EMBEDDED = {("gated_rnn", "gated_rnn"), ("dense_gated_rnn", "gated_rnn")}
PROVED = {
    (source, target)
    for source in ("attention_with_decay", "side_gated_rnn")
    for target in ("retnet", "lightning")
}


@pytest.fixture(scope="module")
def table():
    return {
        (source, target): uh.can(source, target)
        for source in ATLAS_SOURCES
        for target in atlas_targets()
    }


def test_every_answer_agrees_with_compile(table):
    assert len(table) == len(ATLAS_SOURCES) * (len(TARGETS) + 1)
    for (source, target), answer in table.items():
        given = compilable(example_of(source))
        if given is None or target not in TARGETS or (source, target) in EMBEDDED:
            assert answer.construction is None
            continue
        try:
            built = uh.compile(given, target)
        except uh.ImpossibleConstruction:
            kinds = ("limit",) if (source, target) in PROVED else ("impossible", "open")
            assert answer.answer in kinds, (source, target)
            assert answer.construction is None
        else:
            assert answer.answer == ("exact" if built.exact else "limit"), (source, target)
            assert answer.order == built.order


def test_an_answer_names_its_network_or_its_theorem(table):
    for answer in table.values():
        if answer.answer == "exact":
            assert answer.layer is not None and not answer.theorems
        elif answer.answer == "limit":
            # No limit is exact, by a theorem.
            assert answer.theorem == "norm" and answer.order is not None
        elif answer.answer == "impossible":
            assert THEOREMS[answer.theorem].closed
        assert answer.reason and "\n" not in answer.reason


def test_the_table_of_the_page_has_these_answers(table):
    page = atlas_table.PAGE.read_text(encoding="utf-8")
    assert atlas_table.with_answers(page, table) == page, "run python docs/atlas_table.py"
    assert atlas_table.table_text(table) in page


def test_fitted_weights_do_not_break_a_theorem_of_closure(table):
    """Every impossible pair: zero by the theorem in the layer, and not zero in the source."""
    impossible = [answer for answer in table.values() if answer.answer == "impossible"]
    assert {answer.theorem for answer in impossible} == {"swap", "degree"}
    for answer in impossible:
        gap = answer.witness()
        pair = answer.source, answer.target
        assert gap.theorem == answer.theorem, pair
        assert gap.target_value < 1e-12 < 1e-3 < gap.source_value, pair
        # The least error of any layer of the target on these tokens.
        assert gap.gap > 5e-5, pair


def test_weights_fitted_to_the_witness_come_to_the_bound_and_not_below():
    """What theorem S says that every minGRU is off by is what the best of them is off by."""
    attention = example_of("attention")
    error, bound = closest_error("min_gru", attention, swap_combination(attention.d_in))
    assert (1 - 1e-9) * bound < error < 1.05 * bound


@pytest.mark.parametrize("target", ["retnet"])
def test_fitted_weights_do_not_outgrow_theorem_n(target):
    gap = uh.can("attention", target).witness()
    assert abs(gap.source_value - 3) < 1e-6
    assert gap.target_value < FACTS[target].growth + 0.05
    assert gap.gap > 0.5


def test_rwkv7_outgrows_it_by_a_term_of_the_last_tokens_alone():
    layer = uh.RWKV7.init(d_in=3, d_out=3, heads=1, d_k=3, d_v=3, rank=1, key=jax.random.key(0))
    layer = jax.tree.map(lambda leaf: np.asarray(leaf, float), layer)
    bonus = jax.tree.map(np.asarray, layer.__class__(**{**vars(layer), "r_k": np.ones((1, 3))}))

    def run(xs):
        return run_wide(bonus, xs)

    assert abs(growth_exponent(run, 3) - 3) < 1e-6
    assert growth_exponent(run, 3, local=True) < 0.05


@pytest.mark.parametrize("source", ["attention", "gated_rnn", "delta_rule"])
def test_the_degree_of_a_source_is_that_of_its_growth(source):
    given = example_of(source)
    degree = round(growth_exponent(lambda xs: run_source(given, xs), 3))
    assert degree == {"attention": 3, "gated_rnn": 4, "delta_rule": 13}[source]
    values = [
        degree_combination(3, order).value(lambda xs: run_source(given, xs))
        for order in (degree - 1, degree)
    ]
    assert values[1] < 1e-12 < 1e-5 < values[0]


def test_what_is_read_is_bounded_if_writing_forgets():
    sizes = {"d_in": 3, "d_out": 3, "heads": 2, "d_k": 3, "d_v": 3}
    layer = uh.DeltaNet.init(**sizes, key=jax.random.key(1))
    attention = partial(run_source, example_of("attention"))
    assert compare_constant(attention, layer, 3, length=64).target_value < 0.1
    # Without the coupling nothing is forgotten: the ratio is attention's.
    free = uh.compile(example_of("attention"), "falcon_h1").layer
    gap = compare_constant(attention, free, 3, length=64)
    assert abs(gap.target_value - 1) < 1e-9 and abs(gap.source_value - 1) < 1e-9


# xᵀMx = 0 for every x, so attention is zero where one token is repeated.
TURNING = uh.LinearAttention(np.eye(2), np.eye(2), np.array([[0.0, 1], [-1, 0]]))


def test_theorem_c_holds_where_one_token_alone_reads_nothing():
    answer = uh.can(TURNING, "min_gru")
    gap = uh.can(TURNING, "retnet").coupling()
    assert abs(gap.source_value - 1) < 1e-9 and gap.target_value < 0.5
    assert answer.theorem == "swap" and answer.coupling().target_value < 0.5


def test_theorem_c_is_reported_without_theorem_n():
    """A linear recurrence grows as minGRU does with its tokens, and faster in time."""
    summed = uh.attention_from_linear_rnn(np.array([1.0, 1.0]))
    answer = uh.can(summed, "min_gru")
    assert (answer.answer, answer.theorems) == ("open", ("coupled",))
    assert "theorem C" in answer.reason
    gap = answer.witness()
    assert gap.theorem == "coupled" and abs(gap.source_value - 1) < 1e-9
    assert gap.target_value < 0.5
    # One row that does not fade is enough; heads that cancel, and zero, do not grow.
    assert "coupled" in uh.can("attention_with_decay", "kda").theorems
    fading = uh.LinearAttention(*np.ones((3, 2, 2)), decay=np.array([0.9, 0.5]))
    assert "coupled" not in uh.can(fading, "kda").theorems
    head = uh.LinearAttention(*np.ones((3, 2, 2)))
    none = uh.MultiHead([head, head], np.hstack([np.eye(2), -np.eye(2)]))
    assert "coupled" not in uh.can(none, "kda").theorems


def test_pieces_and_scales(table):
    # It is proved for some gates of mLSTM only, so it excludes no weights.
    assert table["attention", "mlstm"].theorems == ("norm",)
    inside, outside = compare_pieces()
    assert inside.gap < 1e-12
    assert abs(outside.target_value - outside.source_value) < 1e-5 < outside.source_value
    assert 0.9 < compare_scales().gap <= 1


def test_two_min_gru_layers_come_near_with_order_two():
    given = example_of("gradient_step")
    errors = [pair_error(given, digits=digits) for digits in (3, 4)]
    assert abs(np.log10(errors[0] / errors[1]) - 2) < 0.05 and errors[1] < 1e-5
    answers = [uh.can("gradient_step", name).answer for name in ("min_gru", "min_gru_2")]
    assert answers == ["impossible", "limit"]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("deltanet", "gated_deltanet"),
        ("deltanet", "kda"),
        ("lru", "lru_in_out"),
        ("dense_gated_rnn", "gated_rnn"),
        ("side_gated_rnn", "mamba"),
    ],
)
def test_embeddings_are_exact(source, target):
    answer = uh.can(source, target)
    assert answer.answer == "exact" and answer.error < 1e-13


def test_retnet_holds_another_decay_for_a_few_tokens():
    answer = uh.can("attention_with_decay", "retnet")
    assert (answer.answer, answer.length) == ("limit", 4)
    assert answer.error < 1e-6
    assert uh.can("attention_with_decay", "lightning").error is None


def test_layers_stand_for_their_kinds():
    given = uh.LinearAttention(*np.random.default_rng(3).normal(size=(3, 2, 2)))
    sizes = {"d_in": 2, "d_out": 2, "key": jax.random.key(0)}
    gru = uh.MinGRU.init(**sizes, hidden=4)
    assert uh.can(given, gru).theorem == "swap"
    assert uh.can(given, uh.Stack(None, [gru, gru], None)).target == "min_gru_2"
    mixer = uh.Mamba2.init(**sizes, heads=1, d_k=2, d_v=2, normed=False)
    assert uh.can(given, mixer).answer == "exact"
    relu = uh.LRUInOutMLP.init(**sizes, hidden=3)
    pieces = uh.can(given, relu)
    assert (pieces.answer, pieces.order) == ("limit", 2) and "piecewise" in pieces.theorems
    # y = 2 Σ W_V x is linear in the tokens, and a layer of ReLUs holds it exactly.
    linear = uh.LinearAttention(
        np.eye(2), np.zeros((2, 2)), np.zeros((2, 2)), b_K=np.ones(2), b_Q=np.ones(2)
    )
    summed = uh.can(linear, relu)
    assert (summed.answer, summed.theorems) == ("open", ()), summed.reason
    # Attention that is a linear recurrence has the symmetry, so no theorem speaks against it.
    for decay in (1.0, 0.7):
        head = uh.attention_from_linear_rnn(np.array([1.0, decay]))
        assert uh.can(head, "min_gru").answer == "open"
    turning = example_of("dense_gated_rnn")
    rotation = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 0.5]])
    turned = uh.DenseGatedRNN(**{**vars(turning), "A": rotation})
    assert uh.can(turned, "gated_rnn").answer == "open"


ZEROS = {
    "all": uh.LinearAttention(*np.zeros((3, 2, 2))),
    "no keys": uh.LinearAttention(np.eye(2), np.zeros((0, 2)), np.zeros((0, 2))),
    "W_V": uh.LinearAttention(np.zeros((2, 2)), np.eye(2), np.eye(2)),
    "M": uh.LinearAttention(np.eye(2), np.diag([1.0, 0]), np.diag([0, 1.0])),
    "heads": uh.MultiHead([uh.LinearAttention(*np.zeros((3, 2, 2)))] * 2),
}


@pytest.mark.parametrize("name", ZEROS)
def test_a_source_that_is_zero_is_exact_in_every_target(name):
    for target in atlas_targets() if name == "all" else ("rg_lru", "mamba2", "min_gru"):
        answer = uh.can(ZEROS[name], target)
        assert (answer.answer, answer.error, answer.theorems) == ("exact", 0, ()), target
    assert uh.compile(ZEROS[name], "rg_lru").error(key=jax.random.key(0)) == 0


GATES = ("W_in_m", "W_in_x", "decay", "W_out_m", "W_out_x")


def test_a_gated_rnn_without_readout_is_exact_in_every_target():
    silent = uh.GatedRNN.init(d_in=2, hidden=3, gated=3, d_out=2, key=jax.random.key(0))
    silent = uh.GatedRNN(**{name: getattr(silent, name) for name in GATES}, D=np.zeros((2, 3)))
    for target in ("mamba2", "min_gru", "lstm"):
        answer = uh.can(silent, target)
        assert (answer.answer, answer.error) == ("exact", 0), target


def test_bad_input_is_one_line(unhooked):
    with refused("Unknown source 'softmax' … attention"):
        uh.can("softmax", "gru")
    with refused("Unknown target 'mamba9' … min_gru_2"):
        uh.can("attention", "mamba9")
    with refused("as source, not an int"):
        uh.can(3, "gru")
    with refused("as source, not a GRU"):
        uh.can(uh.GRU.init(d_in=2, hidden=2, key=jax.random.key(0)), "gru")
    with refused("an LRU, a DeltaNet, or a name as source, not None"):
        uh.can(None, "gru")
    with refused("can knows no target that is the class Mamba2; use a name"):
        uh.can("attention", uh.Mamba2)
    with refused("can knows no target that is a LinearAttention; use a name"):
        uh.can("attention", example_of("attention"))


@pytest.mark.parametrize("scale", [1e-160, 1e160])
def test_the_scale_of_a_source_changes_no_answer(scale):
    W_V, W_K, W_Q = np.random.default_rng(0).normal(size=(3, 3, 3))
    given = uh.LinearAttention(scale * W_V, W_K, W_Q)
    assert uh.can(given, "min_gru").theorem == "swap"
    assert uh.can(given, "deltanet").theorems == ("norm", "coupled")
    rnn = example_of("gated_rnn")
    large = uh.GatedRNN(**{name: getattr(rnn, name) for name in GATES}, D=scale * rnn.D)
    assert uh.can(large, "min_gru").theorem == "swap"
    assert uh.can(large, "side_gated_rnn").theorem == "degree"


def test_a_large_bias_hides_no_term():
    W_V, W_K, W_Q = np.random.default_rng(0).normal(size=(3, 3, 3))
    given = uh.LinearAttention(W_V, W_K, 1e-9 * W_Q, b_Q=np.ones(3))
    assert uh.can(given, "min_gru").theorem == "swap"


@pytest.mark.parametrize(
    ("source", "target"), [("gated_rnn", "mamba2"), ("side_gated_rnn", "hgrn2")]
)
def test_an_open_rnn_says_that_it_may_be_attention_inside(source, target):
    answer = uh.can(source, target)
    assert answer.answer == "open" and "uh.decompile(rnn).attention" in answer.reason
    assert "uh.decompile" not in uh.can("attention_with_decay", target).reason


def test_a_limit_says_up_to_which_length_epsilon_helps():
    given = example_of("attention")
    for target in ("retnet", "lightning", "mlstm"):
        reach = FACTS[target].reach
        assert f"up to {reach:,} tokens" in uh.can(given, target).reason
        # All that differs from one head without decay is the sum of the decays.
        short = min(reach, 2_000)
        assert uh.compile(given, target, length=short).length == short
    assert "any fixed length" in uh.can(given, "mamba2").reason


def test_every_target_has_facts():
    assert [name for name in TARGETS if name not in FACTS] == []
    assert facts_of("a new one").title == "a new one"


def test_theorem_c_is_run_only_where_it_holds() -> None:
    pairs = ("attention", "mamba2"), ("deltanet", "kda"), ("deltanet", "min_gru")
    for pair in (*pairs, ("attention", "gated_rnn")):
        with refused(f"theorem C is not run for {pair[0]} → {pair[1]}"):
            uh.can(*pair).coupling()
