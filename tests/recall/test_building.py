"""Networks that recall without training: sizes, exactness, refusals, and the parity lemma."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

import underhood as uh
from underhood.recall.building import memory_attention
from underhood.recall.running import AttentionOnly, embed, scored_outputs
from underhood.tasks import MQAR
from underhood.tasks.mqar import NOT_SCORED

# codes, dk, dv
SPLITS = [("dense", 12, 10), ("dense", 24, 16), ("dense", 9, 24), ("hash", 32, 2), ("hash", 40, 1)]


def made(target, stacked, codes, keys, values, **options):
    sizes = {"codes": codes, "keys": keys, "values": values, "vocab": VOCAB_OF[stacked]}
    return uh.recall.build(target=target, stacked=stacked, **sizes, **options)


# The published sets have 256 pairs, so a vocabulary has at least 514 tokens.
VOCAB_OF = {True: 1024, False: 1024}


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(("codes", "keys", "values"), SPLITS)
def test_sizes_are_as_promised(stacked, codes, keys, values):
    memory = keys * values
    gated, side = (
        made(target, stacked, codes, keys, values) for target in ("gated_rnn", "side_gated_rnn")
    )
    assert gated.layers[-1].neurons == memory + keys
    assert gated.construction.gate_width == memory
    assert side.layers[-1].neurons == memory
    for network in (gated, side):
        assert len(network.layers) == (1 if stacked else 2)
        assert network.carried == network.split.carried == memory + (0 if stacked else keys)
        assert network.construction.exact
        assert network.split.keys == keys and network.split.values == values
    if not stacked:
        assert gated.layers[0].neurons == 2 * keys + values + 1
        assert side.layers[0].neurons == 2 * keys + values
        assert gated.neurons == memory + 3 * keys + values + 1
    # The minimal form finds nothing smaller.
    attention = memory_attention(keys, values, stacked=stacked)
    smallest = uh.compile(attention, "gated_rnn")
    assert (smallest.neurons, smallest.gate_width) == (memory + keys, memory)


@eqx.filter_jit
def network_and_attention(layers, reference, table, sequence, places, task):
    xs = embed(table, sequence, task)
    expected = reference.outputs(xs, places, stacked=task.stacked)
    return scored_outputs(layers, xs, places), expected


@pytest.mark.parametrize("target", ["gated_rnn", "side_gated_rnn"])
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(("codes", "keys", "values"), SPLITS[1:4])
def test_networks_equal_their_attention(target, stacked, codes, keys, values, x64):
    network = made(target, stacked, codes, keys, values, dtype="float64")
    task = MQAR(8, 16 if stacked else 48, VOCAB_OF[stacked], stacked=stacked)
    symbols, labels = task.draw(jax.random.key(2), 3)
    reference = AttentionOnly(keys, values)
    table = jnp.asarray(network.embeddings)
    for sequence, answers in zip(symbols, labels, strict=True):
        places = np.flatnonzero(np.asarray(answers) != NOT_SCORED)
        outputs, expected = network_and_attention(
            network.layers, reference, table, sequence, places, task
        )
        np.testing.assert_allclose(outputs, expected, atol=1e-12, rtol=0)
        # As one network on one-hot tokens, too.
    batch = task.sample(jax.random.key(2), 3)
    logits = jax.jit(jax.vmap(network.network))(batch.inputs)
    shares = task.scores(logits, batch.targets)["accuracy"]
    measured = network.evaluate(task, sequences=3, key=jax.random.key(9))
    assert logits.shape == (3, task.time, task.d_out)
    assert np.mean(shares) == pytest.approx(measured[0].accuracy, abs=0.35)
    assert network.construction.error(key=jax.random.key(0)) <= 1e-12


def test_as_many_dimensions_as_keys_recall_everything():
    for codes, values in (("dense", 16), ("hash", 2), ("hash", 1)):
        network = made("side_gated_rnn", True, codes, 512, values)
        task = MQAR(64, 128, 1024, stacked=True)
        (measured,) = network.evaluate(task, sequences=8)
        assert measured.accuracy == measured.predicted == 1
        assert measured.answers == 512
    # Token by token a filler pair may overwrite a key.
    network = made("side_gated_rnn", False, "hash", 511, 2)
    task = MQAR(16, 64, 1024, random_fill=False)
    (measured,) = network.evaluate(task, sequences=16)
    assert measured.accuracy == 1


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(
    ("target", "codes", "keys", "values"),
    [("gated_rnn", "dense", 32, 16), ("side_gated_rnn", "hash", 60, 2)],
)
def test_networks_recall_as_predicted(target, stacked, codes, keys, values):
    network = made(target, stacked, codes, keys, values)
    tasks = [MQAR(K, 2 * K if stacked else 4 * K, 1024, stacked=stacked) for K in (16, 32)]
    for measured in network.evaluate(tasks, answers=6000, key=jax.random.key(4)):
        assert abs(measured.accuracy - measured.predicted) <= 0.015 + 2 * measured.error
    # The attention that it computes gives the same answers on the same sequences.
    first, again = (
        network.evaluate(tasks[0], sequences=40, compiled=compiled) for compiled in (True, False)
    )
    assert first == again


@pytest.mark.parametrize("target", ["mamba", "lstm"])
def test_other_targets_recall_stacked_pairs(target):
    network = made(target, True, "dense", 6, 8)
    task = MQAR(4, 8, 1024, stacked=True)
    measured = [network.evaluate(task, sequences=32, compiled=flag)[0] for flag in (True, False)]
    assert measured[0].accuracy == pytest.approx(measured[1].accuracy, abs=0.02)
    assert network.carried >= 48


def test_the_state_is_divided_by_best():
    network = uh.recall.build(state=300)
    assert network.split == uh.recall.best(state=300)
    assert network.predicted == network.split.by_pairs
    assert network.carried == 300 and network.split.codes == "hash"


# --- what one layer cannot do


def test_the_parity_lemma_by_enumeration():
    # Order of the keys, order of the values, and which key is asked.
    signs = np.array(list(itertools.product((-1, 1), repeat=3)))
    needed = signs.prod(axis=1)
    sequences = []
    for key_order, value_order, asked in signs:
        keys = ("a", "b")[:: int(key_order)]
        values = ("x", "y")[:: int(value_order)]
        answer = dict(zip(keys, values, strict=True))["a" if asked == 1 else "b"]
        sequences.append([keys[0], values[0], keys[1], values[1], "a" if asked == 1 else "b"])
        # The sign of score(x) − score(y) that the right answer needs.
        assert (1 if answer == "x" else -1) == needed[len(sequences) - 1]
    # Every function of two tokens and their places, as columns: one-hot codes of both.
    columns = []
    for first, second in itertools.product(range(5), repeat=2):
        pairs = [(tokens[first], tokens[second]) for tokens in sequences]
        columns += [[pair == value for pair in pairs] for value in sorted(set(pairs))]
    features = np.array(columns, float).T
    # The product of the signs is orthogonal to all of them, so the eight inequalities
    # needed·(features·weights) > 0 add up to 0 > 0.
    np.testing.assert_array_equal(needed @ features, 0)
    assert np.linalg.matrix_rank(features) == 7


def test_a_gated_layer_is_a_sum_of_functions_of_two_tokens(x64):
    rng = np.random.default_rng(0)
    layer = uh.GatedRNN.init(d_in=3, hidden=6, gated=5, d_out=2, key=jax.random.key(1))
    side = uh.SideGatedRNN.init(d_in=3, hidden=6, d_out=2, key=jax.random.key(2))
    base, other = rng.normal(size=(2, 5, 3))
    for network in (layer, side):
        # The mixed third difference in three tokens vanishes, the second does not.
        for places, vanishes in (((0, 1, 4), True), ((1, 2, 3), True), ((0, 4), False)):
            total = 0.0
            for chosen in itertools.product((0, 1), repeat=len(places)):
                xs = base.copy()
                for place, change in zip(places, chosen, strict=True):
                    xs[place] = other[place] if change else base[place]
                total = total + (-1) ** sum(chosen) * np.asarray(network(jnp.asarray(xs)))[-1]
            assert (np.max(np.abs(total)) < 1e-12) == vanishes


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("one gated_rnn layer … product of three signs … layers=2", {"layers": 1}),
        ("depends on the state S … a latch", {"rule": "delta", "latch": True}),
        ("Unknown target 'gatedrnn' … 'gated_rnn'", {"target": "gatedrnn"}),
        ("gated_rnn or side_gated_rnn; lstm … stacked=True", {"target": "lstm"}),
        ("stacked MQAR takes one layer", {"layers": 2, "stacked": True}),
        ("layers is 3", {"layers": 3}),
        ("state is 2", {"state": 2}),
        ("give state=, or keys=", {"keys": 4}),
        ("give state=, or keys=", {"state": None}),
        ("also give values= and codes=", {"state": None, "keys": 4}),
        ("Unknown dtype 'float16'", {"dtype": "float16"}),
        ("key is 3", {"key": 3}),
    ],
)
def test_refusals(words, options, unhooked):
    words = words.replace("a latch", "A latch")
    with refused(words):
        uh.recall.build(**({"state": 300} | options))


def test_tasks_of_another_kind_are_refused(unhooked):
    network = uh.recall.build(state=300)
    with refused("vocab=8192, stacked=False … vocab=64"):
        network.evaluate(MQAR(4, 16, 64))
    with refused("sequences is 0"):
        network.evaluate(sequences=0)
