"""One planted network: a random attention, compiled into a layer and scrambled.

The attention is y_t = Σ_h W_V^h (Σ_s λ^{t−s} x_s x_sᵀ) M^h x_t. It is compiled in other coordinates
of the input, z = R x with R orthogonal, and R is then multiplied into the weights that read x. Then
come the symmetries of the layer (`scrambling.py`). The function stays the same up to rounding; for
layers with sigmoids, up to the error of the construction.
"""

from dataclasses import asdict, dataclass, replace

import numpy as np

from underhood.bridges.packing import padded
from underhood.common.errors import BadInput, check_name, refuse
from underhood.common.files import Json
from underhood.common.numbers import number_problems, whole_problems
from underhood.constructions import Construction, Role, compile
from underhood.constructions.sources.reference import reference
from underhood.layers import GRU, LSTM, Affine, Layer, LinearAttention, MultiHead, Stack
from underhood.planting.decoys import (
    DECOYS,
    NO_DECOYS,
    run_network,
    with_dead_read,
    with_entries_shuffled,
)
from underhood.planting.peers import inputs_of
from underhood.planting.scrambling import (
    DEAD,
    Wiring,
    orthogonal,
    permute_all,
    scramble,
    wiring_of,
)

# target → (what `compile` calls it, its options, the kind of state dict or None for our own files).
PLANT_TARGETS: dict[str, tuple[str, dict[str, str], str | None]] = {
    "torch.LSTM": ("lstm", {}, "torch.LSTM"),
    "torch.GRU": ("gru", {"reset": "after"}, "torch.GRU"),
    "gated_rnn": ("gated_rnn", {}, None),
    "side_gated_rnn": ("side_gated_rnn", {}, None),
    "lru": ("lru", {}, None),
    "lru_in_out": ("lru_in_out", {}, None),
}
# The largest error of a planted network, relative to the largest output; `compile` promises it too.
MOST_ERROR = 1e-6
# Random tokens on which a network is compared with its attention.
CHECKED_SEQUENCES, CHECKED_LENGTH = 8, 32


@dataclass(frozen=True)
class Planting:
    """What to plant.

    target  one of PLANT_TARGETS
    d       numbers per token
    rank    of W_V and of M in each head; None: d
    heads   heads of the attention
    decay   λ of the memory; 1 forgets nothing
    twins   units of each set that get a second one beside them
    dead    units with random weights that are added to each set
    seed    of all random numbers, with the number of the network
    """

    target: str
    d: int = 3
    rank: int | None = None
    heads: int = 1
    decay: float = 1.0
    twins: int = 2
    dead: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        check_name("target", self.target, PLANT_TARGETS)
        problems = whole_problems(most=8, d=self.d) + whole_problems(most=4, heads=self.heads)
        problems += whole_problems(least=0, most=64, twins=self.twins, dead=self.dead)
        problems += whole_problems(least=0, most=2**32 - 1, seed=self.seed)
        problems += number_problems(most=1, above=True, decay=self.decay)
        if self.rank is not None and not problems:
            problems += whole_problems(most=self.d, rank=self.rank)
        refuse(problems, about="plant")


@dataclass(frozen=True)
class Planted:
    """A planted network, and all that is known about it.

    layer    the network
    wiring   its neurons: the role of each, and which neuron of the built network it was
    teacher  the attention inside; None if it is shuffled
    decoy    None, "added" or "shuffled"
    error    largest difference from the teacher, relative to its largest output; None for decoys
    """

    planting: Planting
    number: int
    layer: Layer
    wiring: Wiring
    teacher: MultiHead | None
    built: Construction
    decoy: str | None
    error: float | None

    @property
    def roles(self) -> tuple[Role, ...]:
        """The role of every neuron, layer by layer."""
        return tuple(role for roles in self.wiring.roles.values() for role in roles)

    def key(self) -> Json:
        """Return what a method should find, as JSON."""
        heads = [] if self.teacher is None else head_matrices(self.teacher)
        origins = [(place, was) for place, was in enumerate(self.wiring.origins.values())]
        before = [(layer, int(number)) for layer, numbers in origins for number in numbers]
        # Entries that were shuffled leave no neuron with a role.
        roles = [] if self.decoy == "shuffled" else list(zip(self.roles, before, strict=True))
        return {
            "number": self.number,
            "verdict": "attention" if self.decoy is None else "not attention",
            "decoy": self.decoy,
            "heads": [{"W_V": V.tolist(), "M": M.tolist()} for V, M in heads],
            "rank": [[int(np.linalg.matrix_rank(W)) for W in head] for head in heads],
            "roles": [
                {"layer": layer, "kind": role.kind, "label": role.label, "was": was}
                for role, (layer, was) in roles
            ],
            "error": self.error,
            "order": self.built.order,
            "epsilon": self.built.epsilon,
            "planting": asdict(self.planting),
        }


