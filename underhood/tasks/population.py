"""The population loss of gated RNNs with decays 0 and 1, as a small least-squares problem (ours).

    u = [m; v]    v(z) = the products z_k z_l, k ≤ l, of the current token z = [x; 1]
                  m = Σ v(z_s) over all tokens up to the current one

A neuron with λ = 1 holds q·m and one with λ = 0 holds q·v. So a network with such neurons has
outputs y_o = uᵀB_o u = b_o·φ, where φ is the vector of the products u_a u_b, a ≤ b. The population
loss is ½·mean over outputs of E(b_o·φ − target_o)², with E also the mean over the tokens that
count. Let R be the coefficients of φ in an orthonormal basis (`expansion.py`), and τ_o those of the
target. Then the loss is ½·mean_o |R b_o − τ_o|², a sum of squares without sampling error.

R has many rows. With R = USVᵀ the loss is

    ½·mean_o |rows b_o − targets_o|² + floor,    rows = SVᵀ,    targets_o = Uᵀτ_o,

and floor is ½·mean_o of the squared part of τ_o outside the range of R. Products that change sign
differently when a coordinate of z is mirrored are orthogonal, so R falls into blocks.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import block_diag

from underhood.common.errors import BadInput
from underhood.tasks.expansion import (
    Terms,
    TokenLaw,
    coefficient_rows,
    in_orthonormal,
    joined,
    product_terms,
    target_terms,
)
from underhood.tasks.regression import InContextRegression
from underhood.tasks.task import Task
from underhood.tasks.teacher_student import TeacherStudent

# E[x^p], p = 0 … 8, of N(0, 1) and of the uniform distribution on (−√3, √3).
NORMAL_MOMENTS = np.array([1.0, 0, 1, 0, 3, 0, 15, 0, 105])
UNIFORM_MOMENTS = np.array([1.0, 0, 1, 0, 9 / 5, 0, 27 / 7, 0, 81 / 9])
# Products and time grow with the fourth power of the inputs and faster.
MOST_INPUTS = 8
# Singular values of R below this, for products of size 1, are rounding: 1e-15 or less. The others
# are above 1e-5, also for 1000 tokens.
LEAST_SINGULAR = 1e-11


@dataclass(frozen=True)
class ParityBlock:
    """Products that change sign together.

    columns        [columns] which products, in the order of np.triu_indices
    first, second  [columns] their factors u_a and u_b, a ≤ b
    rows           [r, columns]
    """

    columns: np.ndarray
    first: np.ndarray
    second: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class Population:
    """The loss of outputs b_o·φ is ½·mean_o |rows b_o − targets_o|² + floor.

    d_in     inputs of a token; v has entries = (d_in + 1)(d_in + 2)/2, u has 2·entries
    blocks   the rows, in order, without the columns that are zero
    targets  [r, d_out]
    floor    the loss that no coefficients can go below
    """

    d_in: int
    blocks: tuple[ParityBlock, ...]
    targets: np.ndarray
    floor: float

    @property
    def entries(self) -> int:
        return (self.d_in + 1) * (self.d_in + 2) // 2

    @cached_property
    def rows(self) -> np.ndarray:
        """[r, products]: rowsᵀrows = E[φφᵀ], products in the order of np.triu_indices."""
        columns = np.concatenate([block.columns for block in self.blocks])
        dense = np.zeros((len(self.targets), self.entries * (2 * self.entries + 1)))
        dense[:, columns] = block_diag(*(block.rows for block in self.blocks))
        return dense

    def loss(self, coefficients: np.ndarray) -> float:
        """Return the loss of b [products, d_out]; a matrix B has b = B_aa and B_ab + B_ba."""
        parts = [block.rows @ coefficients[block.columns] for block in self.blocks]
        return self.loss_at(np.concatenate(parts))

    def loss_at(self, outputs: np.ndarray) -> float:
        """Return the loss of outputs [r, d_out], combinations of the columns of `products`."""
        # Other shapes would broadcast, and a number would come out all the same.
        if outputs.shape != self.targets.shape:
            r, d_out = self.targets.shape
            raise BadInput(
                f"The outputs have shape {outputs.shape}; give [{r}, {d_out}], "
                "a column per output of the task."
            )
        return float(np.sum((outputs - self.targets) ** 2) / (2 * outputs.shape[1])) + self.floor

    def products(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the columns [r, k] of (first·u)(second·u), for first and second [k, 2·entries]."""
        left, right = np.ascontiguousarray(first.T), np.ascontiguousarray(second.T)
        columns = [
            block.rows @ pair_coefficients(left, right, block.first, block.second)
            for block in self.blocks
        ]
        return np.concatenate(columns)

    def features(self, reads: np.ndarray, decays: np.ndarray) -> np.ndarray:
        """Return the columns [r, n(n+1)/2] of h_i h_j, i ≤ j, in the order of np.triu_indices.

        The output hᵀKh has coefficients K_ii and K_ij + K_ji.

        reads   [n, entries], h_i reads q_i·v(z)
        decays  [n], each 0 or 1
        """
        states = self.state_reads(reads, decays)
        first, second = np.triu_indices(len(states))
        return self.products(states[first], states[second])

    def state_reads(self, reads: np.ndarray, decays: np.ndarray) -> np.ndarray:
        """Return U [n, 2·entries] with h_i = U_i·u."""
        if reads.shape != (len(decays), self.entries):
            raise BadInput(
                f"The reads have shape {reads.shape}; give [{len(decays)}, {self.entries}], "
                f"a row per decay and a column per product of {self.d_in} inputs and 1."
            )
        refuse_other_decays(decays, "network")
        return np.hstack([reads * (decays == 1)[:, None], reads * (decays == 0)[:, None]])


