"""Networks rewritten so that their function stays as it is, and networks built from functions.

Each scramble takes a GatedRNN or a SideGatedRNN and a generator, and gives another network of the
same kind that computes the same function. Weights are float64 NumPy arrays.
"""

import numpy as np

import underhood as uh
from underhood.analysis.forms import norms
from underhood.analysis.forms.quadratic import QuadraticForm, quadratic_form
from underhood.common.linear_algebra import upper
from underhood.training.second_order.gates import eigen_gates


def weights(rnn):
    """The constructor's arguments, as copies."""
    gated = ("W_in_m", "W_in_x", "decay", "W_out_m", "W_out_x", "D")
    names = gated if isinstance(rnn, uh.GatedRNN) else (*gated[:3], "W_side", "D")
    return {name: np.array(getattr(rnn, name), float) for name in names}


def rebuilt(rnn, **changed):
    return type(rnn)(**(weights(rnn) | changed))


def differ(first, second):
    """Whether two networks of first kind have different weights."""
    return any(not np.array_equal(a, weights(second)[name]) for name, a in weights(first).items())


def relative_change(before, after):
    """The size of the difference of two networks over the size of the first."""
    return norms.relative_change(quadratic_form(before), quadratic_form(after))


def neuron_axes(rnn):
    """Which axis of each weight counts neurons; a side gate's output counts them too."""
    axes = {"W_in_m": 0, "W_in_x": 0, "decay": 0}
    if isinstance(rnn, uh.SideGatedRNN):
        return axes | {"W_side": 0, "D": 1}
    return axes | {"W_out_m": 1, "W_out_x": 1}


def gate_axes(rnn):
    if isinstance(rnn, uh.SideGatedRNN):
        return {}
    return {"W_out_m": 0, "W_out_x": 0, "D": 1}


def taken(rnn, axes, order):
    """Neurons or gate outputs in another order, some of them perhaps twice."""
    given = weights(rnn)
    return rebuilt(rnn, **{name: np.take(given[name], order, axis) for name, axis in axes.items()})


def with_more(rnn, axes, **more):
    """Further neurons or gate outputs, each weight's new rows (or columns) by name."""
    given = weights(rnn)
    return rebuilt(
        rnn,
        **{name: np.concatenate([given[name], more[name]], axis) for name, axis in axes.items()},
    )


def with_neurons(rnn, **more):
    return with_more(rnn, neuron_axes(rnn), **more)


def with_gates(rnn, **more):
    return with_more(rnn, gate_axes(rnn), **more)


def factors(rng, count):
    return rng.uniform(0.3, 3, count) * rng.choice([-1, 1], count)


def permuted(rnn, rng):
    rnn = taken(rnn, neuron_axes(rnn), rng.permutation(rnn.neurons))
    return taken(rnn, gate_axes(rnn), rng.permutation(rnn.gate_width))


def rescaled(rnn, rng):
    """Both rows of every gate, with the scale taken back where the product is read."""
    W = weights(rnn)
    a, b = factors(rng, rnn.neurons), factors(rng, rnn.neurons)
    p, q = factors(rng, rnn.gate_width), factors(rng, rnn.gate_width)
    new = {"W_in_m": W["W_in_m"] * a[:, None], "W_in_x": W["W_in_x"] * b[:, None]}
    if isinstance(rnn, uh.SideGatedRNN):
        return rebuilt(rnn, **new, W_side=W["W_side"] * p[:, None], D=W["D"] / (a * b * p))
    W_out_m, W_out_x = (W[name] / (a * b) for name in ("W_out_m", "W_out_x"))
    new |= {"W_out_m": W_out_m * p[:, None], "W_out_x": W_out_x * q[:, None]}
    return rebuilt(rnn, **new, D=W["D"] / (p * q))


def swapped_branches(rnn, rng):
    W = weights(rnn)
    pairs = [("W_in_m", "W_in_x", rnn.neurons)]
    if isinstance(rnn, uh.GatedRNN):
        pairs.append(("W_out_m", "W_out_x", rnn.gate_width))
    for m, x, count in pairs:
        swap = rng.integers(0, 2, count).astype(bool)[:, None]
        W[m], W[x] = np.where(swap, W[x], W[m]), np.where(swap, W[m], W[x])
    return rebuilt(rnn, **W)


def mixed_queries(rnn, rng):
    """A random invertible matrix on the neurons that pass on Q z · 1; a side gate has none."""
    if isinstance(rnn, uh.SideGatedRNN):
        return rnn
    W = weights(rnn)
    constant = np.eye(rnn.d_in + 1)[-1]
    passing = np.flatnonzero((W["decay"] == 0) & np.all(W["W_in_m"] == constant, axis=1))
    P = orthogonal(rng, len(passing)) * rng.uniform(0.3, 3, len(passing))
    P = P @ orthogonal(rng, len(passing))
    W["W_in_x"][passing] = P @ W["W_in_x"][passing]
    for name in ("W_out_m", "W_out_x"):
        W[name][:, passing] = W[name][:, passing] @ np.linalg.inv(P)
    return rebuilt(rnn, **W)


