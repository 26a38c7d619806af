"""A network rewritten so that its function stays as it is, unit by unit.

    blended   h' = P h among units that may be mixed, P orthogonal; what reads h reads Pᵀ h'
    scaled    h' = a h; what reads h reads h'/a
    swapped   (w·z)(u·z) = (u·z)(w·z)
    twins     h twice; what reads it divides its weight between the two
    dead      units with random weights that nothing reads
    permuted  h' = h in another order

Functions take and return a `Wiring`: the arrays of a network by name, with the role of each neuron.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from underhood.common.decay import nu_from_decay
from underhood.common.files import Json
from underhood.constructions import Role
from underhood.layers import Layer
from underhood.layers.files import put_together, take_apart
from underhood.planting.peers import Peers, peers_of

WiringArrays = dict[str, np.ndarray]
DEAD = Role("dead", "nothing reads it")
# What a dead unit was before: no unit of the built network.
NOWHERE = -1


@dataclass(frozen=True)
class Wiring:
    """A network's arrays, and its neurons.

    structure  how the arrays make a layer, as files have it
    roles      for each set of neurons by name, the role of each
    origins    for each set of neurons, which neuron of the built network each was; −1: none
    """

    arrays: WiringArrays
    structure: Json
    roles: dict[str, tuple[Role, ...]]
    origins: dict[str, np.ndarray]

    @property
    def peers(self) -> tuple[Peers, ...]:
        """The sets of peers, nearest to the input first; arrays that are not there are left out."""
        sets = peers_of(self.structure)
        return tuple(
            replace(each, rows=self.present(each.rows), columns=self.present(each.columns))
            for each in sets
        )

    def present(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names that have an array; a GRU may lack c_h."""
        return tuple(name for name in names if name in self.arrays)

    def layer(self) -> Layer:
        return put_together(self.structure, "", dict(self.arrays), 0)

    def changed(self, **changes: np.ndarray) -> "Wiring":
        return replace(self, arrays=self.arrays | changes)


def wiring_of(layer: Layer, roles: tuple[Role, ...]) -> Wiring:
    """Take a network apart; `roles` has one role per neuron, layer by layer."""
    arrays: WiringArrays = {}
    structure = take_apart(layer, "", arrays)
    arrays = {name: np.array(array, np.float64) for name, array in arrays.items()}
    split: dict[str, tuple[Role, ...]] = {}
    origins: dict[str, np.ndarray] = {}
    start = 0
    for each in peers_of(structure):
        if each.are_neurons:
            count = len(arrays[each.rows[0]])
            split[each.name] = roles[start : start + count]
            origins[each.name] = np.arange(count)
            start += count
    assert start == len(roles), "one role per neuron"
    return Wiring(arrays, structure, split, origins)


def orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    """Draw an orthogonal matrix."""
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def blend(wiring: Wiring, peers: Peers, rng: np.random.Generator) -> Wiring:
    """Mix the units whose rows `alike` are equal by a random orthogonal matrix."""
    if not peers.blended:
        return wiring
    arrays = {name: wiring.arrays[name].copy() for name in {*peers.blended, *peers.columns}}
    count = len(wiring.arrays[peers.rows[0]])
    shared = [wiring.arrays[name].reshape(count, -1) for name in peers.alike]
    together = np.hstack([*shared, np.zeros((count, 1))])
    where = np.unique(together, axis=0, return_inverse=True)[1].ravel()
    roles = list(wiring.roles.get(peers.name, ()))
    for number in range(where.max(initial=-1) + 1):
        group = np.flatnonzero(where == number)
        if len(group) < 2:
            continue
        P = orthogonal(rng, len(group))
        for name in peers.blended:
            arrays[name][group] = P @ arrays[name][group]
        for name in peers.columns:
            arrays[name][:, group] = arrays[name][:, group] @ P.T
        if roles:
            labels = ", ".join(roles[place].label for place in group)
            for place in group:
                roles[place] = Role(roles[place].kind, f"mix of {labels}")
    named = {peers.name: tuple(roles)} if roles else {}
    return replace(wiring.changed(**arrays), roles=wiring.roles | named)


def rescale_units(wiring: Wiring, peers: Peers, rng: np.random.Generator) -> Wiring:
    """Scale rows by random factors, or signs, and the columns by what takes them back."""
    names = {name for part in peers.scaled for name in part if name in wiring.arrays}
    arrays = {name: wiring.arrays[name].copy() for name in {*names, *peers.columns}}
    count = len(wiring.arrays[peers.rows[0]])
    for part in peers.scaled:
        factors = rng.choice([-1.0, 1.0], count)
        if not peers.signs:
            factors *= rng.uniform(0.5, 2, count)
        for name in wiring.present(part):
            arrays[name] *= factors.reshape(-1, *[1] * (arrays[name].ndim - 1))
        for name in peers.columns:
            arrays[name] /= factors
    return wiring.changed(**arrays)


