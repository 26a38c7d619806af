"""Reduction of large networks that are tables: the same steps as in `reduction.py`, on tables.

    y_o(t) = Σ_λ Σ_ec T_λ[o, e, c] A_e(t) z_c(t)    (`tables.py`)

Kernels over all pairs of neurons have d times as many numbers as the tables, and a search for
products takes a time that grows as d⁷. Here the neurons are those that the network has, or products
u_a u_b where all products of a few linear forms are read. The gate outputs are those that the
network has, or some of them.
"""

import numpy as np
import scipy.linalg

from underhood.analysis.forms.norms import size
from underhood.analysis.forms.quadratic import EQUAL_DECAYS, input_reads
from underhood.analysis.forms.tables import TableForm, TablePart
from underhood.analysis.shrinking.neuron_bases import (
    WELL_SPREAD,
    of_size_one,
    spanning_neurons,
    spread,
)
from underhood.analysis.shrinking.products import Pair, spanning_rows
from underhood.common.linear_algebra import symmetric_products, symmetric_reads, thin, upper
from underhood.layers import GatedRNN
from underhood.training.second_order.gates import GateOutputs, stack_gates

# Tables are used where kernels over all pairs of neurons have more numbers than this.
LARGE_KERNELS = 300_000
# An orthonormal basis of a space whose numbers are known to this share.
SAME_SPACE = 1e-9


def reduce_tables(
    model: GatedRNN, form: TableForm, least: float, time: int, accuracy: float
) -> GatedRNN | None:
    """Return a gated RNN with the same tables; None if a moment of decay 0 is among them.

    least     parts of the function that are smaller than this are dropped
    accuracy  ranks ignore singular values below this share of the largest
    """
    decay, width = np.asarray(model.decay, float), model.d_in + 1
    apart = np.diff(np.append(0.0, form.decay))
    if np.any(apart <= EQUAL_DECAYS):
        return None
    linear = upper(width)[1] == model.d_in
    parts = [part for part in form.parts if size(form.keep(part.decay.__eq__), time) > least]
    reads = input_reads(model)
    now = (decay == 0) & ~np.any(reads[:, ~linear], axis=1)
    bases = [now_basis(model, now, parts, accuracy)]
    bases += [memory_basis(model, decay == part.decay, part, accuracy) for part in parts]
    inverses = [right_inverse(symmetric_products(*basis)) for basis in bases]
    kernels = [
        new_kernel(part, inverse, inverses[0][linear])
        for part, inverse in zip(parts, inverses[1:], strict=True)
    ]
    groups = [np.flatnonzero(now), *(np.flatnonzero(decay == part.decay) for part in parts)]
    # The gate outputs as they are, reading the part of each neuron that the new neurons hold.
    W_m, W_x = (
        np.hstack(
            [
                thin(np.asarray(W)[:, group]) @ (thin(reads[group]) @ inverse)
                for group, inverse in zip(groups, inverses, strict=True)
            ]
        )
        for W in (model.W_out_m, model.W_out_x)
    )
    widths = [len(basis[0]) for basis in bases]
    D, W_m, W_x = fewest_gates((np.asarray(model.D), W_m, W_x), parts, kernels, accuracy)
    W_in_m, W_in_x = (np.vstack(rows) for rows in zip(*bases, strict=True))
    decays = np.repeat([0.0, *(part.decay for part in parts)], widths)
    return GatedRNN(W_in_m=W_in_m, W_in_x=W_in_x, decay=decays, W_out_m=W_m, W_out_x=W_x, D=D)


def now_basis(model: GatedRNN, now: np.ndarray, parts: list[TablePart], accuracy: float) -> Pair:
    """Return neurons that hold what is read of the current token: z·w times 1."""
    width = model.d_in + 1
    if not parts:
        return np.zeros((0, width)), np.zeros((0, width))
    scaled = [part.table.reshape(-1, width) / np.linalg.norm(part.table) for part in parts]
    space = row_space(np.vstack(scaled), accuracy)
    entries = np.zeros((len(space), upper(width)[0].size))
    entries[:, upper(width)[1] == model.d_in] = space
    given = spanning_neurons(np.asarray(model.W_in_m)[now], np.asarray(model.W_in_x)[now], entries)
    if given is not None and spread(given) >= WELL_SPREAD:
        return given
    constant = np.zeros_like(space)
    constant[:, -1] = 1.0
    return of_size_one(space, constant)


def memory_basis(model: GatedRNN, group: np.ndarray, part: TablePart, accuracy: float) -> Pair:
    """Return neurons whose products span what is read of one moment."""
    entries = part.table.shape[1]
    space = row_space(part.table.swapaxes(1, 2).reshape(-1, entries), accuracy)
    W_m, W_x = (np.asarray(W)[group] for W in (model.W_in_m, model.W_in_x))
    given = spanning_neurons(W_m, W_x, space)
    if given is not None and spread(given) >= WELL_SPREAD:
        return given
    chosen = all_products(space, model.d_in + 1) or given
    if chosen is not None:
        return chosen
    # All that is written, as far as it is independent.
    reads = symmetric_products(W_m, W_x)
    rows = spanning_rows(reads, len(row_space(reads, 1e-10)))
    return of_size_one(*((W_m, W_x) if rows is None else (W_m[rows], W_x[rows])))


