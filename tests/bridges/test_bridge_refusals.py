"""Weights that do not fit are refused in one line that says what to change."""

import dataclasses
import io
import json
import pickle
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from bridge_cases import KINDS, layer_of, mamba2
from refusals import refused

import underhood as uh

pytestmark = pytest.mark.usefixtures("unhooked")

ENTRIES = {kind: uh.to_state_dict(layer_of(kind), kind) for kind in KINDS}
LSTM, GRU, MAMBA = ENTRIES["torch.LSTM"], ENTRIES["torch.GRU"], ENTRIES["hf.Mamba"]
MAMBA2 = ENTRIES["hf.Mamba2"]
W = np.ones


def without(entries: dict, *names: str) -> dict:
    return {name: array for name, array in entries.items() if name not in names}


def under(prefix: str, entries: dict) -> dict:
    return {prefix + name: array for name, array in entries.items()}


def transposed(entries: dict, name: str) -> dict:
    return entries | {name: entries[name].T}


READ = {
    # kinds
    "Unknown kind 'torch.LSTMM' … Did you mean 'torch.LSTM'?": (LSTM, "torch.LSTMM"),
    "Unknown kind None … torch.GRU": (LSTM, None),
    "torch.RNN … no gate … nn.LSTM": (LSTM, "torch.RNN"),
    "torch.GRU: weight_hh_l0 … (20, 5) … kind='torch.LSTM'": (LSTM, "torch.GRU"),
    "torch.LSTM: weight_hh_l0 … (15, 5) … kind='torch.GRU'": (GRU, "torch.LSTM"),
    "torch.LSTM: weight_hh_l0 … that of a torch.RNN … no gates": (
        {"weight_ih_l0": W((5, 3)), "weight_hh_l0": W((5, 5))},
        "torch.LSTM",
    ),
    "flax.LSTM … dense_i … kind='nnx.LSTM'": (ENTRIES["nnx.LSTM"], "flax.LSTM"),
    "nnx.GRU … kind='flax.GRU'": (ENTRIES["flax.GRU"], "nnx.GRU"),
    "flax.GRU: ir.kernel … missing": (ENTRIES["flax.LSTM"], "flax.GRU"),
    "hf.Mamba: in_proj.weight … missing … weight_ih_l0": (LSTM, "hf.Mamba"),
    "hf.Mamba … kind='hf.Mamba2'": (MAMBA | {"dt_bias": W(4)}, "hf.Mamba"),
    "hf.Mamba2 … kind='hf.Mamba'": (MAMBA, "hf.Mamba2"),
    "hf.Mamba2: in_proj.weight … missing": (GRU, "hf.Mamba2"),
    # what is no dict of arrays
    "takes a dict … not a list … module.state_dict()": ([W(3)], "torch.LSTM"),
    "takes a dict … not a NoneType": (None, "torch.LSTM"),
    "takes a dict … not an LSTM": (layer_of("torch.LSTM"), "torch.LSTM"),
    "the source holds no arrays": ({}, "torch.LSTM"),
    "the name 3 is no string": ({3: W(3)}, "torch.LSTM"),
    "weight_ih_l0 is a list": (LSTM | {"weight_ih_l0": [[1.0]]}, "torch.LSTM"),
    "weight_ih_l0 is a NoneType": (LSTM | {"weight_ih_l0": None}, "torch.LSTM"),
    # numbers
    "weight_hh_l0 holds int8 … quantised": (
        LSTM | {"weight_hh_l0": W((20, 5), np.int8)},
        "torch.LSTM",
    ),
    "weight_hh_l0 holds float8_e4m3fn … quantised": (
        LSTM | {"weight_hh_l0": W((20, 5), ml_dtypes.float8_e4m3fn)},
        "torch.LSTM",
    ),
    "weight_hh_l0 holds bool": (LSTM | {"weight_hh_l0": W((20, 5), bool)}, "torch.LSTM"),
    "bias_ih_l0 holds <U1": (LSTM | {"bias_ih_l0": np.full(20, "1")}, "torch.LSTM"),
    "weight_ih_l0 holds NaN or infinite": (
        LSTM | {"weight_ih_l0": np.full((20, 3), np.inf)},
        "torch.LSTM",
    ),
    "bias_hh_l0 holds complex128": (LSTM | {"bias_hh_l0": W(20, complex)}, "torch.LSTM"),
    "bias_hh_l0 holds object": (LSTM | {"bias_hh_l0": W(20, object)}, "torch.LSTM"),
    "bias_ih_l0 holds NaN": (LSTM | {"bias_ih_l0": np.full(20, np.nan)}, "torch.LSTM"),
    "A_log holds NaN or inf": (MAMBA | {"A_log": np.full((4, 3), -np.inf)}, "hf.Mamba"),
    # names
    "weight_hh_l0 missing … It takes weight_ih_l0": (without(LSTM, "weight_hh_l0"), "torch.LSTM"),
    "bias_hh_l0 missing": (without(LSTM, "bias_hh_l0"), "torch.LSTM"),
    "weight_hh_l0 missing; weight_hh_10 not known … Did you mean 'weight_hh_l0'?": (
        without(LSTM, "weight_hh_l0") | {"weight_hh_10": LSTM["weight_hh_l0"]},
        "torch.LSTM",
    ),
    "weight_hh_l1 … missing": (LSTM | {"weight_ih_l1": LSTM["weight_hh_l0"]}, "torch.LSTM"),
    "weight_ih_l0 … missing … Use prefix='encoder.'": (under("encoder.", LSTM), "torch.LSTM"),
    "choose a mixer by prefix='backbone.layers.0.mixer.'": (
        under("backbone.layers.0.mixer.", MAMBA),
        "hf.Mamba",
    ),
    "head.weight not known; a stack has": (
        under("rnn.", LSTM) | {"head.weight": W((2, 5))},
        "torch.LSTM",
    ),
    "rnn … weight_ih_l0 … missing": ({"embed.weight": W((3, 3))}, "torch.LSTM"),
    "torch.Linear: weight missing; weights not known": ({"weights": W((2, 2))}, "torch.Linear"),
    "bidirectional … backwards": (LSTM | {"weight_ih_l0_reverse": W((20, 3))}, "torch.LSTM"),
    "proj_size … proj_size=0": (LSTM | {"weight_hr_l0": W((2, 5))}, "torch.LSTM"),
    "hf.Mamba2: in_proj.bias (use_bias=True) cannot be kept": (
        MAMBA2 | {"in_proj.bias": W(22)},
        "hf.Mamba2",
    ),
    "hf.Mamba2: … choose a mixer by prefix='layers.3.mixer.'": (
        under("layers.3.mixer.", MAMBA2),
        "hf.Mamba2",
    ),
    "norm.weight missing": (without(MAMBA2, "norm.weight"), "hf.Mamba2"),
    "hf.Mamba2: in_proj.weight … (3, 22) … its transpose": (
        transposed(MAMBA2, "in_proj.weight"),
        "hf.Mamba2",
    ),
    "hf.Mamba2: D has shape (3,) but must be (2,)": (MAMBA2 | {"D": W(3)}, "hf.Mamba2"),
    "in_proj.bias (use_bias=True) cannot be kept": (MAMBA | {"in_proj.bias": W(8)}, "hf.Mamba"),
    # shapes
    "weight_ih_l0 … (3, 20) … (20, 3), its transpose: give weight_ih_l0.T": (
        transposed(LSTM, "weight_ih_l0"),
        "torch.LSTM",
    ),
    "weight_hh_l0 … its transpose": (transposed(GRU, "weight_hh_l0"), "torch.GRU"),
    "out_proj.weight … its transpose": (transposed(MAMBA, "out_proj.weight"), "hf.Mamba"),
    "x_proj.weight … its transpose": (transposed(MAMBA, "x_proj.weight"), "hf.Mamba"),
    "ig.kernel … (5, 3) … its transpose": (
        transposed(ENTRIES["flax.LSTM"], "ig.kernel"),
        "flax.LSTM",
    ),
    "dense_i.kernel … its transpose": (
        transposed(ENTRIES["nnx.GRU"], "dense_i.kernel"),
        "nnx.GRU",
    ),
    "bias_hh_l0 has shape (19,) but must be (20,)": (
        LSTM | {"bias_hh_l0": W(19)},
        "torch.LSTM",
    ),
    "weight_hh_l0 has shape (20,) but must have 2 axes": (
        LSTM | {"weight_hh_l0": W(20)},
        "torch.LSTM",
    ),
    "weight_hh_l0 has shape (0, 0)": (LSTM | {"weight_hh_l0": W((0, 0))}, "torch.LSTM"),
    "bias has shape (3,) … weight is transposed": (
        {"weight": W((5, 3)), "bias": W(3)},
        "torch.Linear",
    ),
    "conv1d.weight … (4, 2, 3) … (4, 1, 3)": (
        MAMBA | {"conv1d.weight": W((4, 2, 3))},
        "hf.Mamba",
    ),
    "Stack … embed gives 4 numbers but layer 0 takes 3": (
        under("rnn.", LSTM) | {"embed.weight": W((4, 2))},
        "torch.LSTM",
    ),
    "Stack … readout takes 4": (
        under("rnn.", LSTM) | {"readout.weight": W((2, 4))},
        "torch.LSTM",
    ),
}


