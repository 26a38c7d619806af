"""decompile(compile(a)) = a, however the network is rewritten, and nothing else is attention."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scrambles import SCRAMBLES, differ, mixed_queries, network, scrambled, side_network
from teachers import attention

import underhood as uh
from underhood.analysis.decompilation.projection import attention_features, project
from underhood.analysis.forms.norms import size
from underhood.analysis.forms.quadratic import QuadraticForm, from_table, quadratic_form
from underhood.common.linear_algebra import upper
from underhood.constructions.sources.reference import reference

pytestmark = pytest.mark.usefixtures("x64")

FORMS = ("full", "compact", "low_rank", "minimal")
TARGETS = ("gated_rnn", "side_gated_rnn")
EXACT = 1e-10
KEY = jax.random.key(0)


def matrices(layer):
    """[W_V|b_V] and [W_K|b_K]ᵀ[W_Q|b_Q]."""
    V, K, Q = layer.augmented()
    return V, K.T @ Q


def assert_found(source, rnn):
    """The function, and the weights up to one scale where the function determines them.

    Scrambles add and subtract terms of size one to ten, so an error of the function is measured
    against its largest output or 1. Weights are compared at 1e-10 whatever the condition of W_V:
    the fit's own systems, |M|²I + MMᵀ, have condition two at most.
    """
    result = uh.decompile(rnn)
    assert len(result.neurons) == rnn.neurons
    V, M = matrices(source)
    ranks = [np.linalg.matrix_rank(W, tol=1e-9) for W in (V, M)]
    if min(ranks) == 0 and result.verdict == "undecided":
        # Scrambled zeros add up to the rounding of their weights, which is no function to judge.
        assert "may be rounding" in result.reason
        return
    assert result.is_attention and result.residual <= EXACT
    for time in (1, 11):
        xs = np.random.default_rng(time).normal(size=(4, time, source.d_in))
        expected = reference(source, xs)
        scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
        apart = reference(result.attention, xs) - expected
        assert np.abs(apart).max(initial=0.0) <= EXACT * scale
    if min(ranks) == 0:
        assert "computes zero" in result.reason
        return
    if max(ranks) > 1:
        for W, target in zip(matrices(result.attention), (V, M), strict=True):
            scale = np.sum(W * target) / np.sum(target**2)
            np.testing.assert_allclose(W, scale * target, atol=EXACT * np.abs(W).max())
    decays = [layer.decays for layer in (source, result.attention)]
    live = np.abs(V).max(axis=1) > 1e-9
    np.testing.assert_allclose(decays[1][live], decays[0][live], atol=1e-12)


def extras(rng, d_v, d_k, decay, biases):
    """Optional weights of an attention; decays above the 0.001 under which memory is none."""
    given = {}
    if decay != "none":
        given["decay"] = rng.uniform(0.05, 1, 1 if decay == "common" else d_v) * np.ones(d_v)
    if biases:
        sizes = {"b_V": d_v, "b_K": d_k, "b_Q": d_k}
        given |= {name: rng.normal(size=size) for name, size in sizes.items()}
    return given


@st.composite
def cases(draw):
    """Sizes, ranks and kinds of a source and of its network."""
    case = {name: draw(st.integers(1, top)) for name, top in (("d", 6), ("d_v", 7), ("d_k", 7))}
    case["target"], case["form"] = draw(st.sampled_from(TARGETS)), draw(st.sampled_from(FORMS))
    case["biases"] = case["target"] == "gated_rnn" and draw(st.booleans())
    case["decay"] = draw(st.sampled_from(["none", "common", "per row"]))
    for rank, rows in (("rank_v", "d_v"), ("rank_m", "d_k")):
        case[rank] = draw(st.integers(0, min(case["d"], case[rows])))
    if case["form"] == "compact":
        # W_V must be square and invertible, over [x; 1] where there are biases.
        case |= {"d_v": case["d"] + case["biases"], "rank_v": case["d"]}
        case["decay"] = case["decay"].replace("per row", "common")
    return case | {"seed": draw(st.integers(0, 2**16))}


def compiled(seed, target, form, decay, biases, d_v, d_k, **sizes):
    """A source, its network, and a generator for more."""
    rng = np.random.default_rng(seed)
    extra = extras(rng, d_v, d_k, decay, biases)
    source = attention(seed=seed, d_v=d_v, d_k=d_k, **sizes, **extra)
    return source, uh.compile(source, target, form).layer, rng


@settings(max_examples=30)
@given(cases())
def test_a_compiled_network_gives_its_attention_back(case):
    source, rnn, _ = compiled(**case)
    assert_found(source, rnn)


@settings(max_examples=30)
@given(cases(), st.lists(st.sampled_from(SCRAMBLES), min_size=1, max_size=8, unique=True))
def test_scrambled_networks_give_it_back_too(case, chosen):
    source, rnn, rng = compiled(**case)
    assert_found(source, scrambled(rnn, rng, sorted(chosen, key=SCRAMBLES.index)))


@pytest.mark.parametrize("seed, scrambles", [(21806, 8), (21805, 4)])
def test_cancelling_neurons_cost_no_digits(seed, scrambles):
    """Terms are 1e8 times the function, so float64 sums would keep eight digits of it."""
    sizes = {"d": 5, "d_v": 5, "d_k": 3, "rank_v": 5, "rank_m": 3}
    kind = {"target": "gated_rnn", "form": "compact", "decay": "none", "biases": False}
    source, rnn, rng = compiled(seed=seed, **kind, **sizes)
    some = ("mixed_queries", "split", "duplicated", "cancelling")
    chosen = [scramble for scramble in SCRAMBLES if scrambles == 8 or scramble.__name__ in some]
    result = uh.decompile(scrambled(rnn, rng, chosen))
    assert result.is_attention
    # Scrambling rounds the weights, so the network is not the source to its last digit.
    assert result.residual < 1e-9
    V, M = matrices(source)
    for W, target in zip(matrices(result.attention), (V, M), strict=True):
        scale = np.sum(W * target) / np.sum(target**2)
        np.testing.assert_allclose(W, scale * target, atol=1e-8 * np.abs(W).max())


@pytest.mark.parametrize("decay", ["none", "common", "per row"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("which", [*([scramble] for scramble in SCRAMBLES), SCRAMBLES])
def test_every_scramble_alone_and_all_together(which, target, decay):
    rng = np.random.default_rng(3)
    given = extras(rng, 4, 2, decay, biases=target == "gated_rnn")
    source = attention(3, 5, d_v=4, d_k=2, rank_v=2, **given)
    plain = uh.compile(source, target, "low_rank").layer
    rnn = scrambled(plain, rng, which)
    # A side gate has no queries to mix.
    assert differ(plain, rnn) or (which == [mixed_queries] and target == "side_gated_rnn")
    assert_found(source, rnn)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("which", [(), SCRAMBLES])
@pytest.mark.parametrize("ranks", [(0, 3), (2, 0), (0, 0), (1, 1), (1, 3), (3, 1)])
def test_all_ranks(ranks, which, target):
    source = attention(3, 2, rank_v=ranks[0], rank_m=ranks[1])
    rnn = scrambled(uh.compile(source, target, "full").layer, np.random.default_rng(0), which)
    assert_found(source, rnn)


@pytest.mark.parametrize("kind", [np.float32, jnp.float32, jnp.float64])
@pytest.mark.parametrize("target", TARGETS)
def test_layers_of_any_array_run_as_found(target, kind):
    source = attention(3, d_v=2)
    layer = uh.compile(source, target).layer
    cast = (lambda W: np.asarray(W, kind)) if kind is np.float32 else lambda W: jnp.asarray(W, kind)
    result = uh.decompile(jax.tree.map(cast, layer))
    # Rounded weights are another network, near to the first one.
    tolerance = EXACT if kind is jnp.float64 else 1e-5
    assert result.is_attention and result.residual <= tolerance
    for time in (1, 9):
        xs = jnp.asarray(np.random.default_rng(time).normal(size=(time, 3)))
        expected = np.asarray(layer(xs))
        apart = np.abs(np.asarray(result.attention(xs)) - expected)
        assert apart.max() <= tolerance * max(np.abs(expected).max(), 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("decay", [None, 0.4])
def test_roles_are_the_compilers(target, form, decay):
    source = attention(4, decay=None if decay is None else np.full(4, decay))
    built = uh.compile(source, target, form)
    result = uh.decompile(built.layer)
    assert [role.kind for role in result.neurons] == [role.kind for role in built.roles]


# --- what is no attention


@pytest.mark.parametrize("d, hidden, d_out", [(1, 8, 2), (2, 5, 1), (3, 12, 3), (4, 16, 2)])
def test_untrained_networks_are_no_attention(d, hidden, d_out):
    for seed in range(2):
        sizes = {"d_in": d, "hidden": hidden, "d_out": d_out, "key": jax.random.key(seed)}
        for rnn in (uh.GatedRNN.init(**sizes, gated=hidden), uh.SideGatedRNN.init(**sizes)):
            # A side-gated RNN is attention with as many heads as neurons; one head it is not.
            result = uh.decompile(rnn, max_heads=1)
            assert not result.is_attention and result.residual > 0.02
            assert result.reason.startswith("not attention: the best attention found has residual")


D_IN, D_OUT, TIME = 3, 2, 16


def term(rng, first, second, decays):
    """Σ_o c_o (q·A)(q'·A') with reads on entries of the given degrees and the given decays."""
    rows, columns = upper(D_IN + 1)
    degrees = (rows < D_IN).astype(int) + (columns < D_IN)
    reads = rng.normal(size=(2, len(rows))) * (degrees == np.array([[first], [second]]))
    swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    return QuadraticForm(D_IN, reads, np.array(decays), rng.normal(size=(D_OUT, 1, 1)) * swap)


# Term, what is said of it; degree 4, degree 1 and another decay.
PLANTED = {
    "memory × memory": ((2, 2, (1.0, 1.0)), "degree 4", "memory × memory"),
    "token × token": ((2, 2, (0.0, 0.0)), "degree 4", "query × query"),
    "the token": ((1, 0, (0.0, 0.0)), "degree 1", "query × query"),
    "a faded sum of tokens": ((1, 0, (0.5, 0.0)), "degree 1", "other neurons"),
    "other decay": ((2, 1, (0.5, 0.0)), "degree 3", "other neurons"),
}


def planted_in(base, form, features, share):
    """The part of a form that is orthogonal to attention, with a share of the size of another."""
    table = project(form, 1.0, features, TIME)[0]
    part = form - from_table(D_IN, table, np.ones(D_OUT))
    scale = share * size(base, TIME) / size(part, TIME)
    return QuadraticForm(part.d_in, part.reads, part.decay, scale * part.kernels)


@pytest.mark.parametrize("share", [1e-1, 1e-2, 1e-4])
@pytest.mark.parametrize("biases", [False, True, None])
@pytest.mark.parametrize("name", PLANTED)
def test_the_residual_is_the_share_of_what_was_planted(name, biases, share):
    (what, degree, group), rng = PLANTED[name], np.random.default_rng(len(name))
    features = attention_features(D_IN, biases=biases is not False)
    source = attention(D_IN, 4, d_v=D_OUT)
    base = quadratic_form(source)
    planted = planted_in(base, term(rng, *what), features, share)
    whole = base - QuadraticForm(D_IN, planted.reads, planted.decay, -planted.kernels)
    rnn = network(whole)
    xs = rng.normal(size=(5, 7, D_IN))
    np.testing.assert_allclose(quadratic_form(rnn)(xs), whole(xs), atol=1e-9)
    expected = size(planted, TIME) / size(whole, TIME)
    assert expected == pytest.approx(share, rel=1e-2)
    options = {"biases": biases, "time": TIME, "max_heads": 1}
    result = uh.decompile(rnn, **options, tolerance=share / 2)
    assert result.residual == pytest.approx(expected, rel=1e-2)
    assert not result.is_attention
    assert uh.decompile(rnn, **options, tolerance=2 * share).is_attention
    assert result.reason.startswith("not attention")
    if biases is False:
        # With biases, the projection taken out has parts of other degrees, larger than the rest.
        assert degree in result.reason and group in result.reason
    for W, target in zip(matrices(result.attention), matrices(source), strict=True):
        W = W / np.linalg.norm(W) * np.sign(np.sum(W * target))
        np.testing.assert_allclose(W, target / np.linalg.norm(target), atol=10 * share**2 + 1e-9)


def test_sizes_are_those_of_a_simulation():
    rng = np.random.default_rng(0)
    base = quadratic_form(attention(D_IN, 4, d_v=D_OUT))
    features = attention_features(D_IN, biases=False)
    planted = planted_in(base, term(rng, 2, 1, (0.5, 0.0)), features, 1.0)
    squares = []
    for _ in range(40):
        xs = rng.normal(size=(1000, TIME, D_IN))
        a, p = base(xs), planted(xs)
        squares.append([np.mean(p**2), np.mean(a**2), np.mean(a * p)])
    means, errors = np.mean(squares, axis=0), np.std(squares, axis=0)
    exact = np.array([size(planted, TIME) ** 2, size(base, TIME) ** 2, 0.0])
    # The third line is that the two are orthogonal.
    np.testing.assert_array_less(np.abs(means - exact), 4 * errors / np.sqrt(40))
    np.testing.assert_array_less(errors[:2] / np.sqrt(40), 0.05 * exact[:2])


@pytest.mark.parametrize("share", [1e-1, 1e-2, 1e-4])
def test_a_side_gated_network_with_another_decay_is_no_attention(share):
    rng = np.random.default_rng(1)
    features = attention_features(D_IN, biases=False)
    base = project(quadratic_form(attention(D_IN, 4, d_v=D_OUT)), 1.0, features, TIME)[0]
    table = rng.normal(size=base.shape) * features
    faded = from_table(D_IN, table, np.full(D_OUT, 0.5))
    back = project(faded, 1.0, features, TIME)[0]
    planted = faded - from_table(D_IN, back, np.ones(D_OUT))
    scale = share * size(from_table(D_IN, base, np.ones(D_OUT)), TIME) / size(planted, TIME)
    rnn = side_network(D_IN, [(1.0, base - scale * back), (0.5, scale * table)])
    result = uh.decompile(rnn, time=TIME, tolerance=share / 2, max_heads=1)
    assert result.residual == pytest.approx(share / np.hypot(1, share), rel=1e-2)
    assert not result.is_attention and "degree 3" in result.reason
    assert sum(role.kind == "other" for role in result.neurons) == rnn.neurons // 2


# --- bad input


@pytest.mark.usefixtures("unhooked")
def test_bad_input_is_refused_in_one_line():
    rnn = uh.compile(attention(2)).layer
    side = uh.compile(attention(2), "side_gated_rnn").layer
    cases = [
        (uh.LSTM.init(d_in=2, hidden=2, key=KEY), {}, "not an LSTM"),
        (attention(2), {}, "not a LinearAttention"),
        ("gated_rnn", {}, "not a str"),
        (uh.GatedRNN.init(d_in=0, hidden=2, gated=2, d_out=1, key=KEY), {}, "no inputs"),
        *((rnn, {"tolerance": value}, "tolerance is") for value in (-0.1, 1.0, 2, np.nan, np.inf)),
        *((rnn, {"time": value}, "time is") for value in (1, 0, -3, 2.5, "32", True)),
    ]
    for layer, fields in ((rnn, ("W_in_x", "nu", "W_out_m", "D")), (side, ("W_side", "nu"))):
        for field in fields:
            lost = np.full_like(getattr(layer, field), np.nan)
            broken = eqx.tree_at(lambda rnn, f=field: getattr(rnn, f), layer, lost)
            cases.append((broken, {}, "not finite"))
    for layer, options, message in cases:
        with pytest.raises(uh.BadInput, match=message) as refusal:
            uh.decompile(layer, **options)
        assert "\n" not in str(refusal.value)
