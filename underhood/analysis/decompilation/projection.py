"""The part of a network's function that is linear in one decayed moment and in the current token.

Attention lies in the span of the features f_ec(t) = A_e(t) z_c(t), where A = Σ_{s≤t} λ^{t−s}v(z_s).
`project` finds the table T of coefficients over all features that is nearest to the network on
tokens x ~ N(0, I), in the mean over outputs and the tokens 1 … `time`: Φ T = b with Φ = E[f f'] and
b = E[y f]. Let P be the past, a sum of independent tokens that does not depend on the current one.
Once it is split off, both follow from the moments of normal numbers:

    A = P + v,    h_i = p_i + q_i·v,
    E[f f'] = E[PP'] E[zz'] + E[P] E[v'zz'] + E[P'] E[vzz'] + E[vv'zz']
    E[y f]  = Σ_ij K_ij (E[p_i p_j P] E[z] + E[p_i p_j] E[vz] + 2 E[p_i P] E[q_j z]
                         + 2 E[p_i] E[q_j vz] + E[P] E[q_i q_j z] + E[q_i q_j vz]).

Cumulants of independent tokens add up, the entries of v are uncorrelated, and the rest are
expectations of monomials.
"""

import numpy as np

from underhood.analysis.forms.monomials import entry_powers, monomials
from underhood.analysis.forms.norms import TIME, entry_moments
from underhood.analysis.forms.quadratic import QuadraticForm, from_table
from underhood.common.linear_algebra import upper


