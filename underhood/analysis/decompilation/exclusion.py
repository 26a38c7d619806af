"""What no attention can have: proofs that a function is not attention.

In y = V S M z every term joins at most one past token with the current one. It is of degree two or
less in the past token and of degree one in the current one; a term of the current token alone has
degree three or less. Functions of different tokens are orthogonal on x ~ N(0, I) once their means
are taken out (`norms.py`), and Hermite polynomials of different degree are orthogonal too. So the
rest is missed by every attention, whatever its heads and decays (`missed_by_all`).

A past token x and a current one x' meet in Σ_h μ_h^k (V_h x)(xᵀM_h x'), at lag k. As a matrix from
x' to outputs this is N_k(x), and each head adds a matrix of rank one to it. So N_k(x) of rank r
needs r heads, whatever their decays and biases (`missed_by_heads`).

At given decays, everything that is linear in the memory and in the current token is a table over
features. The distance to all tables is a projection (`missed_by_tables`).
"""

import numpy as np

from underhood.analysis.decompilation.projection import correlations, metric
from underhood.analysis.forms.monomials import monomials
from underhood.analysis.forms.norms import entry_moments, second_moments
from underhood.analysis.forms.quadratic import (
    QuadraticForm,
    entry_degrees,
    from_table,
    products,
)
from underhood.analysis.forms.tables import TableForm
from underhood.common.linear_algebra import upper

# Directions in which the rank of N_k(x) is tried.
DIRECTIONS = 64


def missed_by_all(form: QuadraticForm | TableForm, time: int) -> float:
    """Return the size of the part that no attention has, whatever its heads and decays."""
    if isinstance(form, TableForm):
        # Every term is linear in one moment and in the current token.
        return 0.0
    form = form.gathered(equal=0.0)
    if not form.neurons:
        return 0.0
    mean, spread = entry_moments(form.d_in)
    fading = form.decay ** np.arange(time)[:, None]
    written = fading[:, :, None] * (form.reads * spread)
    n, width = form.reads.shape
    flat = written.transpose(1, 0, 2).reshape(n, time * width)
    centred = form.reads.copy()
    centred[:, -1] -= form.reads @ mean
    known, order = monomials(form.d_in), monomials(form.d_in).powers.sum(axis=1)
    # Pairs of the current token with a past one: only what is quadratic in the current one.
    allowed = np.ones((time, width, time, width), bool)
    allowed[0, entry_degrees(form.d_in) < 2] = False
    totals = np.zeros(time)
    for kernel in form.kernels:
        squares = (flat.T @ kernel @ flat).reshape(time, width, time, width) ** 2
        pairs = (squares * allowed).sum(axis=(1, 3))
        faded = fading[:, :, None] * centred
        quartic = known.to_hermite(known.collect(faded.swapaxes(1, 2) @ kernel @ faded))
        alone = np.sum(quartic[:, order > 2] ** 2, axis=1)
        alone[0] = np.sum(quartic[0, order > 3] ** 2)
        totals += 4 * np.cumsum(np.sum(np.triu(pairs, 1), axis=0)) + np.cumsum(alone)
    return float(np.sqrt(np.mean(totals) / max(form.d_out, 1)))


def missed_by_heads(form: QuadraticForm | TableForm, time: int, seed: int = 0) -> np.ndarray:
    """Return what every attention with 0, 1, 2, … heads misses, whatever its decays and biases.

    At each lag the distance of N_k(x) to matrices of rank r is √(σ²_{r+1} + …). It is divided by
    the norm of x's coordinates, so that it bounds the size of a part of the function. Several
    directions x are tried, and the best is taken for each number of heads.
    """
    d, d_out = form.d_in, form.d_out
    rows, columns = upper(d + 1)
    square, linear = columns < d, (columns == d) & (rows < d)
    spread = entry_moments(d)[1][square]
    lags = np.arange(1, time)
    tokens = np.vstack([np.random.default_rng(seed).normal(size=(DIRECTIONS, d)), np.eye(d)])
    v = products(tokens)[:, square] / spread
    v = v / np.linalg.norm(v, axis=1, keepdims=True)
    # N_k(x) = Σ_e v_e C_k[e], with C_k over orthonormal functions of both tokens.
    if isinstance(form, TableForm):
        N = np.zeros((len(v), len(lags), d_out, d))
        for part in form.parts:
            seen = np.tensordot(v * spread, part.table[:, square, :d], axes=([1], [1]))
            N[:, :, part.outputs] += (part.decay**lags)[:, None, None] * seen[:, None]
    else:
        form = form.gathered(equal=0.0)
        past = form.decay ** lags[:, None, None] * form.reads[:, square].T
        met = form.kernels @ form.reads[:, linear]
        N = np.einsum("te,koec->tkoc", v, 2 * spread[:, None] * (past[:, None] @ met))
    squares = np.linalg.svd(N, compute_uv=False) ** 2
    tails = np.cumsum(squares[..., ::-1], axis=-1)[..., ::-1]
    # Lag k exists in time − k of the tokens.
    missed = np.einsum("tkr,k->tr", tails, (time - lags) / time) / max(d_out, 1)
    return np.sqrt(np.append(np.max(missed, axis=0, initial=0.0), 0.0))


def missed_by_tables(
    form: QuadraticForm, decays: np.ndarray, features: np.ndarray, time: int
) -> np.ndarray:
    """Return E[y²] [d_out] of the distance to all sums of tables over features at given decays."""
    chosen = features.ravel()
    form = form.gathered()
    blocks = [
        [metric(form.d_in, (a, b), time)[np.ix_(chosen, chosen)] for b in decays] for a in decays
    ]
    rest, total = form, np.zeros((form.d_out, len(decays) * int(chosen.sum())))
    # The second pass takes out what rounding left of the first.
    for _ in range(2):
        right = np.hstack(
            [correlations(rest, a, time).reshape(form.d_out, -1)[:, chosen] for a in decays]
        )
        total = total + np.linalg.lstsq(np.block(blocks), right.T, rcond=1e-13)[0].T
        rest = form
        for a, part in zip(decays, np.split(total, len(decays), axis=1), strict=True):
            table = np.zeros((form.d_out, features.size))
            table[:, chosen] = part
            rest = rest - from_table(form.d_in, table.reshape(-1, *features.shape), a)
        rest = rest.gathered()
    return np.mean(second_moments(rest, time), axis=1)
