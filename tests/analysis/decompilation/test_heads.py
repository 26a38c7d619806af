"""Several heads come back: planted ones or fewer, the same function, and why not fewer."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from teachers import low_rank

import underhood as uh
from underhood.analysis.decompilation.exclusion import missed_by_heads
from underhood.analysis.forms.norms import size
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.constructions.sources.reference import reference

pytestmark = pytest.mark.usefixtures("x64")

EQUAL = 1e-9


@st.composite
def cases(draw):
    """Sizes and kinds of a source: values and ranks for every head, W_O, shared keys, decays."""
    d = draw(st.integers(1, 4))
    size = st.integers(1, d)
    return {
        "d": d,
        "d_k": draw(size),
        "values": draw(st.lists(st.tuples(size, size), min_size=1, max_size=4)),
        "shared": draw(st.booleans()),
        "decay": draw(st.sampled_from([None, 0.5])),
        "outputs": draw(st.sampled_from([None, 0, -1, 1])),
        "seed": draw(st.integers(0, 2**16)),
    }


def multi_head(d, d_k, values, shared, decay, outputs, seed):
    """One head for each (d_v, rank) of `values`; W_O has `outputs` more rows than columns."""
    rng, made = np.random.default_rng(seed), []
    for d_v, rank in values:
        W_K, W_Q = rng.normal(size=(2, d_k, d))
        fading = None if decay is None else np.where(rng.uniform(size=d_v) < 0.5, 1.0, decay)
        W_V = low_rank(rng, d_v, d, min(rank, d_v))
        keys = made[0].W_K if shared and made else W_K
        made.append(uh.LinearAttention(W_V, keys, W_Q, decay=fading))
    width = sum(head.d_out for head in made)
    W_O = None if outputs is None else rng.normal(size=(max(1, width + outputs), width))
    return uh.MultiHead(made, W_O)


@settings(max_examples=25)
@given(cases(), st.sampled_from(["gated_rnn", "side_gated_rnn"]))
def test_planted_heads_or_fewer_come_back(case, target):
    source = multi_head(**case)
    result = uh.decompile(uh.compile(source, target).layer, tolerance=EQUAL)
    assert result.is_attention and len(result.heads) <= len(source.heads), result.reason
    xs = np.random.default_rng(0).normal(size=(4, 9, source.d_in))
    expected = reference(source, xs)
    apart = np.abs(reference(result.attention, xs) - expected)
    assert apart.max() <= EQUAL * np.abs(expected).max()


@pytest.mark.parametrize("heads", [2, 3, 4])
def test_fewer_heads_are_impossible(heads):
    rng = np.random.default_rng(heads)
    made = [uh.LinearAttention(*rng.normal(size=(3, 5, 5))) for _ in range(heads)]
    source = uh.MultiHead(made, rng.normal(size=(5, 5 * heads)))
    rnn = uh.compile(source).layer
    result = uh.decompile(rnn)
    assert len(result.heads) == heads
    assert "fewer are impossible" in result.reason and "full rank can be mixed" in result.reason
    fewer = uh.decompile(rnn, max_heads=heads - 1)
    assert fewer.verdict == "not attention" and f"max_heads is {heads - 1}" in fewer.reason
    # The proof holds for a fit: no attention with fewer heads comes nearer than it says.
    form = quadratic_form(rnn)
    missed = missed_by_heads(form, 32)
    assert missed[heads] <= 1e-12 * missed[0] < missed[heads - 1]
    nearest = quadratic_form(fewer.attention)
    assert size(form - nearest) >= missed[heads - 1]


def test_heads_of_low_rank_are_the_planted_ones():
    rng = np.random.default_rng(0)
    made = [uh.LinearAttention(rng.normal(size=(3, 6)), *rng.normal(size=(2, 2, 6))) for _ in "ab"]
    source = uh.MultiHead(made, rng.normal(size=(6, 6)))
    result = uh.decompile(uh.compile(source).layer)
    assert "unique in general" in result.reason and len(result.heads) == 2
    for head in result.heads:
        M = np.asarray(head.W_K.T @ head.W_Q)
        planted = [np.asarray(other.W_K.T @ other.W_Q) for other in made]
        cosines = [abs(np.sum(M * N)) / np.linalg.norm(M) / np.linalg.norm(N) for N in planted]
        assert max(cosines) == pytest.approx(1, abs=1e-8) and min(cosines) < 0.9


def test_more_heads_than_allowed_are_not_attention():
    rng = np.random.default_rng(1)
    made = [uh.LinearAttention(*rng.normal(size=(3, 6, 6))) for _ in range(5)]
    rnn = uh.compile(uh.MultiHead(made, rng.normal(size=(6, 30)))).layer
    result = uh.decompile(rnn)
    assert result.verdict == "not attention" and "max_heads is 4" in result.reason
    assert len(uh.decompile(rnn, max_heads=5).heads) == 5


@pytest.mark.usefixtures("unhooked")
def test_max_heads_is_a_whole_number():
    rnn = uh.compile(uh.LinearAttention(*np.ones((3, 2, 2)))).layer
    for value in (0, -1, 1.5, "4"):
        with pytest.raises(uh.BadInput, match="max_heads is"):
            uh.decompile(rnn, max_heads=value)
