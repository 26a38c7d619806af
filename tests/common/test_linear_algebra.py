"""Least squares where LAPACK's fast routine gives up."""

import numpy as np
import pytest

from underhood.common.linear_algebra import solve_least_squares


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (1, 1), (5, 5)])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_the_slow_routine_gives_what_the_fast_one_gives(shape, rank, monkeypatch) -> None:
    rng = np.random.default_rng(rank)
    A = rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))
    b = rng.normal(size=(shape[0], 2))
    expected = np.linalg.pinv(A, rcond=1e-13) @ b
    np.testing.assert_allclose(solve_least_squares(A, b, cutoff=1e-13), expected, atol=1e-10)

    def gives_up(*_: object, **__: object) -> None:
        raise np.linalg.LinAlgError("SVD did not converge in Linear Least Squares")

    monkeypatch.setattr(np.linalg, "lstsq", gives_up)
    np.testing.assert_allclose(solve_least_squares(A, b, cutoff=1e-13), expected, atol=1e-10)