def all_products(space: np.ndarray, width: int) -> Pair | None:
    """Return products u_a u_b, a ≤ b, if they span the space: all products of some linear forms."""
    matrices = symmetric_reads(space, width)
    forms = row_space(matrices.reshape(-1, width), SAME_SPACE)
    first, second = upper(len(forms))
    return of_size_one(forms[first], forms[second]) if len(first) == len(space) else None


def new_kernel(part: TablePart, inverse: np.ndarray, inverse_now: np.ndarray) -> np.ndarray:
    """Return the kernel between new neurons of memory and of the current token [r, outputs, now].

    It and its transpose both count in hᵀKh.
    """
    outputs, entries, width = part.table.shape
    flat = inverse.T @ part.table.swapaxes(0, 1).reshape(entries, outputs * width)
    return np.asarray(flat.reshape(-1, outputs, width) @ inverse_now / 2)


def fewest_gates(
    gates: GateOutputs, parts: list[TablePart], kernels: list[np.ndarray], accuracy: float
) -> GateOutputs:
    """Return some of the gate outputs, if some give the kernels; otherwise all of them.

    gates    D, W_out_m and W_out_x over the new neurons, those of the current token first
    kernels  one for each part [r, outputs, now]
    """
    D, W_m, W_x = gates
    flat = [kernel.reshape(len(kernel), -1) for kernel in kernels]
    # As many products as the rank are needed.
    spaces = [row_space(kernel, accuracy) for kernel in flat]
    if sum(len(space) for space in spaces) >= D.shape[1]:
        return gates
    neurons, start = W_m.shape[1], W_m.shape[1] - sum(len(kernel) for kernel in kernels)
    x_now = ~np.any(W_x[:, start:], axis=1)[:, None]
    now, carrier = np.where(x_now, W_x, W_m)[:, :start], np.where(x_now, W_m, W_x)
    chosen: list[GateOutputs] = []
    for part, kernel, space in zip(parts, flat, spaces, strict=True):
        place = slice(start, start + len(kernel))
        some = np.flatnonzero(np.any(carrier[:, place], axis=1))
        products = np.einsum("oj,jc->joc", D[np.ix_(part.outputs, some)], now[some])
        rows = rows_inside(products.reshape(len(some), -1), space)
        if rows is None:
            return gates
        used = some[rows]
        m, x = np.zeros((2, len(used), neurons))
        basis = products[rows].reshape(len(used), -1)
        m[:, place], x[:, : now.shape[1]] = 2 * (kernel @ right_inverse(basis)).T, now[used]
        chosen.append((D[:, used], m, x))
        start = place.stop
    return stack_gates(chosen, len(D), neurons)


def rows_inside(rows: np.ndarray, space: np.ndarray) -> np.ndarray | None:
    """Choose rows that are a basis of a space; None if those inside of it do not span it."""
    coordinates = rows @ space.T
    sizes = np.linalg.norm(rows, axis=1)
    outside = np.linalg.norm(rows - coordinates @ space, axis=1)
    inside = np.flatnonzero((outside < SAME_SPACE * sizes) & (sizes > 0))
    if len(inside) < len(space):
        return None
    picked = spanning_rows(coordinates[inside], len(space))
    return None if picked is None else inside[picked]


def right_inverse(rows: np.ndarray) -> np.ndarray:
    """Return the pseudo-inverse of independent rows."""
    if not len(rows):
        return rows.T
    Q, R = np.linalg.qr(rows.T)
    return np.asarray(scipy.linalg.solve_triangular(R, Q.T).T)


def row_space(matrix: np.ndarray, accuracy: float) -> np.ndarray:
    """Return an orthonormal basis of the rows, without singular values below a share `accuracy`."""
    used = np.flatnonzero(np.any(matrix, axis=0))
    inner: np.ndarray = matrix[:, used]
    if len(inner) > len(used):
        inner = np.asarray(np.linalg.qr(inner, mode="r"))
    values = np.linalg.svd(inner, compute_uv=False)
    rank = int(np.sum(values > accuracy * np.max(values, initial=0.0)))
    if rank == len(used):
        # Every direction is read, so the entries themselves are a basis.
        right = np.eye(rank)
    elif rank == len(inner):
        right = np.linalg.qr(inner.T)[0].T
    else:
        right = np.linalg.svd(inner, full_matrices=False)[2][:rank]
    space = np.zeros((rank, matrix.shape[1]))
    space[:, used] = right
    return space
