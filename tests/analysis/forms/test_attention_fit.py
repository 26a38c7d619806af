"""Attention from its coefficients: exact tables give their weights back, others their best fit."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from underhood.analysis.decompilation.nearest import derivative, misfit, square_root
from underhood.analysis.decompilation.projection import attention_features
from underhood.analysis.forms.attention_fit import fit_attention, table_of
from underhood.analysis.forms.quadratic import attention_table


def draw(seed, outputs, p, columns, rank_v, rank_m):
    rng = np.random.default_rng(seed)
    V = rng.normal(size=(outputs, rank_v)) @ rng.normal(size=(rank_v, p))
    M = rng.normal(size=(p, rank_m)) @ rng.normal(size=(rank_m, columns))
    return V, M


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    outputs=st.integers(1, 6),
    p=st.integers(1, 6),
    columns=st.integers(1, 6),
    rank_v=st.integers(0, 6),
    rank_m=st.integers(0, 6),
)
def test_an_exact_table_is_fitted_exactly(seed, outputs, p, columns, rank_v, rank_m):
    V, M = draw(seed, outputs, p, columns, rank_v, rank_m)
    table = table_of(V, M)
    fit = fit_attention(table)
    assert fit.residual < 1e-11
    np.testing.assert_allclose(
        table_of(fit.W_V, fit.M), table, atol=1e-11 * max(np.abs(table).max(), 1)
    )
    ranks = [np.linalg.matrix_rank(W) for W in (V, M)]
    if min(ranks) >= 1 and max(ranks) > 1:
        # W_V and M themselves, up to one scale.
        for W, target in ((fit.W_V, V), (fit.M, M)):
            scale = np.sum(W * target) / np.sum(target**2)
            np.testing.assert_allclose(W, scale * target, atol=1e-8 * np.abs(W).max())


@pytest.mark.parametrize("size", [1e-3, 0.1])
def test_a_little_noise_moves_the_fit_a_little(size):
    table = table_of(*draw(1, 3, 4, 4, 3, 4))
    noise = np.random.default_rng(2).normal(size=table.shape)
    noise = noise + noise.swapaxes(1, 2)
    noise *= size * np.linalg.norm(table) / np.linalg.norm(noise)
    fit = fit_attention(table + noise)
    assert 0.5 * size < fit.residual < size
    assert np.linalg.norm(table_of(fit.W_V, fit.M) - table) < size * np.linalg.norm(table)


def test_what_is_no_attention_is_not_explained_and_nothing_by_nothing():
    table = np.random.default_rng(3).normal(size=(4, 5, 5, 4))
    assert fit_attention(table + table.swapaxes(1, 2)).residual > 0.5
    fit = fit_attention(np.zeros((2, 3, 3, 3)))
    assert fit.residual == 0 and not fit.W_V.any() and not fit.M.any()


@pytest.mark.parametrize("biases", [False, True])
def test_the_misfit_has_its_derivative(biases):
    rng, d, outputs = np.random.default_rng(0), 3, 2
    features = attention_features(d, biases=biases)
    roots = rng.normal(size=(outputs, np.sum(features), np.sum(features)))
    factors = [square_root(root.T @ root, features) for root in roots]
    tables, size = rng.normal(size=(outputs, 10, d + 1)), d + biases
    V, M = np.zeros((outputs, d + 1)), np.zeros((d + 1, d + 1))
    V[:, :size], M[:size, :size] = rng.normal(size=(outputs, size)), rng.normal(size=(size, size))
    apart = (attention_table(V, M) - tables)[:, features]
    now = misfit(V, M, tables, factors)
    assert now @ now == pytest.approx(np.sum((roots @ apart[:, :, None]) ** 2), rel=1e-12)
    # The table is linear in V and in M, so any step gives the slope.
    slopes = []
    for W in (V, M):
        for place in np.ndindex(min(len(W), size), size):
            W[place] += 1.0
            slopes.append(misfit(V, M, tables, factors) - now)
            W[place] -= 1.0
    expected = np.array(slopes).T
    slopes = derivative(V, M, factors, size)
    np.testing.assert_allclose(slopes, expected, atol=1e-12 * np.abs(expected).max())