def orthogonal(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def duplicated(rnn, rng):
    """Some neurons twice, everything that reads them halved."""
    again = np.flatnonzero(rng.integers(0, 2, rnn.neurons))
    W = weights(rnn)
    for name, axis in neuron_axes(rnn).items():
        if axis == 1:
            W[name][:, again] /= 2
    halved = rebuilt(rnn, **W)
    return taken(halved, neuron_axes(rnn), np.concatenate([np.arange(rnn.neurons), again]))


def split(rnn, rng):
    """w_m of some neurons as a sum of two, each with a neuron of its own."""
    some = np.flatnonzero(rng.integers(0, 2, rnn.neurons))
    part = rng.normal(size=(len(some), weights(rnn)["W_in_m"].shape[1]))
    twice = taken(rnn, neuron_axes(rnn), np.concatenate([np.arange(rnn.neurons), some]))
    W_in_m = weights(twice)["W_in_m"]
    W_in_m[some] -= part
    W_in_m[rnn.neurons :] = part
    return rebuilt(twice, W_in_m=W_in_m)


def dead(rnn, rng):
    """Neurons that nobody reads, neurons that write zero, and gate outputs of both kinds."""

    def random(unit):
        given = weights(rnn)
        return {
            name: rng.uniform(size=2) if name == "decay" else rng.normal(size=shape)
            for name, axis in unit.items()
            for shape in [tuple(2 if i == axis else n for i, n in enumerate(given[name].shape))]
        }

    neurons = random(neuron_axes(rnn))
    unread = ("D",) if isinstance(rnn, uh.SideGatedRNN) else ("W_out_m", "W_out_x")
    for name in unread:
        neurons[name][:, 0] = 0
    neurons["W_in_x"][1] = 0
    rnn = with_neurons(rnn, **neurons)
    if isinstance(rnn, uh.SideGatedRNN):
        return rnn
    gates = random(gate_axes(rnn))
    gates["D"][:, 0] = 0
    gates["W_out_x"][1] = 0
    return with_gates(rnn, **gates)


def cancelling(rnn, rng):
    """Products of the current token that are zero together, and pairs of outputs that cancel.

    (a·z)(b·z)·(a·z)(b·z) = (a·z)(a·z)·(b·z)(b·z), and for a side gate (a·x)(b·x)·(a·x) =
    (a·x)(a·x)·(b·x).
    """
    out, n = rng.normal(size=(rnn.d_out, 1)), rnn.neurons
    width = weights(rnn)["W_in_m"].shape[1]
    a, b = rng.normal(size=(2, width))
    more = {"W_in_m": np.array([a, a, b]), "W_in_x": np.array([b, a, b]), "decay": np.zeros(3)}
    if isinstance(rnn, uh.SideGatedRNN):
        first = {name: rows[:2] for name, rows in more.items()}
        rnn = with_neurons(rnn, **first, W_side=np.array([a, b]), D=np.hstack([out, -out]))
        twins = {name: rng.normal(size=(1, width)) for name in ("W_in_m", "W_in_x", "W_side")}
        twins = {name: np.tile(row, (2, 1)) for name, row in twins.items()}
        return with_neurons(rnn, **twins, decay=np.ones(2), D=np.hstack([out, -out]))
    unread = np.zeros((rnn.gate_width, 3))
    rnn = with_neurons(rnn, **more, W_out_m=unread, W_out_x=unread)
    m, x = np.eye(n + 3)[[n, n + 1]], np.eye(n + 3)[[n, n + 2]]
    rnn = with_gates(rnn, W_out_m=m, W_out_x=x, D=np.hstack([out, -out]))
    m, x = (np.tile(rng.normal(size=(1, n + 3)), (2, 1)) for _ in range(2))
    return with_gates(rnn, W_out_m=m, W_out_x=x, D=np.hstack([out, -out]))


# Queries are mixed first, while they can still be told.
SCRAMBLES = (mixed_queries, split, duplicated, cancelling, dead)
SCRAMBLES += (rescaled, swapped_branches, permuted)


def scrambled(rnn, rng, which=SCRAMBLES):
    for scramble in which:
        rnn = scramble(rnn, rng)
    return rnn


def network(form: QuadraticForm) -> uh.GatedRNN:
    """A gated RNN with one neuron per decay and entry z_k z_l, and gates from eigenvectors."""
    rows, columns = upper(form.d_in + 1)
    decays = np.unique(form.decay)
    # mixing [decays × entries, neurons]: what every neuron reads from the sums of its decay.
    mixing = np.vstack([form.reads.T * (form.decay == decay) for decay in decays])
    D, m, x = eigen_gates(mixing @ form.kernels @ mixing.T, tolerance=1e-15)
    z = np.eye(form.d_in + 1)
    return uh.GatedRNN(
        W_in_m=np.tile(z[rows], (len(decays), 1)),
        W_in_x=np.tile(z[columns], (len(decays), 1)),
        decay=np.repeat(decays, len(rows)),
        W_out_m=m,
        W_out_x=x,
        D=D,
    )


def side_network(d_in, parts) -> uh.SideGatedRNN:
    """Σ table[o, e, c] A_e x_c with one neuron per decay, output, entry and input, no constants."""
    rows, columns = upper(d_in + 1)
    chosen = np.flatnonzero(columns < d_in)
    W_in_m, W_in_x, decay, W_side, D = [], [], [], [], []
    unit = np.eye(d_in)
    for value, table in parts:
        for o, e, c in np.ndindex(len(table), len(chosen), d_in):
            W_in_m.append(unit[rows[chosen[e]]])
            W_in_x.append(unit[columns[chosen[e]]])
            decay.append(value)
            W_side.append(unit[c])
            D.append(table[o, chosen[e], c] * np.eye(len(table))[o])
    arrays = (np.array(rows) for rows in (W_in_m, W_in_x, decay, W_side))
    names = ("W_in_m", "W_in_x", "decay", "W_side")
    return uh.SideGatedRNN(**dict(zip(names, arrays, strict=True)), D=np.array(D).T)
