"""A network as an exact polynomial: of decayed second moments, and of a single token.

    z = [x; 1]    S_λ(t) = Σ_{s≤t} λ^{t−s} z_s z_sᵀ    so that S_0 = z_t z_tᵀ is the current token
    y_o = Σ_{a≤b} ⟨C_ab[o], s_a ⊗ s_b⟩,    s = the entries of S on and above its diagonal,

one table of coefficients per pair of decays. The tables describe the network on all sequences.
docs/inside.md says why, what leaves them unchanged, and the one freedom that they have. After the
first token every neuron holds q_i·v(z), so an output is v(z)ᵀ(QᵀK_oQ)v(z), a quartic form in z.
Adding up equal products gives one coefficient per monomial of x of degree 4 or less.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np

from underhood.analysis.forms.monomials import monomials
from underhood.analysis.forms.quadratic import ExactLayer, decay_groups, products, quadratic_form
from underhood.analysis.forms.tables import TableForm, form_of
from underhood.common.errors import BadInput

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True)
class Polynomial:
    """`coefficients` [outputs, monomials]; row k of `powers` [monomials, d] is x^powers[k]."""

    powers: np.ndarray
    coefficients: np.ndarray

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        """Return the values on tokens [many, d]."""
        return np.prod(np.asarray(xs, float)[:, None] ** self.powers, axis=2) @ self.coefficients.T

    @property
    def degrees(self) -> np.ndarray:
        """Return the degree of each monomial."""
        return self.powers.sum(axis=1)

    def coefficient(self, output: int, *power: int) -> float:
        """Return the coefficient of x^power in one output."""
        return float(self.coefficients[output, self.place(power)])

    def place(self, power: tuple[int, ...]) -> int:
        """Return the row of `powers` that is `power`."""
        d = self.powers.shape[1]
        same = np.all(self.powers == power, axis=1) if len(power) == d else np.zeros(1, bool)
        if not np.any(same):
            raise BadInput(f"Give {d} powers that sum to 4 or less, not {power}.")
        return int(np.argmax(same))

    def distance(self, target: "Polynomial") -> float:
        """Return the paper's normalised distance |p − target| / |target|, averaged over outputs.

        An output that is zero in `target` is compared with the largest one.
        """
        shape, wanted = self.coefficients.shape, target.coefficients.shape
        if shape != wanted:
            need = "they need the same inputs and outputs"
            raise BadInput(f"The polynomials have shapes {shape} and {wanted}: {need}.")
        sizes = np.linalg.norm(target.coefficients, axis=1)
        sizes = np.where(sizes > 0, sizes, max(float(np.max(sizes, initial=0.0)), 1e-300))
        apart = np.linalg.norm(self.coefficients - target.coefficients, axis=1)
        return float(np.mean(apart / sizes))

    def residual(self, output: int, *kept: tuple[int, ...]) -> float:
        """Return the norm of one output's coefficients without those of the kept powers."""
        places = [self.place(power) for power in kept]
        return float(np.linalg.norm(np.delete(self.coefficients[output], places)))

    def expressions(
        self, names: list[str] | None = None, *, smallest: float = 0.0
    ) -> list["sympy.Expr"]:
        """Return the outputs as sympy expressions.

        names     of the inputs; x1, x2, … unless given
        smallest  terms with a coefficient of this size or less are left out
        """
        import sympy

        d = self.powers.shape[1]
        names = names or [f"x{i + 1}" for i in range(d)]
        if len(names) != d:
            raise BadInput(f"Give {d} names, not {len(names)}.")
        symbols = [sympy.Symbol(name) for name in names]
        terms = [
            sympy.prod(symbol ** int(p) for symbol, p in zip(symbols, power, strict=True))
            for power in self.powers
        ]
        kept = (np.flatnonzero(np.abs(row) > smallest) for row in self.coefficients)
        return [
            sympy.Add(*(sympy.Float(row[k]) * terms[k] for k in places))
            for row, places in zip(self.coefficients, kept, strict=True)
        ]

    def __str__(self) -> str:
        """Return the outputs with four digits, without terms below 1e-4 of the largest."""
        largest = float(np.max(np.abs(self.coefficients), initial=0.0))
        return "\n".join(
            f"y{o + 1} = {expression.evalf(4)}"
            for o, expression in enumerate(self.expressions(smallest=1e-4 * largest))
        )


def polynomial(layer: ExactLayer) -> Polynomial:
    """Return the function that the layer computes on a single token."""
    form = form_of(layer)
    known = monomials(form.d_in)
    if isinstance(form, TableForm):
        # After the first token the moments of all decays are v(z).
        tables = form.at(0.0, nearby=1.0)
    else:
        tables = form.reads.T @ form.kernels @ form.reads
    return Polynomial(known.powers, known.collect(tables))


@dataclass(frozen=True)
class MomentForm:
    """Coefficients [d_out, entries, entries] for pairs (a, b), a ≤ b, of places in `decays`."""

    d_in: int
    d_out: int
    decays: tuple[float, ...]
    terms: dict[tuple[int, int], np.ndarray]

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        """Return the outputs on one sequence [time, d_in], token by token."""
        written = products(xs)
        moments = np.zeros((len(self.decays), written.shape[1]))
        outputs = np.zeros((len(written), self.d_out))
        for t, now in enumerate(written):
            moments = np.array(self.decays)[:, None] * moments + now
            for (a, b), table in self.terms.items():
                outputs[t] += np.einsum("oij,i,j->o", table, moments[a], moments[b])
        return outputs


def moment_form(layer: ExactLayer) -> MomentForm:
    """Return the exact function of a gated RNN, a side-gated RNN or attention."""
    form = quadratic_form(layer)
    decays, groups = decay_groups(form.decay)
    terms = {
        (a, b): (1 if a == b else 2) * form.table(first, second)
        for (a, first), (b, second) in combinations_with_replacement(enumerate(groups), 2)
    }
    return MomentForm(form.d_in, form.d_out, decays, terms)
