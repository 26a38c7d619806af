"""Units of a network that may change places, and which entries of which arrays belong to each.

Peers are the neurons of one layer, or the outputs of one gate. Axis 0 of the arrays in `rows`
counts them: these arrays write the unit. Axis 1 of the arrays in `columns` does too: these read it.
PEERS has a line for each set of peers of each layer:

    rows      arrays that write the unit
    columns   arrays that read it; WHOEVER_READS stands for whatever reads the layer's output
    scaled    rows that may each be scaled by a factor, which the columns take back
    signs     the factor must be −1 or 1, because the rows stand inside an odd function
    blended   rows that may be mixed among units whose rows `alike` are equal
    swapped   two rows whose product is the unit, so that they may change places
    phased    (real, imaginary) rows of a complex unit, and of its columns

A stack calls an array by its path, `layers.0.U_f`.
"""

from dataclasses import dataclass, replace

from underhood.common.errors import BadInput, with_article
from underhood.common.files import Json

WHOEVER_READS = "whoever reads"


@dataclass(frozen=True)
class Peers:
    """A set of peers; the head of this file explains the fields."""

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    scaled: tuple[tuple[str, ...], ...] = ()
    signs: bool = False
    blended: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    swapped: tuple[str, ...] = ()
    phased: bool = False

    @property
    def are_neurons(self) -> bool:
        """Whether the units carry the state, so that each has a role."""
        return self.name.split(".")[-1] == "neuron"

    def at(self, path: str, readers: tuple[str, ...]) -> "Peers":
        """Return the peers of a layer at a path in a stack, whose output `readers` read."""

        def place(names: tuple[str, ...]) -> tuple[str, ...]:
            inside = [f"{path}{name}" for name in names if name != WHOEVER_READS]
            return (*inside, *(readers if WHOEVER_READS in names else ()))

        return replace(
            self,
            name=f"{path}{self.name}",
            rows=place(self.rows),
            columns=place(self.columns),
            scaled=tuple(place(names) for names in self.scaled),
            blended=place(self.blended),
            alike=place(self.alike),
            swapped=place(self.swapped),
        )


def gates(letters: str, *symbols: str) -> tuple[str, ...]:
    """Return U_f, V_f, b_f, U_c … for the symbols U, V, b and the letters f, c …"""
    return tuple(f"{symbol}_{letter}" for letter in letters for symbol in symbols)


RECURRENCE = ("nu", "theta_log", "gamma_log", "B_re", "B_im")
LRU_PEERS = (
    Peers(
        "neuron",
        rows=RECURRENCE,
        columns=("C_re", "C_im"),
        scaled=(("B_re", "B_im"),),
        blended=("B_re", "B_im"),
        alike=("nu", "theta_log", "gamma_log"),
        phased=True,
    ),
    Peers(
        "mixed", rows=("C_re", "C_im", "D"), columns=("W_m", "W_x"), blended=("C_re", "C_im", "D")
    ),
    Peers("output", rows=("W_m", "W_x"), columns=(WHOEVER_READS,), scaled=(("W_x",),)),
)
# The entries of u can be blended only where they share a gate.
ENTERING = Peers(
    "input",
    rows=("W_in_m", "W_in_x"),
    columns=("B_re", "B_im", "D"),
    scaled=(("W_in_x",),),
    blended=("W_in_x",),
    alike=("W_in_m",),
)

PEERS: dict[str, tuple[Peers, ...]] = {
    "GatedRNN": (
        Peers(
            "neuron",
            rows=("W_in_m", "W_in_x", "nu"),
            columns=("W_out_m", "W_out_x"),
            scaled=(("W_in_m",), ("W_in_x",)),
            blended=("W_in_x",),
            alike=("nu", "W_in_m"),
            swapped=("W_in_m", "W_in_x"),
        ),
        Peers(
            "gate",
            rows=("W_out_m", "W_out_x"),
            columns=("D",),
            scaled=(("W_out_m",), ("W_out_x",)),
            swapped=("W_out_m", "W_out_x"),
        ),
    ),
    "SideGatedRNN": (
        Peers(
            "neuron",
            rows=("W_in_m", "W_in_x", "nu", "W_side"),
            columns=("D",),
            scaled=(("W_in_m",), ("W_in_x",), ("W_side",)),
            blended=("W_in_x",),
            alike=("nu", "W_in_m", "W_side"),
            swapped=("W_in_m", "W_in_x"),
        ),
    ),
    "LSTM": (
        Peers(
            "neuron",
            rows=gates("fcgo", "U", "V", "b"),
            columns=(*gates("fcgo", "V"), WHOEVER_READS),
            scaled=(("U_c", "V_c", "b_c"),),
            signs=True,
        ),
    ),
    "GRU": (
        Peers(
            "neuron",
            rows=(*gates("rhz", "U", "V", "b"), "c_h"),
            columns=(*gates("rhz", "V"), WHOEVER_READS),
            scaled=(("U_h", "V_h", "b_h", "c_h"),),
            signs=True,
        ),
    ),
    "LRU": LRU_PEERS,
    "LRUInOut": (ENTERING, *LRU_PEERS),
}

# The arrays that read the input of a layer.
INPUTS: dict[str, tuple[str, ...]] = {
    "GatedRNN": ("W_in_m", "W_in_x"),
    "SideGatedRNN": ("W_in_m", "W_in_x", "W_side"),
    "LSTM": gates("fcgo", "U"),
    "GRU": gates("rhz", "U"),
    "LRU": ("B_re", "B_im", "D"),
    "LRUInOut": ("W_in_m", "W_in_x"),
}


def peers_of(structure: Json) -> tuple[Peers, ...]:
    """Return the peers of a layer, or of all layers of a stack, those nearest to the input first.

    structure  what `take_apart` returned
    """
    if structure["kind"] != "Stack":
        return peers_of_kind(structure["kind"])
    layers = structure["fields"]["layers"]
    sets: list[Peers] = []
    for number, layer in enumerate(layers):
        last = number + 1 == len(layers)
        above = () if last else inputs_of(layers[number + 1], f"layers.{number + 1}.")
        readers = ("readout.W",) if last else above
        sets += [each.at(f"layers.{number}.", readers) for each in peers_of_kind(layer["kind"])]
    return tuple(sets)


def inputs_of(structure: Json, path: str = "") -> tuple[str, ...]:
    """Return the names of the arrays that read the input of a layer."""
    return tuple(f"{path}{name}" for name in INPUTS[structure["kind"]])


def peers_of_kind(kind: str) -> tuple[Peers, ...]:
    if kind not in PEERS:
        raise BadInput(f"Nothing can be planted in {with_article(kind)}; use {', '.join(PEERS)}.")
    return PEERS[kind]