def turn(wiring: Wiring, peers: Peers, rng: np.random.Generator) -> Wiring:
    """Multiply complex units by random phases, e^{iφ}, and what reads them by e^{−iφ}."""
    if not peers.phased:
        return wiring
    arrays = wiring.arrays
    (B_re, B_im), (C_re, C_im) = peers.blended, peers.columns
    phases = np.exp(2j * np.pi * rng.uniform(size=len(arrays[B_re])))
    B = phases[:, None] * (arrays[B_re] + 1j * arrays[B_im])
    C = (arrays[C_re] + 1j * arrays[C_im]) / phases
    return wiring.changed(**{B_re: B.real, B_im: B.imag, C_re: C.real, C_im: C.imag})


def swap(wiring: Wiring, peers: Peers, rng: np.random.Generator) -> Wiring:
    """Exchange the two rows of a product, unit by unit at random."""
    if not peers.swapped:
        return wiring
    first, second = (wiring.arrays[name] for name in peers.swapped)
    chosen = rng.integers(0, 2, len(first)).astype(bool)[:, None]
    new = np.where(chosen, second, first), np.where(chosen, first, second)
    return wiring.changed(**dict(zip(peers.swapped, new, strict=True)))


def add_twins(wiring: Wiring, peers: Peers, rng: np.random.Generator, count: int) -> Wiring:
    """Add a second unit with the same rows for `count` units; readers divide their weight."""
    total = len(wiring.arrays[peers.rows[0]])
    picked = rng.permutation(total)[:count]
    shares = rng.uniform(0.25, 0.75, len(picked))
    arrays = dict(wiring.arrays)
    for name in peers.rows:
        arrays[name] = np.concatenate([arrays[name], arrays[name][picked]])
    for name in peers.columns:
        twins = arrays[name][:, picked] * shares
        kept = arrays[name].copy()
        kept[:, picked] -= twins
        arrays[name] = np.hstack([kept, twins])
    return with_neurons(replace(wiring, arrays=arrays), peers, np.append(np.arange(total), picked))


def add_dead(wiring: Wiring, peers: Peers, rng: np.random.Generator, count: int) -> Wiring:
    """Add units with random weights that no living unit reads; they may read each other."""
    arrays, total = dict(wiring.arrays), len(wiring.arrays[peers.rows[0]])
    for name in peers.rows:
        arrays[name] = np.concatenate([arrays[name], ordinary(name, arrays[name], rng, count)])
    for name in peers.columns:
        new = np.zeros((len(arrays[name]), count))
        if name in peers.rows:
            new[total:] = rng.normal(size=(count, count)) / np.sqrt(total + count)
        arrays[name] = np.hstack([arrays[name], new])
    order = np.append(np.arange(total), np.full(count, NOWHERE))
    return with_neurons(replace(wiring, arrays=arrays), peers, order)


def ordinary(name: str, array: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw `count` further rows as training starts with: N(0, 1/fan-in), λ in (0, 1)."""
    symbol = name.split(".")[-1]
    shape = (count, *array.shape[1:])
    if symbol == "nu":
        return np.asarray(nu_from_decay(rng.uniform(0.1, 0.9, shape), about="a dead neuron"))
    if symbol == "theta_log":
        return np.log(rng.uniform(0.1, np.pi, shape))
    if symbol == "gamma_log":
        return np.zeros(shape)
    return rng.normal(size=shape) / np.sqrt(max(array.shape[1:], default=4))


def permute(wiring: Wiring, peers: Peers, rng: np.random.Generator) -> Wiring:
    """Put the units into a random order."""
    order = rng.permutation(len(wiring.arrays[peers.rows[0]]))
    arrays = dict(wiring.arrays)
    for name in peers.rows:
        arrays[name] = arrays[name][order]
    for name in peers.columns:
        arrays[name] = arrays[name][:, order]
    return with_neurons(replace(wiring, arrays=arrays), peers, order)


def with_neurons(wiring: Wiring, peers: Peers, order: np.ndarray) -> Wiring:
    """Return the roles and origins of neurons in another order; NOWHERE stands for a dead one."""
    if not peers.are_neurons:
        return wiring
    roles, origins = wiring.roles[peers.name], wiring.origins[peers.name]
    named = tuple(DEAD if place == NOWHERE else roles[place] for place in order)
    before = np.array([NOWHERE if place == NOWHERE else origins[place] for place in order], int)
    return replace(
        wiring,
        roles=wiring.roles | {peers.name: named},
        origins=wiring.origins | {peers.name: before},
    )


def scramble(wiring: Wiring, rng: np.random.Generator, *, twins: int, dead: int) -> Wiring:
    """Apply all symmetries to all units.

    twins  units of each set that get a second one beside them
    dead   units that are added to each set, with random weights
    """
    for peers in wiring.peers:
        for change in (blend, rescale_units, turn, swap):
            wiring = change(wiring, peers, rng)
        wiring = add_twins(wiring, peers, rng, twins)
    for peers in wiring.peers:
        wiring = add_dead(wiring, peers, rng, dead)
    return wiring


def permute_all(wiring: Wiring, rng: np.random.Generator) -> Wiring:
    for peers in wiring.peers:
        wiring = permute(wiring, peers, rng)
    return wiring