@pytest.mark.parametrize("words", READ)
def test_refused_dicts(words: str) -> None:
    source, kind = READ[words]
    with refused(words):
        uh.from_state_dict(source, kind)


WRITTEN = {
    "torch.LSTM takes an LSTM or a Stack of them, not a GRU": (layer_of("torch.GRU"), "torch.LSTM"),
    "not a Stack with a GRU": (uh.Stack(None, [layer_of("torch.GRU")], None), "torch.LSTM"),
    "torch.GRU resets after … reset='after'": (
        uh.GRU(
            **{n: v for n, v in vars(layer_of("torch.GRU")).items() if n not in ("c_h", "reset")}
        ),
        "torch.GRU",
    ),
    "torch.Linear takes an Affine": (layer_of("torch.LSTM"), "torch.Linear"),
    "hf.Mamba takes a MambaBlock … mamba_block": (layer_of("torch.LSTM"), "hf.Mamba"),
    "hf.Mamba2 takes a Mamba2 … target='mamba2'": (layer_of("hf.Mamba"), "hf.Mamba2"),
    "hf.Mamba2 … W_B differs inside one of 1 groups … norm_groups=2": (
        dataclasses.replace(mamba2(np.random.default_rng(0), 2), norm_groups=1),
        "hf.Mamba2",
    ),
    "A_log is +inf, a decay of 0": (
        dataclasses.replace(layer_of("hf.Mamba2"), A_log=np.full(2, np.inf)),
        "hf.Mamba2",
    ),
    "flax.LSTM takes one LSTM, not a Stack": (
        uh.Stack(None, [layer_of("torch.LSTM")], None),
        "flax.LSTM",
    ),
    "nnx.GRU has no bias c_h": (layer_of("torch.GRU"), "nnx.GRU"),
    "torch.RNN … no gate": (layer_of("torch.LSTM"), "torch.RNN"),
    "to_state_dict takes a layer or a construction, not a dict": (LSTM, "torch.LSTM"),
    "one width … [5, 7] … readout": (
        uh.Stack(
            None,
            [layer_of("torch.LSTM", hidden=7), layer_of("torch.LSTM", hidden=5, d_in=7)],
            None,
        ),
        "torch.LSTM",
    ),
}


