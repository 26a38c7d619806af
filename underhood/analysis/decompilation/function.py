"""A network's function with a bound on its rounding: what `decompile` works on.

Weights are scaled into range first (`scaling.py`). Coefficients are computed in float64, and if
cancelling neurons may have cost digits, again without rounding (`exact.py`).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from underhood.analysis.arguments import GatedNetwork, ReadableNetwork
from underhood.analysis.forms.absolute import EPS, absolute_form, rounding_of, without_signs
from underhood.analysis.forms.exact import exact_form
from underhood.analysis.forms.norms import size
from underhood.analysis.forms.quadratic import QuadraticForm, quadratic_form
from underhood.analysis.forms.scaling import in_range
from underhood.analysis.forms.tables import TableForm, form_of, table_form
from underhood.layers import LinearAttention, MultiHead

# Where rounding may be more than this share of the function, coefficients are computed exactly.
LOST_DIGITS = 1e-9
# A network that is run reaches outputs of the function's size, or at least of this share of it.
LOST_SHARE, RUN_SEQUENCES = 1e-3, 8
# A function this small against its terms is what rounding left of the weights themselves.
WEIGHTS_ROUNDED = 4 * EPS


@dataclass(frozen=True)
class NetworkFunction:
    """2^exponent · given, known up to `noise`; sizes are those of `given` at length `time`.

    given      the function: tables, if every product has the current token as a factor
    layer      the network with weights in range
    size       of the form
    noise      largest size of what rounding may have added to the form
    cancelled  the share of its terms' size that is left of the function; 1: nothing cancels
    """

    given: QuadraticForm | TableForm
    layer: ReadableNetwork
    exponent: int
    time: int
    size: float
    noise: float
    cancelled: float

    @cached_property
    def form(self) -> QuadraticForm:
        """The function over pairs of neurons, which takes far more memory than tables."""
        return quadratic_form(self.layer) if isinstance(self.given, TableForm) else self.given

    def without(self, attention: LinearAttention | MultiHead) -> QuadraticForm | TableForm:
        """Return the difference to an attention."""
        if isinstance(self.given, QuadraticForm):
            return self.given - quadratic_form(attention)
        tables = table_form(attention)
        assert tables is not None
        return self.given - tables

    @property
    def is_zero(self) -> bool:
        """Whether every coefficient is exactly zero."""
        return self.size == 0 and self.noise == 0

    @property
    def is_rounding(self) -> bool:
        """Whether the function may be nothing but rounding, of the weights or of the sums."""
        return not self.is_zero and (
            self.size <= 2 * self.noise or self.cancelled <= WEIGHTS_ROUNDED
        )


def lost_in_float64(network: ReadableNetwork, function: NetworkFunction) -> str | None:
    """Say how float64 loses the outputs of a network, if it does: they overflow or underflow.

    The function is known whatever the scale of the weights, but the states and gates of the network
    may leave the range of float64 when it is run.
    """
    weights = {
        name: np.asarray(getattr(network, name), float)
        for name in ("W_in_m", "W_in_x", "W_out_m", "W_out_x", "W_side", "A", "decay", "D")
        if hasattr(network, name)
    }
    xs = np.random.default_rng(0).normal(size=(function.time, RUN_SEQUENCES, network.d_in))
    constant = np.ones((*xs.shape[:2], weights["W_in_m"].shape[1] - network.d_in))
    zs = np.concatenate([xs, constant], axis=2)
    state, largest, products = np.zeros((RUN_SEQUENCES, network.neurons)), 0.0, 0.0
    with np.errstate(all="ignore"):
        for x, z in zip(xs, zs, strict=True):
            kept = state @ weights["A"].T if "A" in weights else weights["decay"] * state
            state = kept + (z @ weights["W_in_m"].T) * (z @ weights["W_in_x"].T)
            if "W_side" in weights:
                gates = (x @ weights["W_side"].T) * state
            else:
                gates = (state @ weights["W_out_m"].T) * (state @ weights["W_out_x"].T)
            products = np.maximum(products, np.max(np.abs(gates), initial=0.0))
            largest = np.maximum(largest, np.max(np.abs(gates @ weights["D"].T), initial=0.0))
    if not np.isfinite(largest):
        return "overflow"
    # Outputs far below the function's size have lost their digits, or all of themselves.
    lowest = np.log2(function.size) + function.exponent + np.log2(LOST_SHARE)
    tiny = np.finfo(float).tiny
    faint = largest < tiny or products < tiny or np.log2(largest) < lowest
    return "underflow" if faint else None


def network_function(network: ReadableNetwork, time: int) -> NetworkFunction:
    """Return the function of a network with a bound on its rounding."""
    scaled = in_range(network)
    layer, form = scaled.layer, form_of(scaled.layer)
    absolute = absolute_form(layer)
    terms, whole = size(absolute, time), size(form, time)
    noise = rounding_of(absolute, layer.neurons + layer.gate_width, time, terms)
    if noise > LOST_DIGITS * whole and isinstance(layer, GatedNetwork):
        exact = exact_form(layer)
        if exact is not None:
            form, whole = exact, size(exact, time)
            noise = rounding_of(without_signs(exact), exact.neurons, time)
    cancelled = whole / terms if terms else 1.0
    return NetworkFunction(form, layer, scaled.exponent, time, whole, noise, cancelled)