def head_matrices(teacher: MultiHead) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return W_V (multiplied by its part of W_O) and M = W_KᵀW_Q of each head."""
    W_O = np.eye(teacher.d_heads) if teacher.W_O is None else np.asarray(teacher.W_O)
    parts = np.split(W_O, np.cumsum([head.d_out for head in teacher.heads])[:-1], axis=1)
    return [
        (part @ np.asarray(head.W_V), np.asarray(head.W_K).T @ np.asarray(head.W_Q))
        for part, head in zip(parts, teacher.heads, strict=True)
    ]


def draw_teacher(planting: Planting, rng: np.random.Generator) -> MultiHead:
    """Draw heads whose W_V and M have the rank asked for; their outputs are added."""
    d, rank = planting.d, planting.rank or planting.d
    heads = []
    for _ in range(planting.heads):
        W_V = rng.normal(size=(d, rank)) @ rng.normal(size=(rank, d)) / np.sqrt(rank * d)
        W_K, W_Q = rng.normal(size=(2, rank, d)) / np.sqrt(d)
        heads.append(LinearAttention(W_V, W_K, W_Q, decay=np.full(d, planting.decay)))
    return MultiHead(heads, np.hstack([np.eye(d)] * planting.heads))


def in_coordinates(teacher: MultiHead, R: np.ndarray) -> MultiHead:
    """Return the attention over z = R x that computes the same."""
    heads = [
        LinearAttention(head.W_V @ R.T, head.W_K @ R.T, head.W_Q @ R.T, decay=head.decays)
        for head in teacher.heads
    ]
    return MultiHead(heads, teacher.W_O)


def plant_network(planting: Planting, number: int = 0, decoy: str | None = None) -> Planted:
    """Plant one network; the same planting, number and decoy always give the same one.

    number  which of the networks with this planting
    decoy   None, "added" or "shuffled"
    """
    if decoy is not None:
        check_name("decoy", decoy, DECOYS)
        if planting.target in NO_DECOYS:
            raise BadInput(f"plant: {NO_DECOYS[planting.target]}; use no decoys.")
        if decoy == "added" and not planting.dead:
            raise BadInput("plant: a decoy of the kind added reads the dead units; give dead=4.")
    rng = np.random.default_rng([planting.seed, number])
    teacher, R = draw_teacher(planting, rng), orthogonal(rng, planting.d)
    target, options, kind = PLANT_TARGETS[planting.target]
    built = compile(in_coordinates(teacher, R), target, **options)  # type: ignore[arg-type]
    layer, roles = (built.layer, built.roles) if kind is None else equally_wide(built)
    wiring = enter_coordinates(wiring_of(layer, roles), R, rng)
    wiring = scramble(wiring, rng, twins=planting.twins, dead=planting.dead)
    xs = rng.normal(size=(CHECKED_SEQUENCES, CHECKED_LENGTH, planting.d))
    expected = reference(teacher, xs)
    if decoy == "added":
        wiring = with_dead_read(wiring, planting.dead, rng, xs, expected)
    elif decoy == "shuffled":
        wiring = with_entries_shuffled(wiring, rng, xs, expected)
    wiring = permute_all(wiring, rng)
    layer = wiring.layer()
    error = None
    if decoy is None:
        error = float(np.max(np.abs(run_network(layer, xs) - expected)) / np.max(np.abs(expected)))
        if not error <= MOST_ERROR:
            raise BadInput(
                f"plant: network {number} differs from its attention by {error:.1e}, more than "
                f"{MOST_ERROR:g}; use a smaller d, fewer heads or another seed."
            )
    shown = None if decoy == "shuffled" else teacher
    return Planted(planting, number, layer, wiring, shown, built, decoy, error)


def equally_wide(built: Construction) -> tuple[Layer, tuple[Role, ...]]:
    """Pad the layers of a stack to one width, as torch has it; the new neurons are dead."""
    stack = built.layer
    assert isinstance(stack, Stack) and stack.readout is not None
    cells = [layer for layer in stack.layers if isinstance(layer, LSTM | GRU)]
    width = max(cell.neurons for cell in cells)
    layers, roles, start = [], [], 0
    for number, cell in enumerate(cells):
        layers.append(padded(cell, width, width if number else cell.d_in))
        roles += [*built.roles[start : start + cell.neurons], *[DEAD] * (width - cell.neurons)]
        start += cell.neurons
    W = np.asarray(stack.readout.W)
    readout = Affine(np.pad(W, [(0, 0), (0, width - W.shape[1])]), stack.readout.b)
    return Stack(stack.embed, layers, readout, needs_x64=stack.needs_x64), tuple(roles)


def enter_coordinates(wiring: Wiring, R: np.ndarray, rng: np.random.Generator) -> Wiring:
    """Return the network on x instead of z = R x; a stack gets a mixed embedding too."""
    d = len(R)
    if wiring.structure["kind"] != "Stack":
        # The constant 1 that follows x stays as it is.
        names = inputs_of(wiring.structure)
        new = {name: wiring.arrays[name].copy() for name in names}
        for array in new.values():
            array[:, :d] = array[:, :d] @ R
        return wiring.changed(**new)
    fields = wiring.structure["fields"]
    names = inputs_of(fields["layers"][0], "layers.0.")
    width = wiring.arrays[names[0]].shape[1]
    P = orthogonal(rng, width)
    new = {name: wiring.arrays[name] @ P.T for name in names}
    new["embed.W"] = P @ wiring.arrays.get("embed.W", np.eye(d)) @ R
    if "embed.b" in wiring.arrays:
        new["embed.b"] = P @ wiring.arrays["embed.b"]
        return wiring.changed(**new)
    embed = {"kind": "Affine", "fields": {"W": "tensor", "b": {"value": None}}}
    structure = {**wiring.structure, "fields": {**fields, "embed": embed}}
    return replace(wiring.changed(**new), structure=structure)
