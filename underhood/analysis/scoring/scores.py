"""How much of a layer is linear attention, measured from outside on fresh N(0, I) sequences.

The layer is only called (`layer_arrays.py`); its weights are not read. The nearest attention
(`fitting.py`) is fitted on one half of the sequences, and every R² is taken on the other half:
1 − Σ|y − ŷ|²/Σ|y − mean|² over all outputs and times, clipped to [0, 1]. All of it is float64.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.analysis.forms.attention_fit import attention_with
from underhood.analysis.scoring import layer_arrays
from underhood.analysis.scoring.fitting import fit_outputs
from underhood.analysis.scoring.layer_arrays import AnyLayer
from underhood.analysis.scoring.problem import memories
from underhood.common.threads import one_thread
from underhood.constructions.sources.reference import reference
from underhood.layers import LinearAttention

HIGHEST_DEGREE = 5
# The degree spectrum reads this many sequences at Chebyshev points of [−1, 1], and between them.
SCALED = 64
RADII = np.cos(np.pi * np.arange(12) / 11)
BETWEEN = np.cos(np.pi * (np.arange(11) + 0.5) / 11)
# Uncorrelated parts have squares that add up; many times more means that they are an artefact.
CANCELLING = 3.0
# Singular values of M below this part of the largest are what rounding left of a zero.
NO_KEY = 1e-10


@dataclass(frozen=True)
class AttentionScore:
    """The attention nearest to a layer, and what the layer has in common with it.

    score, score_with_biases  R² of `attention`, without biases, and of `attention_with_biases`
    state_kv, state_q         R² of linear maps from the state after token t to the key-values
                              W_V S_t W_Kᵀ of `attention`, and to its queries W_Q x_t
    degrees[k], k = 0…5       |y_k|²/Σ_j|y_j|², where y(r·x) = Σ_k r^k y_k on inputs scaled by r
    beyond_degrees            the share of |y(r·x)|² which that polynomial misses
    state_dimension           participation ratio (Σσ²)²/Σσ⁴ of the centred states
    state_rank                singular values of the centred states above 1e-6 of the largest

    Fields about the state are None for a layer without `step` and `initial_state`.
    """

    score: float
    attention: LinearAttention
    score_with_biases: float
    attention_with_biases: LinearAttention
    state_kv: float | None
    state_q: float | None
    state_dimension: float | None
    state_rank: int | None
    degrees: tuple[float, ...]
    beyond_degrees: float
    notes: tuple[str, ...]

    @property
    def decay(self) -> float:
        """λ of `attention`, the same for all outputs."""
        return float(self.attention.decays[0])

    def __str__(self) -> str:
        degrees = "  ".join(f"{k}: {share:.1%}" for k, share in enumerate(self.degrees))
        rows = [("attention score", f"{self.score:.6f}  (decay {self.decay:.4g})")]
        rows += [("  with biases", f"{self.score_with_biases:.6f}")]
        if self.state_rank is not None:
            rows += [("key-values in state", f"{self.state_kv:.6f}")]
            rows += [("queries in state", f"{self.state_q:.6f}")]
            rows += [("state dimension", f"{self.state_dimension:.1f}  (rank {self.state_rank})")]
        rows += [("degrees in the input", f"{degrees}  beyond: {self.beyond_degrees:.1%}")]
        rows += [("note", note) for note in self.notes]
        return "\n".join(f"{name:<22}{value}" for name, value in rows)


@one_thread
def attention_score(
    layer: AnyLayer,
    *,
    key: PRNGKeyArray,
    time: int = 32,
    sequences: int = 256,
    d_in: int | None = None,
) -> AttentionScore:
    """Fit linear attention to any layer [time, d_in] → [time, d_out], and say how well it fits.

    time, sequences  length and number of the sequences; half are fitted, half are judged
    d_in             numbers per token, for a layer without a field `d_in`
    """
    d_in = layer_arrays.checked_d_in(layer, key, time, sequences, d_in)
    with jax.enable_x64(True):
        layer = layer_arrays.promoted(layer)
        drawn = jax.random.normal(key, (sequences, time, d_in), jnp.float64)
        layer_arrays.check_layer(layer, drawn)
        ys = layer_arrays.read_layer(layer, drawn)
        hs = (
            layer_arrays.read_layer(layer, drawn, states=True)
            if layer_arrays.streams(layer)
            else None
        )
        xs = np.asarray(drawn)
        (*degrees, beyond), cancel = degree_spectrum(layer, xs[:SCALED])
    half = sequences // 2
    plain, biased = (nearest(xs[:half], ys[:half], biases=biases) for biases in (False, True))
    score, score_with_biases = (
        r_squared(ys[half:], reference(attention, xs[half:])) for attention in (plain, biased)
    )
    state_kv = state_q = state_dimension = state_rank = None
    if hs is not None:
        S = memories(xs, float(plain.decays[0]))[0]
        key_values = np.asarray(plain.W_V @ S @ plain.W_K.T).reshape(sequences, time, -1)
        state_kv, state_q = linear_r_squared(hs, key_values, xs @ plain.W_Q.T)
        sigma = singular_values(hs)
        state_dimension = float(np.sum(sigma**2) ** 2 / max(np.sum(sigma**4), 1.0))
        state_rank = int(np.sum(sigma > 1e-6))
    fits = (score, plain, score_with_biases, biased)
    states = (state_kv, state_q, state_dimension, state_rank)
    notes = (
        (is_constant(ys), "The output is constant, so there is nothing to explain."),
        (hs is None, "The layer has no step and initial_state, so its state was not read."),
        (cancel, "Parts of different degree cancel: the outputs are no low polynomial."),
    )
    true_notes = tuple(note for holds, note in notes if holds)
    return AttentionScore(*fits, *states, tuple(degrees), beyond, true_notes)


def nearest(xs: np.ndarray, ys: np.ndarray, *, biases: bool) -> LinearAttention:
    """Return the fitted attention as a layer; zero where the outputs are constant."""
    zs = np.concatenate([xs, np.ones_like(xs[:, :, :1])], axis=2) if biases else xs
    p, d_in, d_out = zs.shape[2], xs.shape[2], ys.shape[2]
    W_V, M, decay = np.zeros((d_out, p)), np.zeros((p, p)), np.ones(d_out)
    if not is_constant(ys):
        fit = fit_outputs(zs, scaled(ys))
        W_V, M, decay = float(np.max(np.abs(ys))) * fit.W_V, fit.M, np.full(d_out, fit.decay)
    return attention_with(W_V, M, decay, d_in=d_in, biases=biases, noise=NO_KEY)


def is_constant(values: np.ndarray) -> bool:
    """Tell whether [batch, time, numbers] are the same everywhere up to rounding."""
    return bool(np.max(np.std(scaled(values), axis=(0, 1)), initial=0.0) <= 1e-12)


def scaled(values: np.ndarray) -> np.ndarray:
    """Divide by the largest, so that no square over- or underflows."""
    return values / (np.max(np.abs(values), initial=0.0) or 1.0)


def r_squared(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Return the share of the targets' variance that is predicted; 0 where there is none."""
    if is_constant(targets):
        return 0.0
    size = np.max(np.abs(targets))
    missed = np.sum(((targets - predictions) / size) ** 2)
    spread = np.sum(((targets - targets.mean(axis=(0, 1))) / size) ** 2)
    return float(np.clip(1 - missed / spread, 0.0, 1.0))


