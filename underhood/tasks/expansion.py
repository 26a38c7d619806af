"""Products of sums over tokens as coefficients of orthonormal polynomials (ours).

    z = [x; Wx; 1]    v(z) = the products z_k z_l, k ≤ l    p = Σ v(z_s) over n earlier tokens
    m = p + v(z)      u = [m; v(z)], z the current token    φ = the products u_a u_b, a ≤ b

The entries of x and of W [d_y, d_x] are independent, with even distributions. The current token has
y = 0 in place of Wx. With d_y = 0 tokens are z = [x; 1].

φ is a polynomial in all x_s and W. Every variable has orthonormal polynomials ℓ_0, ℓ_1, … If H is
the matrix of its moments E[x^(p+q)] and H = LLᵀ is the Cholesky factorisation, then
x^p = Σ_r L_pr ℓ_r(x). This turns every monomial into products of polynomials ℓ_r. Let f and g be
such products in one token, both with mean zero. The sums over different earlier tokens

    1    Σ_s f(x_s)    Σ_{s≠s'} f(x_s) g(x_s')

are orthogonal, also after multiplication by ℓ_r of the current token and of W. Their mean squares
are (n)_0, (n)_1 and (n)_2, or 2(n)_2 if f = g, where (n)_0 = 1, (n)_1 = n and (n)_2 = n(n − 1).
A sum over k different earlier tokens of a function that depends on only j of them is (n)_k/(n)_j
times such a sum. So its coefficient in the orthonormal basis is (n)_k/√(n)_j, times √2 if f = g.

The coefficients of φ are a matrix R with RᵀR = E[φφᵀ]. If several n count, their R stand below each
other. For a given j they depend on n through (n)_0, (n)_1 and (n)_2 divided by √(n)_j. The QR
factorisation of these three vectors leaves three rows, whatever the number of n.
"""

from dataclasses import dataclass

import numpy as np

# An entry of φ has at most four factors of each variable.
MOST_POWER = 4


@dataclass(frozen=True)
class TokenLaw:
    """The distribution of sequences.

    x_moments  E[x^p] of an entry of x, p = 0 … 8
    W_moments  the same of an entry of W
    earlier    the numbers n of earlier tokens, equally likely
    """

    d_x: int
    d_y: int
    x_moments: np.ndarray
    W_moments: np.ndarray
    earlier: np.ndarray

    @property
    def z_powers(self) -> tuple[np.ndarray, np.ndarray]:
        """For every monomial in z, which entry of z it belongs to, and its powers of (x, W)."""
        x, W = np.eye(self.d_x, dtype=int), np.eye(self.d_y * self.d_x, dtype=int)
        powers = np.zeros((self.d_x + len(W) + 1, self.d_x + len(W)), int)
        powers[: self.d_x, : self.d_x] = x
        # y_i = Σ_j W_ij x_j
        powers[self.d_x : -1] = np.hstack([np.tile(x, (self.d_y, 1)), W])
        monomials = np.append(np.ones(self.d_x, int), np.full(self.d_y, self.d_x))
        return np.repeat(np.arange(self.d_x + self.d_y + 1), np.append(monomials, 1)), powers


@dataclass(frozen=True)
class Terms:
    """Monomials; the sum of those with the same `column` is what the column stands for.

    column        [many]
    tokens        [many] how many different earlier tokens the monomial is summed over: 0, 1 or 2
    powers        [many, variables] of x_s, of x_s', of the current x, and of W
    coefficients  [many]
    """

    column: np.ndarray
    tokens: np.ndarray
    powers: np.ndarray
    coefficients: np.ndarray

    def chosen(self, which: np.ndarray) -> "Terms":
        return Terms(
            self.column[which], self.tokens[which], self.powers[which], self.coefficients[which]
        )


def place_of_pair(first: np.ndarray, second: np.ndarray, size: int) -> np.ndarray:
    """Return the place of (a, b), a ≤ b, in the order of np.triu_indices(size)."""
    return first * (2 * size - first - 1) // 2 + second


