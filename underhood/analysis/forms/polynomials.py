"""A network's instantaneous function as a polynomial of one token, with exact coefficients.

On its first token every neuron holds q_i·v(z), so an output is v(z)ᵀ(QᵀK_oQ)v(z), a quartic form in
z = [x; 1]. Collecting equal products gives one coefficient per monomial of x of degree 4 or less.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.analysis.forms.monomials import monomials
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.common.errors import BadInput


@dataclass(frozen=True)
class Polynomial:
    """`coefficients` [outputs, monomials]; row k of `powers` [monomials, d] is x^powers[k]."""

    powers: np.ndarray
    coefficients: np.ndarray

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        """The values on tokens [many, d]."""
        return np.prod(np.asarray(xs, float)[:, None] ** self.powers, axis=2) @ self.coefficients.T

    @property
    def degrees(self) -> np.ndarray:
        """The degree of each monomial."""
        return self.powers.sum(axis=1)

    def coefficient(self, output: int, *power: int) -> float:
        """The coefficient of x^power in one output."""
        fits = len(power) == self.powers.shape[1]
        same = self.powers == np.array(power) if fits else np.zeros((1, 1), bool)
        place = np.flatnonzero(np.all(same, axis=1))
        if len(place) == 0:
            raise BadInput(
                f"Give {self.powers.shape[1]} powers that sum to 4 or less, not {power}."
            )
        return float(self.coefficients[output, place[0]])

    def distance(self, other: "Polynomial") -> float:
        """The paper's normalised distance: |p − other| / |other|, averaged over the outputs.

        An output that is zero in `other` is compared with the largest one.
        """
        if self.coefficients.shape != other.coefficients.shape:
            raise BadInput(
                f"The polynomials have shapes {self.coefficients.shape} and "
                f"{other.coefficients.shape}: they need the same inputs and outputs."
            )
        sizes = np.linalg.norm(other.coefficients, axis=1)
        sizes = np.where(sizes > 0, sizes, max(float(np.max(sizes, initial=0.0)), 1e-300))
        return float(
            np.mean(np.linalg.norm(self.coefficients - other.coefficients, axis=1) / sizes)
        )

    def residual(self, output: int, *kept: tuple[int, ...]) -> float:
        """The norm of one output's coefficients without those of the kept powers (table2)."""
        places = np.zeros(len(self.powers), bool)
        for power in kept:
            self.coefficient(output, *power)
            places |= np.all(self.powers == np.array(power), axis=1)
        return float(np.linalg.norm(self.coefficients[output, ~places]))

    def expressions(self, names: list[str] | None = None, *, smallest: float = 0.0) -> list[Any]:
        """The outputs as sympy expressions, without coefficients of size `smallest` or less."""
        import sympy

        names = names or [f"x{i + 1}" for i in range(self.powers.shape[1])]
        if len(names) != self.powers.shape[1]:
            raise BadInput(f"Give {self.powers.shape[1]} names, not {len(names)}.")
        symbols = [sympy.Symbol(name) for name in names]
        return [
            sympy.Add(
                *(
                    sympy.Float(c)
                    * sympy.prod(s ** int(p) for s, p in zip(symbols, power, strict=True))
                    for c, power in zip(row, self.powers, strict=True)
                    if abs(c) > smallest
                )
            )
            for row in self.coefficients
        ]

    def __str__(self) -> str:
        """The outputs for people, four digits, without terms below a ten-thousandth."""
        largest = float(np.max(np.abs(self.coefficients), initial=0.0))
        return "\n".join(
            f"y{o + 1} = {expression.evalf(4)}"
            for o, expression in enumerate(self.expressions(smallest=1e-4 * largest))
        )


def polynomial(layer: Any) -> Polynomial:
    """The function that a gated RNN, a side-gated RNN or attention computes on a single token."""
    form = quadratic_form(layer)
    known = monomials(form.d_in)
    tables = form.reads.T @ form.kernels @ form.reads
    return Polynomial(known.powers, known.collect(tables))