def normal_moments(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return E[x^(a + b)] for powers a [many, d] and b [more, d], x ~ N(0, I)."""
    double_factorial = np.array([1.0, 0, 1, 0, 3, 0, 15, 0, 105])
    result = np.ones((len(first), len(second)))
    for a, b in zip(first.T, second.T, strict=True):
        result *= double_factorial[a[:, None] + b]
    return result


def feature_powers(d_in: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return powers of x in the entries of v, of z, and of v_e z_c [features, d_in]."""
    v, z = entry_powers(d_in), np.eye(d_in + 1, d_in, dtype=int)
    return v, z, (v[:, None] + z).reshape(-1, d_in)


def attention_features(d_in: int, *, biases: bool) -> np.ndarray:
    """Return which features [entries, d_in + 1] attention can use: without biases, no constants."""
    _, columns = upper(d_in + 1)
    return biases | ((columns < d_in)[:, None] & (np.arange(d_in + 1) < d_in))


def metric(d_in: int, decay: float | tuple[float, float], time: int) -> np.ndarray:
    """Return Φ, averaged over the tokens of a sequence.

    decay  of the memory; two decays if f and f' have memories of different decays
    """
    mean, spread = entry_moments(d_in)
    v, z, both = feature_powers(d_in)
    first, second = decay if isinstance(decay, tuple) else (decay, decay)
    pasts = [value ** np.arange(time) for value in (first, second)]
    for past in pasts:
        past[0] = 0.0
    (sums, more), squares = np.cumsum(pasts, axis=1), np.cumsum(pasts[0] * pasts[1])
    seen = np.mean(sums * more) * np.outer(mean, mean) + np.mean(squares) * np.diag(spread**2)
    width = len(v) * (d_in + 1)
    # E[v'zz'] [c, features']; E[P] puts it in every entry with a mean.
    meets = np.einsum("e,cf->ecf", mean, normal_moments(z, both)).reshape(width, width)
    return (
        np.einsum("ef,cd->ecfd", seen, normal_moments(z, z)).reshape(width, width)
        + np.mean(sums) * meets
        + np.mean(more) * meets.T
        + normal_moments(both, both)
    )


def correlations(form: QuadraticForm, decay: float, time: int) -> np.ndarray:
    """Return b [d_out, entries, d_in + 1], averaged over the tokens of a sequence."""
    d_in = form.d_in
    mean, spread = entry_moments(d_in)
    v, z, both = feature_powers(d_in)
    known = monomials(d_in)
    lags = np.arange(1, time)[:, None]

    def past_sums(ratio: np.ndarray) -> np.ndarray:
        """Return Σ_{1≤k<t} ratio^k for t = 1 … time, one column per ratio."""
        flat = np.atleast_1d(ratio).ravel()
        summed = np.vstack([np.zeros(len(flat)), np.cumsum(flat**lags, axis=0)])
        return summed.reshape(time, *np.shape(ratio))

    P = past_sums(np.array(decay))
    centre, white = form.reads @ mean, form.reads * spread
    p = past_sums(form.decay) * centre
    # Cumulants of the past: of p_i and P, of p_i and p_j, of p_i and p_j and P.
    with_P, pairs = past_sums(form.decay * decay), past_sums(np.outer(form.decay, form.decay))
    triples = np.mean(past_sums(np.outer(form.decay, form.decay) * decay), axis=0)
    covariance = form.reads * spread**2
    gram = white @ white.T
    E_z = np.eye(d_in + 1)[-1]
    E_vz = normal_moments(v, z)
    q_z = form.reads @ E_vz
    q_vz = (form.reads @ normal_moments(v, both)).reshape(-1, len(v), d_in + 1)
    centred = form.reads.copy()
    centred[:, -1] -= centre
    of_v, of_z = normal_moments(known.powers, v), normal_moments(known.powers, z)
    of_vz = normal_moments(known.powers, both)
    result = np.zeros((form.d_out, len(v), d_in + 1))
    for o, K in enumerate(form.kernels):
        Kp = p @ K
        second = np.einsum("ti,ti->t", Kp, p) + np.einsum("ij,tij,ij->t", K, pairs, gram)
        skewed = known.collect(centred.T @ (K * triples) @ centred)
        third = (
            np.mean(second * P) * mean
            + 2 * np.mean(Kp * with_P, axis=0) @ covariance
            # w_i w_j and v_e: the mean of the product of the first two times E[v_e] goes.
            + skewed @ of_v
            - (skewed @ of_v[:, -1]) * mean
        )
        here = known.collect(form.reads.T @ K @ form.reads)
        result[o] = (
            np.outer(third, E_z)
            + np.mean(second) * E_vz
            + 2 * np.outer(mean, np.mean(P[:, None] * Kp, axis=0) @ q_z)
            + 2 * np.einsum("i,ie,ic->ec", np.mean(with_P, axis=0), covariance, K @ q_z)
            + 2 * np.einsum("i,iec->ec", np.mean(Kp, axis=0), q_vz)
            + np.mean(P) * np.outer(mean, here @ of_z)
            + (here @ of_vz).reshape(len(v), d_in + 1)
        )
    return result


def project(
    form: QuadraticForm, decay: float, features: np.ndarray, time: int = TIME
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest table [d_out, entries, d_in + 1] over the chosen features, and Φ there."""
    form = form.gathered()
    # The network's coefficients over these features are taken exactly; the rest is projected.
    exact = exact_table(form, decay) * features
    rest = form - from_table(form.d_in, exact, decay)
    chosen = features.ravel()
    phi = metric(form.d_in, decay, time)[np.ix_(chosen, chosen)]
    b = correlations(rest.gathered(), decay, time).reshape(form.d_out, -1)[:, chosen]
    table = exact.reshape(form.d_out, -1)
    table[:, chosen] += np.linalg.lstsq(phi, b.T, rcond=1e-13)[0].T
    return table.reshape(exact.shape), phi


def exact_table(form: QuadraticForm, decay: float, nearby: float = 1e-12) -> np.ndarray:
    """Return coefficients over the features of neurons whose decay is within `nearby`."""
    _, columns = upper(form.d_in + 1)
    memory = np.abs(form.decay - decay) <= nearby
    query = (form.decay == 0) & ~memory
    linear = np.flatnonzero(columns == form.d_in)
    meets = form.kernels[:, memory][:, :, query] @ form.reads[query][:, linear]
    return 2 * np.einsum("me,omc->oec", form.reads[memory], meets)