def product_terms(law: TokenLaw) -> Terms:
    """Return the monomials of φ; the columns are the pairs a ≤ b, ordered as np.triu_indices."""
    z_entry, z_powers = law.z_powers
    size = law.d_x + law.d_y + 1
    # Both orders of two monomials of the same entry are there, as its square wants.
    first, second = np.nonzero(z_entry[:, None] <= z_entry)
    v_entry = place_of_pair(z_entry[first], z_entry[second], size)
    v_powers = z_powers[first] + z_powers[second]

    entries, d_x = size * (size + 1) // 2, law.d_x
    without_y = ~np.any(v_powers[:, d_x:], axis=1)
    now = v_powers[without_y]
    u_entry = np.concatenate([v_entry, v_entry[without_y], entries + v_entry[without_y]])
    is_earlier = np.arange(len(u_entry)) < len(v_entry)
    u_powers = np.zeros((len(u_entry), 3 * d_x + law.d_y * d_x), int)
    u_powers[: len(v_entry), :d_x] = v_powers[:, :d_x]
    u_powers[: len(v_entry), 3 * d_x :] = v_powers[:, d_x:]
    u_powers[len(v_entry) :, 2 * d_x : 3 * d_x] = np.tile(now[:, :d_x], (2, 1))

    first, second = np.nonzero(u_entry[:, None] <= u_entry)
    column = place_of_pair(u_entry[first], u_entry[second], 2 * entries)
    tokens = (is_earlier[first] | is_earlier[second]).astype(int)
    # Two sums over earlier tokens: the tokens are the same one, or two different ones, s and s'.
    both = is_earlier[first] & is_earlier[second]
    moved = u_powers.copy()
    moved[:, d_x : 2 * d_x], moved[:, :d_x] = u_powers[:, :d_x], 0
    powers = [u_powers[first] + u_powers[second], u_powers[first[both]] + moved[second[both]]]
    column, tokens = np.append(column, column[both]), np.append(tokens, 2 * tokens[both])
    return Terms(column, tokens, np.concatenate(powers), np.ones(len(column)))


def target_terms(law: TokenLaw) -> Terms:
    """Return the monomials of Wx, x the current token; the columns follow those of φ."""
    d_x, many = law.d_x, law.d_y * law.d_x
    output, j = np.divmod(np.arange(many), d_x)
    powers = np.zeros((many, 3 * d_x + many), int)
    powers[np.arange(many), 2 * d_x + j] = 1
    powers[:, 3 * d_x :] = np.eye(many)
    size = law.d_x + law.d_y + 1
    # u has size(size + 1) entries.
    products = size * (size + 1) * (size * (size + 1) + 1) // 2
    return Terms(products + output, np.zeros(many, int), powers, np.ones(many))


def in_orthonormal(terms: Terms, law: TokenLaw) -> Terms:
    """Return the same columns; `powers` are now the degrees of orthonormal polynomials."""
    hankel = np.add.outer(np.arange(MOST_POWER + 1), np.arange(MOST_POWER + 1))
    x_change, W_change = (
        np.linalg.cholesky(moments[hankel]) for moments in (law.x_moments, law.W_moments)
    )
    for variable in range(terms.powers.shape[1]):
        change = x_change if variable < 3 * law.d_x else W_change
        parts = []
        # The distributions are even, so degrees fall by two.
        for fall in range(0, MOST_POWER + 1, 2):
            part = terms.chosen(terms.powers[:, variable] >= fall)
            power = part.powers[:, variable].copy()
            part.powers[:, variable] -= fall
            values = part.coefficients * change[power, power - fall]
            parts.append(Terms(part.column, part.tokens, part.powers, values))
        terms = joined(parts)
    return terms


def joined(parts: list[Terms]) -> Terms:
    names = ("column", "tokens", "powers", "coefficients")
    return Terms(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def coefficient_rows(terms: Terms, law: TokenLaw, columns: np.ndarray) -> np.ndarray:
    """Return coefficients [functions, columns] in the orthonormal basis; all columns are given.

    terms    of `in_orthonormal`, of these columns alone
    columns  sorted numbers
    """
    d_x = law.d_x
    code = (MOST_POWER + 1) ** np.arange(d_x)
    s, s_prime = terms.powers[:, :d_x] @ code, terms.powers[:, d_x : 2 * d_x] @ code
    # Which of the two earlier tokens is called s makes no difference.
    names = np.column_stack([np.maximum(s, s_prime), np.minimum(s, s_prime)])
    depends = np.sum(names > 0, axis=1)
    values = np.where((depends == 2) & (s == s_prime), np.sqrt(2), 1) * terms.coefficients
    keys = np.column_stack([names, terms.powers[:, 2 * d_x :]])
    _, function = np.unique(keys, axis=0, return_inverse=True)
    function = function.ravel()

    by_tokens = np.zeros((3, function.max() + 1, len(columns)))
    place = (terms.tokens, function, np.searchsorted(columns, terms.column))
    np.add.at(by_tokens, place, values)
    n = law.earlier.astype(float)
    falling = np.stack([np.ones_like(n), n, n * (n - 1)], axis=1)
    rows = []
    for j in range(3):
        # Where there are fewer earlier tokens than a function depends on, it is not there.
        in_time = falling[falling[:, j] > 0] / np.sqrt(falling[falling[:, j] > 0, j, None])
        triangle = np.linalg.qr(in_time / np.sqrt(len(n)), mode="r")
        functions = by_tokens[:, np.unique(function[depends == j])]
        rows.append(np.tensordot(triangle, functions, axes=1).reshape(-1, len(columns)))
    return np.concatenate(rows)
