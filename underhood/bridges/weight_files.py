"""Named arrays that somebody else wrote: dicts, nested dicts, safetensors files and their shards.

A pickle can run code when it is read, so no file is ever unpickled: `.bin`, `.pt` and the like are
refused. float16 and bfloat16 become float32, which holds every such number.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from underhood.common.arrays import Weight
from underhood.common.errors import BadInput, kind_of
from underhood.common.tensors import WIDENED, UnreadableTensors, read_tensors

NamedArrays = dict[str, np.ndarray]

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy")
# How a pickle begins, and a zip file, which is what torch.save and np.savez write.
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")
INDEX = ".safetensors.index.json"


def read_weights(source: Any, prefix: str) -> NamedArrays:  # Any: whatever the caller gave
    """Return the arrays whose names begin with the prefix, without it.

    source  a dict of arrays, nested or not, or the path of a safetensors file or of an index
    """
    if not isinstance(prefix, str):
        raise BadInput(f"prefix is {prefix!r}; give a string, 'encoder.rnn.' for example.")
    if isinstance(source, Mapping):
        named = flattened(source, "")
    elif isinstance(source, str | os.PathLike):
        named = read_file(Path(source), prefix)
    else:
        raise BadInput(
            "from_state_dict takes a dict of arrays or the path of a safetensors file, not "
            f"{kind_of(source)}; of a torch module give module.state_dict()."
        )
    if not named:
        raise BadInput("from_state_dict: the source holds no arrays.")
    chosen = {name[len(prefix) :]: a for name, a in named.items() if name.startswith(prefix)}
    if not chosen:
        raise BadInput(f"No name begins with the prefix {prefix!r}; there are {listed(named)}.")
    return {name: usable(name, array) for name, array in chosen.items()}


def listed(names: Any, most: int = 6) -> str:  # Any: an iterable of names
    """Return the first names, and how many more there are."""
    names = [str(name) for name in names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# Any: a dict of arrays, of tensors of other frameworks, or of dicts of them.
def flattened(source: Mapping[Any, Any], path: str) -> dict[str, Any]:
    """Return a nested dict as a flat one; {"hi": {"kernel": a}} becomes {"hi.kernel": a}."""
    flat: dict[str, Any] = {}
    for name, value in source.items():
        if not isinstance(name, str):
            raise BadInput(f"from_state_dict: the name {name!r} is no string.")
        here = path + name.replace("/", ".")
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{here}.")
        else:
            flat[here] = value
    return flat


def usable(name: str, value: Any) -> np.ndarray:  # Any: an array of any framework
    """Return a NumPy array of float32 or float64, or refuse what cannot be such an array."""
    if getattr(value, "is_meta", False):
        raise BadInput(f"{name} is on the device meta and has no numbers; load the weights first.")
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        # A torch tensor, also one with gradients or on a device. NumPy has no bfloat16.
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    if not isinstance(value, Weight):
        quantised = " (quantised weights must be turned back into floats first)"
        hint = quantised if type(value).__name__ == "ScriptObject" else ""
        raise BadInput(f"{name} is {kind_of(value)}; give an array{hint}.")
    array = np.asarray(value)
    if array.dtype in WIDENED:
        array = array.astype(np.float32)
    if array.dtype not in (np.float32, np.float64):
        raise BadInput(
            f"{name} holds {array.dtype} numbers; give float64, float32, float16 or bfloat16 "
            "(quantised weights must be turned back into these first)."
        )
    if not np.all(np.isfinite(array)):
        raise BadInput(f"{name} holds NaN or infinite entries.")
    return array


def read_file(path: Path, prefix: str) -> NamedArrays:
    """Read a safetensors file, or all files that an index names."""
    try:
        if path.is_dir():
            raise BadInput(f"{path} is a folder; give the file, {path}/model.safetensors perhaps.")
        refuse_pickle(path)
        if path.name.endswith(".json"):
            return read_shards(path, prefix)
        return read_tensors(path, prefix).arrays
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror or error}.") from None
    except UnreadableTensors as error:
        raise BadInput(f"{path} is not a readable safetensors file: {error}.") from None


def refuse_pickle(path: Path) -> None:
    """Refuse a file that only unpickling could read, by its name or by its first bytes."""
    pickled = path.suffix.lower() in (*PICKLES, ".npz")
    if not pickled and path.is_file():
        with path.open("rb") as file:
            pickled = file.read(4).startswith(PICKLE_STARTS)
    # A safetensors file begins with the length of its header, which may be any byte.
    if pickled and not path.name.endswith(".safetensors"):
        raise BadInput(
            f"{path} is a pickle or an archive, which could run code and is never read; write "
            "safetensors.torch.save_file(module.state_dict(), 'model.safetensors') and give that."
        )


def read_shards(path: Path, prefix: str) -> NamedArrays:
    """Read the arrays that an index spreads over several files beside it."""
    if not path.name.endswith(INDEX):
        raise BadInput(f"{path} is no weights file; an index is called *{INDEX}.")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        places = {str(name): str(file) for name, file in index["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadInput(f"{path} holds no weight_map {{name: file}}.") from None
    wanted = {name: file for name, file in places.items() if name.startswith(prefix)}
    outside = [f for f in wanted.values() if Path(f).name != f or not f.endswith(".safetensors")]
    if outside:
        raise BadInput(f"{path} names {outside[0]!r}; shards are safetensors files beside it.")
    arrays: NamedArrays = {}
    for file in sorted(set(wanted.values())):
        shard = read_file(path.parent / file, prefix)
        missing = [name for name in wanted if wanted[name] == file and name not in shard]
        if missing:
            raise BadInput(f"{path.parent / file} lacks {listed(missing)}, which {path} promises.")
        arrays |= {name: array for name, array in shard.items() if wanted.get(name) == file}
    # Without any, the caller lists the names that there are.
    return arrays or dict.fromkeys(places, np.zeros(0))