@pytest.mark.parametrize("words", WRITTEN)
def test_refused_layers(words: str) -> None:
    with refused(words):
        uh.to_state_dict(*WRITTEN[words])


class Bomb:
    """What runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


# What only unpickling or unpacking could read, by its name or by its first bytes.
PICKLED = ("model.bin", "model.pt", "model.pth", "a.ckpt", "a.pkl", "a.pickle", "a.joblib")
PICKLED = (*PICKLED, "a.npy", "a.npz", "MODEL.BIN", "state_dict", "model.safetensors.old")


@pytest.mark.parametrize("name", PICKLED)
def test_pickles_are_never_read(name: str, tmp_path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with refused(f"{name} is a pickle … never read … save_file"):
        uh.from_state_dict(tmp_path / name, "torch.LSTM")
    (tmp_path / "a.safetensors").write_bytes(pickle.dumps(Bomb()))
    with refused("not a readable safetensors file"):
        uh.from_state_dict(tmp_path / "a.safetensors", "torch.LSTM")


def archive() -> bytes:
    """A zip file, as torch.save and np.savez write them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    return buffer.getvalue()


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


GOOD = safetensors.numpy.save(LSTM)
QUANTISED = safetensors.numpy.save(LSTM | {"weight_hh_l0": W((20, 5), np.int8)})
NO_NUMBERS = safetensors.numpy.save(LSTM | {"bias_hh_l0": np.full(20, np.nan)})
OUTSIDE = b'{"w": {"dtype": "F64", "shape": [2], "data_offsets": [0, 1000]}}'
STRANGE = b'{"w": {"dtype": "Q4", "shape": [2], "data_offsets": [0, 1]}}'

