"""A folder of planted networks.

    index.json                     settings and names; "finished": true once all is written
    README.md                      what is asked, and how answers are graded
    networks/000/model.safetensors the weights, under the framework's own names
    networks/000/README.md         the model card: sizes, and how to load it
    keys/000.json                  what is inside: verdict, W_V, M, the role of every neuron

A method may read `networks` and must not read `keys`.
"""

import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors.numpy

from underhood.bridges.state_dicts import to_state_dict
from underhood.common.errors import BadInput, refuse
from underhood.common.files import Json, as_json, make_output_folder, write_atomically
from underhood.common.live import LineProgress, Speaker
from underhood.common.numbers import whole_problems
from underhood.layers.files import save
from underhood.planting.cards import folder_card, network_card
from underhood.planting.decoys import DECOYS, NO_DECOYS
from underhood.planting.planting import PLANT_TARGETS, Planted, Planting, plant_network

PLANTED_INDEX, NETWORKS, KEYS = "index.json", "networks", "keys"
CARD, WEIGHTS = "README.md", "model.safetensors"
PLANTED_VERSION = 1
MOST_NETWORKS = 1000


def decoys_among(planting: Planting, count: int, share: float | None) -> list[str | None]:
    """Return for each network None, or which decoy it is; the kinds take turns.

    share  how many of the networks are decoys; None: a quarter, or none where there are none
    """
    if share is None:
        share = 0.0 if planting.target in NO_DECOYS else 0.25
    if not 0 <= share <= 1:
        raise BadInput(f"plant: decoys is {share!r}; give a share from 0 to 1.")
    if share and planting.target in NO_DECOYS:
        raise BadInput(f"plant: {NO_DECOYS[planting.target]}; use decoys=0.")
    known = DECOYS if planting.dead else ("shuffled",)
    # Networks draw from [seed, number]; a third number keeps this draw apart from theirs.
    order = np.random.default_rng([planting.seed, count, 1]).permutation(count)
    kinds: list[str | None] = [None] * count
    for place, number in enumerate(order[: round(share * count)]):
        kinds[number] = known[place % len(known)]
    return kinds


def plant_folder(
    planting: Planting,
    folder: Path,
    *,
    count: int = 20,
    decoys: float | None = None,
    force: bool = False,
    progress: LineProgress = None,
) -> list[Planted]:
    """Plant networks and write them; the same arguments write the same networks.

    count     how many networks
    decoys    share of networks without attention; None: a quarter, or none if there are no decoys
    force     replace what an earlier call wrote into the folder
    progress  as for `Speaker`
    """
    refuse(whole_problems(most=MOST_NETWORKS, count=count), about="plant")
    kinds = decoys_among(planting, count, decoys)
    begin_folder(folder, force=force)
    index: Json = {
        "format": "underhood planted networks",
        "version": PLANTED_VERSION,
        "finished": False,
        "count": count,
        "planting": asdict(planting),
        "decoys": sum(kind is not None for kind in kinds),
        "networks": [],
    }
    write_atomically(folder / PLANTED_INDEX, as_json(index))
    speaker, networks = Speaker(progress), []
    for number, kind in enumerate(kinds):
        planted = plant_network(planting, number, kind)
        index["networks"].append(write_network(folder, planted))
        networks.append(planted)
        speaker.say(f"plant: {number + 1} of {count} networks")
    write_atomically(folder / CARD, folder_card(index).encode())
    write_atomically(folder / PLANTED_INDEX, as_json(index | {"finished": True}))
    return networks


def begin_folder(folder: Path, *, force: bool) -> None:
    """Make the folder, or with `force` empty one that an earlier call wrote; refuse all others."""
    ours = (PLANTED_INDEX, NETWORKS, KEYS, CARD)
    begun = (folder / PLANTED_INDEX).is_file()
    if begun and not force:
        raise BadInput(f"The folder {folder} holds planted networks; add --force to replace them.")
    if not begun and folder.is_dir() and any(folder.iterdir()):
        raise BadInput(f"The folder {folder} is not empty; name a new or empty folder.")
    make_output_folder(folder, ours=ours, begun=begun)
    for name in (NETWORKS, KEYS):
        path = folder / name
        if path.is_symlink():
            raise BadInput(f"{path} is a symbolic link; remove it or name another folder.")
        if path.is_dir():
            shutil.rmtree(path)


def network_name(number: int) -> str:
    return f"{number:03d}"


def write_network(folder: Path, planted: Planted) -> Json:
    """Write weights, model card and key; return the network's entry of the index."""
    name = network_name(planted.number)
    place = folder / NETWORKS / name
    place.mkdir(parents=True)
    (folder / KEYS).mkdir(exist_ok=True)
    kind = PLANT_TARGETS[planted.planting.target][2]
    if kind is None:
        # Without roles, which would give the answer away.
        save(place / WEIGHTS, planted.layer)
    else:
        arrays = to_state_dict(planted.layer, kind)
        write_atomically(place / WEIGHTS, safetensors.numpy.save(arrays, {"format": "pt"}))
    layer = planted.layer
    entry = {"name": name, "neurons": layer.neurons, "d_in": layer.d_in, "d_out": layer.d_out}
    write_atomically(place / CARD, network_card(entry, planted.planting.target).encode())
    write_atomically(folder / KEYS / f"{name}.json", as_json(planted.key()))
    return entry
