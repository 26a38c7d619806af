"""How large a function would be if nothing cancelled, and so how much rounding it can hold.

A coefficient computed with relative error u per operation is off by at most N·u times the same sum
of absolute values. On tokens x ~ N(0, I) no moment E[x^a] is negative, so a function whose
coefficients are smaller in absolute value than those of another is smaller itself:

    |computed − exact| ≤ N·u · size(absolute form).
"""

from dataclasses import replace

import jax
import numpy as np

from underhood.analysis.forms.diagonal import diagonalise
from underhood.analysis.forms.norms import size
from underhood.analysis.forms.quadratic import ExactLayer, QuadraticForm, input_reads
from underhood.analysis.forms.tables import TableForm, form_of
from underhood.common.linear_algebra import symmetric_part, upper
from underhood.layers import DenseGatedRNN

EPS = float(np.finfo(float).eps)


def absolute_form(layer: ExactLayer) -> QuadraticForm | TableForm:
    """Return the function of the same layer with absolute values of all weights.

    The eigenvectors of a dense recurrence are off by as much as their condition times rounding.
    """

    def without_sign(path: tuple[object, ...], leaf: np.ndarray) -> np.ndarray:
        # ν is no weight: it is negative where λ is near 1.
        return leaf if getattr(path[-1], "name", None) == "nu" else np.abs(leaf)

    absolute = jax.tree_util.tree_map_with_path(without_sign, layer)
    if not isinstance(layer, DenseGatedRNN):
        return form_of(absolute)
    basis = diagonalise(np.asarray(layer.A, float))
    kernels = np.asarray(absolute.W_out_m.T @ (absolute.D[:, :, None] * absolute.W_out_x))
    P, P_inverse = np.abs(basis.P), basis.condition * np.abs(basis.P_inverse)
    reads = P_inverse @ input_reads(absolute)
    return QuadraticForm(layer.d_in, reads, basis.decay, P.T @ symmetric_part(kernels) @ P)


def without_signs(form: QuadraticForm) -> QuadraticForm:
    """Return the form with absolute values of its reads and kernels."""
    return replace(form, reads=np.abs(form.reads), kernels=np.abs(form.kernels))


def rounding_of(
    absolute: QuadraticForm | TableForm, operations: int, time: int, terms: float | None = None
) -> float:
    """Return a bound on the size of what rounding adds to a form that was computed.

    absolute    the form in which nothing cancels
    operations  how many numbers are added up in a coefficient, at most
    time        the length at which sizes are stated
    terms       the size of `absolute`, if it is known
    """
    terms = size(absolute, time) if terms is None else terms
    entries = upper(absolute.d_in + 1)[0].size
    # A coefficient goes through a few products and sums for each, and λ^k through k products.
    return 8 * (operations + entries + time + 32) * EPS * terms
