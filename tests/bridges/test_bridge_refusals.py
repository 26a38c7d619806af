"""Weights that do not fit are refused in one line that says what to change."""

import json
import pickle
import sys

import numpy as np
import pytest
import safetensors.numpy
from bridge_cases import KINDS, layer_of
from refusals import refused

import underhood as uh

pytestmark = pytest.mark.usefixtures("unhooked")

ENTRIES = {kind: uh.to_state_dict(layer_of(kind), kind) for kind in KINDS}
LSTM, GRU, MAMBA = ENTRIES["torch.LSTM"], ENTRIES["torch.GRU"], ENTRIES["hf.Mamba"]
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
    "hf.Mamba … Mamba-2": (MAMBA | {"dt_bias": W(4)}, "hf.Mamba"),
    # what is no dict of arrays
    "takes a dict … not a list … module.state_dict()": ([W(3)], "torch.LSTM"),
    "takes a dict … not a NoneType": (None, "torch.LSTM"),
    "takes a dict … not a LSTM": (layer_of("torch.LSTM"), "torch.LSTM"),
    "the source holds no arrays": ({}, "torch.LSTM"),
    "the name 3 is no string": ({3: W(3)}, "torch.LSTM"),
    "weight_ih_l0 is a list": (LSTM | {"weight_ih_l0": [[1.0]]}, "torch.LSTM"),
    "weight_ih_l0 is a NoneType": (LSTM | {"weight_ih_l0": None}, "torch.LSTM"),
    # numbers
    "weight_hh_l0 holds int8 … quantised": (
        LSTM | {"weight_hh_l0": W((20, 5), np.int8)},
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
    "torch.LSTM takes a LSTM or a Stack of them, not a GRU": (layer_of("torch.GRU"), "torch.LSTM"),
    "not a Stack with a GRU": (uh.Stack(None, [layer_of("torch.GRU")], None), "torch.LSTM"),
    "torch.GRU resets after … reset='after'": (
        uh.GRU(
            **{n: v for n, v in vars(layer_of("torch.GRU")).items() if n not in ("c_h", "reset")}
        ),
        "torch.GRU",
    ),
    "torch.Linear takes an Affine": (layer_of("torch.LSTM"), "torch.Linear"),
    "hf.Mamba takes a MambaBlock … mamba_block": (layer_of("torch.LSTM"), "hf.Mamba"),
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


@pytest.mark.parametrize(
    "name", ["model.bin", "model.pt", "model.pth", "a.ckpt", "a.pkl", "a.npz", "state_dict"]
)
def test_pickles_are_never_read(name: str, tmp_path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with refused(f"{name} is a pickle … never read … save_file"):
        uh.from_state_dict(tmp_path / name, "torch.LSTM")
    (tmp_path / "a.safetensors").write_bytes(pickle.dumps(Bomb()))
    with refused("not a readable safetensors file"):
        uh.from_state_dict(tmp_path / "a.safetensors", "torch.LSTM")


def test_refused_files(tmp_path) -> None:
    def read(name: str, **options) -> None:
        uh.from_state_dict(tmp_path / name, "torch.LSTM", **options)

    with refused("Cannot read … No such file"):
        read("missing.safetensors")
    with refused("is a folder; give the file"):
        read("")
    safetensors.numpy.save_file(LSTM, tmp_path / "model.safetensors")
    with refused("No name begins with the prefix 'encoder.'; there are bias_hh_l0"):
        read("model.safetensors", prefix="encoder.")
    with refused("prefix is 3; give a string"):
        read("model.safetensors", prefix=3)
    (tmp_path / "config.json").write_text("{}")
    with refused("config.json is no weights file … index.json"):
        read("config.json")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:99])
    with refused("cut.safetensors is not a readable safetensors file"):
        read("cut.safetensors")
    index = tmp_path / "m.safetensors.index.json"
    places = dict.fromkeys(LSTM, "model.safetensors")
    for content, words in (
        ("no json", "no weight_map"),
        ("[]", "no weight_map"),
        ('{"weight_map": 3}', "no weight_map"),
        (json.dumps({"weight_map": places | {"a": "../b.safetensors"}}), "'../b.safetensors'"),
        (json.dumps({"weight_map": places | {"a": "b.bin"}}), "'b.bin' … beside it"),
        (json.dumps({"weight_map": places | {"a": "gone.safetensors"}}), "gone.safetensors: No"),
        (json.dumps({"weight_map": places | {"a": "model.safetensors"}}), "lacks a"),
    ):
        index.write_text(content)
        with refused(words):
            read(index.name)


def test_without_torch_there_is_one_line(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "underhood.bridges.torch_layers", raising=False)
    monkeypatch.delattr("underhood.bridges.torch_layers", raising=False)
    for call in (lambda: uh.from_torch(None), lambda: uh.to_torch(layer_of("torch.LSTM"))):
        with refused("need PyTorch: pip install 'underhood[torch]' … from_state_dict"):
            call()
