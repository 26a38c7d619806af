"""Products made of sigmoids: the gadget that all linearised constructions share.

σ(z) − ½ = ½ tanh(z/2) is odd. With scales e_i = iε/n, i = 1…n (n is the *order*) and

    a_i = (4n/ε)(1/i) ∏_{j≠i} j²/(j² − i²),   Σ_i a_i (σ(e_i z) − ½) = z + O(ε^{2n} z^{2n+1}).

The ½ is removed by a copy of the value behind a zero gate. Truncation falls as ε^{2n}, rounding
grows as ε^{−p} (p sigmoids multiply), and `balanced` puts ε where the two meet; the sizes of both
are fits to `benchmarks/epsilon.py`. docs/constructions.md has the derivation.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import zeta

from underhood.common.arrays import FLOATS

# Networks are built for sequences of this length unless asked for a longer one.
DEFAULT_LENGTH = 32

# A tanh that must be linear gets this scale. A power of two costs no rounding, and the cubic term
# that it leaves is below rounding: (2^-40)² and (2^-24)² times the square of the signal. The GRU
# sums sums, which grow as the square of the length, so a longer sequence gets a smaller scale.
LINEAR = {FLOATS["float64"]: 2.0**-40, FLOATS["float32"]: 2.0**-24}

# σ(OPEN) is 1 and σ(SHUT) is 0, to the last bit in float32 and in float64.
OPEN, SHUT = 100.0, -700.0


@dataclass(frozen=True)
class Limit:
    """A network that is right in the limit ε → 0, with an error of size ε^order."""

    order: int
    epsilon: float


@dataclass(frozen=True)
class Product:
    """Scales and readout weights that make a product of order n at a given ε.

    dtype   precision that the network will run in
    length  of the longest sequence that it will run on
    """

    order: int
    epsilon: float
    dtype: np.dtype = FLOATS["float64"]
    length: int = DEFAULT_LENGTH

    @property
    def linear(self) -> float:
        """The scale at which tanh is linear to rounding."""
        doublings = math.ceil(math.log2(max(self.length / DEFAULT_LENGTH, 1)))
        return LINEAR[self.dtype] * 2.0 ** (-2 * doublings)

    @property
    def needs_x64(self) -> bool:
        """Whether the network would give noise in float32."""
        return self.dtype == np.float64

    @property
    def scales(self) -> np.ndarray:
        """e_i."""
        return self.epsilon * np.arange(1, self.order + 1) / self.order

    @property
    def weights(self) -> np.ndarray:
        """a_i."""
        return 4 * lagrange_at_zero(self.order) / self.scales

    def scaled(self, rows: np.ndarray) -> np.ndarray:
        """Return all rows times e_1, then all rows times e_2, …"""
        return np.concatenate([scale * rows for scale in self.scales])


def lagrange_at_zero(order: int) -> np.ndarray:
    """Return ∏_{j≠i} j²/(j² − i²): the weights that extrapolate from the nodes 1², …, n² to 0."""
    nodes = np.arange(1.0, order + 1) ** 2
    weights = np.ones(order)
    for i in range(order):
        rest = np.delete(nodes, i)
        weights[i] = np.prod(rest / (rest - nodes[i]))
    return weights


def balanced(order: int, eps: float, *, truncation: float, rounding: float, power: int) -> float:
    """Return the ε that minimises truncation·ε^{2·order} + rounding·eps·ε^{−power}."""
    ratio = power * rounding * eps / (2 * order * truncation)
    return float(ratio ** (1 / (2 * order + power)))


def sigmoid_epsilon(order: int, eps: float, *, rounding: float, power: int) -> float:
    """Return ε for products made of sigmoids.

    eps       rounding of the network's precision
    rounding  what one sigmoid at order 1 costs, in units of eps
    power     how many sigmoids multiply
    """
    truncation = 1.5 * 7.8**order * next_coefficient(order)
    rounding *= amplification(order) ** power
    return balanced(order, eps, truncation=truncation, rounding=rounding, power=power)


def next_coefficient(order: int) -> float:
    """Return |coefficient| of ε^{2n} z^{2n+1} in Σ a_i (σ(e_i z) − ½)."""
    # The coefficient of the series of σ, times ∏ (i/n)².
    series = 8 * (1 - 2.0 ** -(2 * order + 2)) * zeta(2 * order + 2) / np.pi ** (2 * order + 2)
    return float(series * np.prod((np.arange(1, order + 1) / order) ** 2))


def amplification(order: int, power: int = 1) -> float:
    """Return Σ|a_i|·ε/4: how much more the readout weights amplify than a single scale would."""
    inverse_scales = (order / np.arange(1, order + 1)) ** power
    return float(np.sum(np.abs(lagrange_at_zero(order)) * inverse_scales))