# A file's name, what it holds, and the words of the refusal.
FILES: dict[str, tuple[str, bytes | None]] = {
    "missing.safetensors: No such file": ("missing.safetensors", None),
    "saved is a pickle or an archive … never read": ("saved", archive()),
    "zipped.safetensors is not a readable": ("zipped.safetensors", archive()),
    "cut.safetensors is not a readable": ("cut.safetensors", GOOD[:99]),
    "short.safetensors is not a readable": ("short.safetensors", GOOD[:-8]),
    "long.safetensors is not a readable": ("long.safetensors", GOOD + b"0" * 8),
    "empty.safetensors is not a readable": ("empty.safetensors", b""),
    "text.safetensors is not a readable": ("text.safetensors", b"version https://git-lfs"),
    "huge.safetensors is not a readable": ("huge.safetensors", b"\xff" * 7 + b"\x7f{}"),
    "list.safetensors is not a readable": ("list.safetensors", with_header(b"[]")),
    "from_state_dict: the source holds no arrays": ("bare.safetensors", with_header(b"{}")),
    "outside.safetensors is not a readable": ("outside.safetensors", with_header(OUTSIDE)),
    "strange.safetensors is not a readable": ("strange.safetensors", with_header(STRANGE, b"0")),
    "weights.h5 is not a readable": ("weights.h5", b"\x89HDF\r\n\x1a\n" + b"0" * 64),
    "weight_hh_l0 holds int8": ("quantised.safetensors", QUANTISED),
    "bias_hh_l0 holds NaN": ("nan.safetensors", NO_NUMBERS),
    "config.json is no weights file … index.json": ("config.json", b"{}"),
}


def index_of(**places: str) -> bytes:
    entries = dict.fromkeys(LSTM, "model.safetensors") | places
    return json.dumps({"weight_map": entries}).encode()


# What an index holds. Beside it are model.safetensors, with all of LSTM, and cut.safetensors.
INDICES = {
    "no weight_map": b"no json",
    "index.json holds no weight_map": b"[]",
    "holds no weight_map {name: file}": b'{"weight_map": 3}',
    "weight_map {name": b'{"weight_map": {"a": ' * 2000,
    "'../b.safetensors' … beside it": index_of(a="../b.safetensors"),
    "'/etc/b.safetensors' … beside it": index_of(a="/etc/b.safetensors"),
    "'deeper/b.safetensors' … beside it": index_of(a="deeper/b.safetensors"),
    "'b.bin' … beside it": index_of(a="b.bin"),
    "'' … beside it": index_of(a=""),
    "gone.safetensors: No such file": index_of(a="gone.safetensors"),
    "lacks a, which": index_of(a="model.safetensors"),
    "cut.safetensors is not a readable": index_of(a="cut.safetensors"),
}


@pytest.mark.parametrize("words", FILES)
def test_refused_files(words: str, tmp_path) -> None:
    name, content = FILES[words]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with refused(words):
        uh.from_state_dict(tmp_path / name, "torch.LSTM")


@pytest.mark.parametrize("words", INDICES)
def test_refused_indices(words: str, tmp_path) -> None:
    (tmp_path / "model.safetensors").write_bytes(GOOD)
    (tmp_path / "cut.safetensors").write_bytes(GOOD[:99])
    (tmp_path / "m.safetensors.index.json").write_bytes(INDICES[words])
    with refused(words):
        uh.from_state_dict(tmp_path / "m.safetensors.index.json", "torch.LSTM")


def test_refused_places(tmp_path) -> None:
    safetensors.numpy.save_file(LSTM, tmp_path / "model.safetensors")
    with refused("is a folder; give the file"):
        uh.from_state_dict(tmp_path, "torch.LSTM")
    with refused("No name begins with the prefix 'encoder.'; there are bias_hh_l0"):
        uh.from_state_dict(tmp_path / "model.safetensors", "torch.LSTM", prefix="encoder.")
    with refused("prefix is 3; give a string"):
        uh.from_state_dict(LSTM, "torch.LSTM", prefix=3)
    with refused("torch.LSTM has no groups of heads"):
        uh.from_state_dict(LSTM, "torch.LSTM", groups=2)
    with refused("hf.Mamba2: groups is 0; give a whole number"):
        uh.from_state_dict(ENTRIES["hf.Mamba2"], "hf.Mamba2", groups=0)
    with refused("2 heads, 6 channels and 14 convolutions do not make 3 groups"):
        uh.from_state_dict(ENTRIES["hf.Mamba2"], "hf.Mamba2", groups=3)


def test_they_are_at_least_fifty() -> None:
    counts = {"dicts": len(READ), "layers": len(WRITTEN), "files": len(FILES) + len(INDICES)}
    assert min(counts.values()) >= 10
    assert sum(counts.values()) + len(PICKLED) >= 50


def test_without_torch_there_is_one_line(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "underhood.bridges.torch_layers", raising=False)
    monkeypatch.delattr("underhood.bridges.torch_layers", raising=False)
    for call in (lambda: uh.from_torch(None), lambda: uh.to_torch(layer_of("torch.LSTM"))):
        with refused("need PyTorch: pip install 'underhood[torch]' … from_state_dict"):
            call()
