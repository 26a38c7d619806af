"""A network's coefficients without rounding: sums of products of whole numbers.

Every float64 weight is a whole number times a power of two. Python's whole numbers have any length,
so products and sums of them are exact, and neurons that cancel leave exactly what they leave. Only
the finished coefficients are rounded to float64, each to its own last digit.

    z = [x; 1]    neurons of one decay: A = Σ_i W_out[:, i] q_i, over the entries of v(z)
    K_o = sym(Σ_j D_oj A_m[j] A_x[j]ᵀ)

The entries of v(z) take the place of the neurons of one decay, unless there is only one of them.
"""

from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from underhood.analysis.arguments import GatedNetwork
from underhood.analysis.forms.quadratic import QuadraticForm, coupled, decay_groups
from underhood.common.arrays import Weight
from underhood.common.linear_algebra import upper
from underhood.layers import GatedRNN, SideGatedRNN

# More products than this take too long; about ten million of them take a second or two.
MOST_PRODUCTS = 20_000_000
DIGITS = 53


@dataclass(frozen=True)
class Whole:
    """An array of Python's whole numbers times 2^exponent."""

    numbers: np.ndarray
    exponent: int

    @classmethod
    def of(cls, array: Weight) -> "Whole":
        """Return a float64 array, without rounding."""
        fractions, exponents = np.frexp(np.asarray(array, float))
        whole = np.ldexp(fractions, DIGITS).astype(np.int64).astype(object)
        exponents = np.where(fractions == 0, np.max(exponents, initial=0), exponents)
        lowest = int(np.min(exponents, initial=0))
        shifts = (exponents - lowest).astype(object)
        return cls(whole * 2**shifts if whole.size else whole, lowest - DIGITS)

    def at(self, exponent: int) -> np.ndarray:
        """Return the numbers in units of a smaller power of two."""
        return self.numbers * 2 ** (self.exponent - exponent)

    def rounded(self) -> np.ndarray:
        """Return the nearest float64 numbers, up to their last digit."""
        exponents = np.full(self.numbers.shape, self.exponent)
        return np.asarray(TO_FLOAT(self.numbers, exponents), float).reshape(self.numbers.shape)


def to_float(number: int, exponent: int) -> float:
    """Return number·2^exponent; digits beyond the 62nd are cut off."""
    extra = max(abs(number).bit_length() - 62, 0)
    return float(np.ldexp(float(number >> extra), exponent + extra))


TO_FLOAT = np.frompyfunc(to_float, 2, 1)


def whole_reads(W_m: np.ndarray, W_x: np.ndarray) -> Whole:
    """Return rows q_i with (w_m·z)(w_x·z) = q_i·v(z), as `symmetric_products` does."""
    m, x = Whole.of(W_m), Whole.of(W_x)
    rows, columns = upper(W_m.shape[1])
    both = m.numbers[:, rows] * x.numbers[:, columns]
    swapped = m.numbers[:, columns] * x.numbers[:, rows]
    return Whole(np.where(rows == columns, both, both + swapped), m.exponent + x.exponent)


@singledispatch
def exact_form(network: GatedNetwork) -> QuadraticForm | None:
    """Return the function with every coefficient exact to its last digit; None if that is slow."""
    raise TypeError(f"There is no exact form of a {type(network).__name__}.")


@exact_form.register
def _(network: GatedRNN) -> QuadraticForm | None:
    groups = [np.flatnonzero(group) for group in exact_groups(network)[1]]
    entries = upper(network.d_in + 1)[0].size
    width = sum(len(group) if len(group) < 2 else entries for group in groups)
    if width**2 * network.gate_width * network.d_out > MOST_PRODUCTS:
        return None
    W_m, W_x, D = (Whole.of(W) for W in (network.W_out_m, network.W_out_x, network.D))
    reads, decay, seen = basis(network)
    # [gates, width]: what every gate output reads of each sum.
    low_m, low_x = (W.exponent + min(part.exponent for part in seen) for W in (W_m, W_x))
    A_m, A_x = (
        np.hstack(
            [
                Whole(W.numbers[:, group] @ part.numbers, W.exponent + part.exponent).at(low)
                for group, part in zip(groups, seen, strict=True)
            ]
        )
        for W, low in ((W_m, low_m), (W_x, low_x))
    )
    kernels = np.array([(A_m * row[:, None]).T @ A_x for row in D.numbers], dtype=object)
    kernels = kernels.reshape(network.d_out, len(decay), len(decay))
    both = Whole(kernels + kernels.swapaxes(1, 2), D.exponent + low_m + low_x - 1)
    return QuadraticForm(network.d_in, reads, decay, both.rounded())


@exact_form.register
def _(network: SideGatedRNN) -> QuadraticForm | None:
    groups = [np.flatnonzero(group) for group in exact_groups(network)[1]]
    D, side = Whole.of(network.D), Whole.of(network.W_side)
    entries = upper(network.d_in + 1)[0].size
    if network.neurons * network.d_in * entries * network.d_out > MOST_PRODUCTS:
        return None
    reads, decay, seen = basis(network)
    couplings = []
    for group, part in zip(groups, seen, strict=True):
        # [outputs, group, d_in]: D_oi s_ic, then summed with the reads of the group.
        products = D.numbers[:, group, None] * side.numbers[group]
        summed = np.array(
            [[part.numbers.T @ column for column in output.T] for output in products], dtype=object
        ).reshape(network.d_out, network.d_in, part.numbers.shape[1])
        exponent = D.exponent + side.exponent + part.exponent
        couplings.append(Whole(summed.swapaxes(1, 2), exponent).rounded())
    all_couplings = np.pad(np.concatenate(couplings, axis=1), ((0, 0), (0, 0), (0, 1)))
    return coupled(network.d_in, reads, decay, all_couplings)


def exact_groups(network: GatedNetwork) -> tuple[tuple[float, ...], list[np.ndarray]]:
    """Return the different decays and the neurons that have them; no two count as equal."""
    return decay_groups(np.asarray(network.decay, float), equal=0.0)


def basis(network: GatedNetwork) -> tuple[np.ndarray, np.ndarray, list[Whole]]:
    """Return reads and decays of the new neurons, and what each group of old ones is in them."""
    d = network.d_in + 1
    W_m, W_x = (np.asarray(W, float) for W in (network.W_in_m, network.W_in_x))
    if isinstance(network, SideGatedRNN):
        W_m, W_x = (np.pad(W, ((0, 0), (0, 1))) for W in (W_m, W_x))
    reads, decays, seen = [np.zeros((0, upper(d)[0].size))], [], []
    for value, group in zip(*exact_groups(network), strict=True):
        q = whole_reads(W_m[group], W_x[group])
        alone = len(q.numbers) < 2
        reads.append(q.rounded() if alone else np.eye(q.numbers.shape[1]))
        seen.append(Whole(np.eye(len(q.numbers), dtype=int).astype(object), 0) if alone else q)
        decays += [value] * len(reads[-1])
    return np.vstack(reads), np.array(decays), seen