def linear_r_squared(hs: np.ndarray, *targets: np.ndarray) -> list[float]:
    """Return R² of each target, on the second half, for a linear map fitted on the first half."""
    hs, half = scaled(hs), len(hs) // 2
    fitted = np.concatenate(hs[:half])
    mean, size = fitted.mean(axis=0), fitted.std(axis=0)
    # Numbers of very different sizes are equally good evidence; constant ones are none.
    scale = np.where(size > 1e-12 * np.abs(mean), 1 / np.maximum(size, 1e-300), 0.0)
    known = np.concatenate([scaled(target) for target in targets], axis=2)
    offset = known[:half].mean(axis=(0, 1))
    right = np.concatenate(known[:half]) - offset
    linear = np.linalg.lstsq((fitted - mean) * scale, right, rcond=1e-13)[0]
    predicted = ((hs[half:] - mean) * scale) @ linear + offset
    ends = np.cumsum([target.shape[2] for target in targets])[:-1]
    judged = (np.split(array, ends, axis=2) for array in (known[half:], predicted))
    return [r_squared(*pair) for pair in zip(*judged, strict=True)]


def singular_values(hs: np.ndarray) -> np.ndarray:
    """Return those of the centred states over the largest; none if the states are constant."""
    if is_constant(hs):
        return np.zeros(0)
    flat = np.concatenate(scaled(hs))
    R = np.linalg.qr(flat - flat.mean(axis=0), mode="r")
    sigma = np.linalg.svd(R, compute_uv=False)
    return sigma / sigma[0]


def degree_spectrum(layer: AnyLayer, xs: np.ndarray) -> tuple[list[float], bool]:
    """Return the shares of all degrees and of the rest, and whether parts of y cancel.

    y(r·x) is fitted by a polynomial in r at some points of [−1, 1], and judged at others.
    """
    radii, fitted = np.concatenate([RADII, BETWEEN]), len(RADII)
    inputs = (radii[:, None, None, None] * xs).reshape(-1, *xs.shape[1:])
    ys = scaled(layer_arrays.read_layer(layer, jnp.asarray(inputs)).reshape(len(radii), -1))
    powers = np.vander(radii, HIGHEST_DEGREE + 1, increasing=True)
    parts = np.linalg.lstsq(powers[:fitted], ys[:fitted], rcond=None)[0]
    missed = np.sum((ys[fitted:] - powers[fitted:] @ parts) ** 2)
    squares = np.sum(parts**2, axis=1)
    # RADII[0] is 1, where the parts add up to the output itself.
    whole, size = np.sum(ys[0] ** 2) or 1.0, np.sum(ys[fitted:] ** 2) or 1.0
    shares = squares / (np.sum(squares) or 1.0)
    return [*shares.tolist(), float(missed / size)], bool(np.sum(squares) / whole > CANCELLING)