def pair_coefficients(
    left: np.ndarray, right: np.ndarray, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Return coefficients [pairs, k] of (left·u)(right·u) at u_a u_b, for left, right [u, k]."""
    both = left[first] * right[second]
    both += left[second] * right[first]
    both[first == second] /= 2
    return both


def refuse_other_decays(decays: np.ndarray, whose: str) -> None:
    others = decays[(decays != 0) & (decays != 1)]
    if len(others):
        raise BadInput(
            f"The {whose} has a decay of {others[0]:.6g}; the exact population loss needs "
            "decays that are 0 or 1."
        )


def population(task: Task) -> Population:
    """Return the exact loss of all networks with decays 0 and 1 on a task."""
    if not isinstance(task, TeacherStudent | InContextRegression):
        kind = type(task).__name__
        raise BadInput(
            f"No exact population loss is known for {kind}; "
            "give a TeacherStudent or an InContextRegression."
        )
    if task.d_in > MOST_INPUTS:
        raise BadInput(
            f"The task has {task.d_in} inputs; the exact population loss is for at most "
            f"{MOST_INPUTS}."
        )
    return imitation_loss(task) if isinstance(task, TeacherStudent) else regression_loss(task)


def imitation_loss(task: TeacherStudent) -> Population:
    attention, d = task.one_teacher(), task.d_in
    refuse_other_decays(attention.decays, "teacher")
    law = TokenLaw(d, 0, NORMAL_MOMENTS, NORMAL_MOMENTS, np.arange(task.length))
    students = whitened(law, product_terms(law), 0)
    # y_o = Σ_c h_oc z_c, where the neuron h_oc reads (V_o·z)(M_c·z), M_c column c of KᵀQ.
    V, K, Q = attention.augmented()
    rows, columns = np.triu_indices(d + 1)
    reads_now = np.eye(2 * len(rows))[len(rows) :][columns == d]
    targets = []
    for value, decay in zip(V, attention.decays, strict=True):
        values = np.repeat(value[:, None], d + 1, axis=1)
        reads = pair_coefficients(values, K.T @ Q, rows, columns).T
        states = students.state_reads(reads, np.full(d + 1, decay))
        targets.append(students.products(states, reads_now).sum(axis=1))
    # The teacher is such a network itself, so the loss can be zero.
    return replace(students, targets=np.stack(targets, axis=1))


def regression_loss(task: InContextRegression) -> Population:
    d_x, d_y = task.d_x, task.d_y
    scale = np.sqrt(task.variance) ** np.arange(len(NORMAL_MOMENTS))
    law = TokenLaw(d_x, d_y, UNIFORM_MOMENTS, NORMAL_MOMENTS * scale, np.array([task.pairs]))
    return whitened(law, joined([product_terms(law), target_terms(law)]), d_y)


def whitened(law: TokenLaw, terms: Terms, d_out: int) -> Population:
    """Return rows and targets; the last `d_out` columns of the terms are targets."""
    d_in = law.d_x + law.d_y
    # Bit k of a parity: the sign changes if entry k of z is mirrored.
    bits = np.append(1 << np.arange(d_in), 0)
    factors = np.triu_indices(d_in + 1)
    of_entry = np.tile(bits[factors[0]] ^ bits[factors[1]], 2)
    first, second = np.triu_indices(len(of_entry))
    parity = np.append(of_entry[first] ^ of_entry[second], bits[law.d_x : law.d_x + d_out])
    terms = in_orthonormal(terms, law)
    of_term = parity[terms.column]
    blocks, targets, outside = [], [], 0.0
    for value in np.unique(of_term):
        chosen = terms.chosen(of_term == value)
        columns = np.unique(chosen.column)
        R = coefficient_rows(chosen, law, columns)
        is_target = columns >= len(first)
        wanted = np.zeros((len(R), d_out))
        wanted[:, columns[is_target] - len(first)] = R[:, is_target]
        R, columns = R[:, ~is_target], columns[~is_target]
        sizes = np.linalg.norm(R, axis=0)
        # The triangle has the inner products of the columns, and few rows.
        triangle = np.linalg.qr(np.hstack([R / sizes, wanted]), mode="r")
        left, right = np.split(triangle, [len(columns)], axis=1)
        U, S, Vt = np.linalg.svd(left, full_matrices=False)
        kept = S / S[0] > LEAST_SINGULAR
        targets.append(U[:, kept].T @ right)
        outside += float(np.sum((right - U[:, kept] @ targets[-1]) ** 2))
        rows = S[kept, None] * Vt[kept] * sizes
        blocks.append(ParityBlock(columns, first[columns], second[columns], rows))
    floor = outside / (2 * max(d_out, 1))
    return Population(d_in, tuple(blocks), np.concatenate(targets), floor)
