"""Files: what is saved comes back, and nothing damaged gets past the loader with a traceback."""

import json
import os
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from refusals import refused
from teachers import attention, gated_rnn

import underhood as uh
from underhood.common.errors import kind_of
from underhood.layers.files import read

pytestmark = pytest.mark.usefixtures("unhooked")

KEY = jax.random.key(0)
HEADS = {"d_in": 2, "d_out": 2, "heads": 2, "d_k": 3, "d_v": 2}
MODERN = (uh.Mamba2, uh.DeltaNet, uh.GatedDeltaNet, uh.KDA, uh.GLA, uh.RetNet, uh.Lightning)
MODERN += (uh.HGRN2, uh.RWKV6, uh.RWKV7, uh.MLSTM)

# Functions, because collecting the tests makes no layers.
LAYERS = {
    "attention": lambda: attention(3, decay=np.array([0.0, 0.5, 1.0]), b_K=np.ones(3)),
    "heads": lambda: uh.MultiHead([attention(3), attention(3, 1, d_v=2)], np.ones((4, 5))),
    "gated": lambda: gated_rnn(3),
    "dense": lambda: uh.DenseGatedRNN.init(d_in=2, hidden=3, gated=4, d_out=2, key=KEY),
    "side": lambda: uh.SideGatedRNN.init(d_in=2, hidden=3, d_out=2, key=KEY),
    "lru": lambda: uh.LRU.init(d_in=2, hidden=3, d_out=2, key=KEY),
    "lru in-out": lambda: uh.LRUInOut.init(d_in=2, hidden=3, d_out=2, key=KEY),
    "mlp": lambda: uh.LRUInOutMLP.init(d_in=2, hidden=3, d_out=2, key=KEY, activation="silu"),
    "mamba": lambda: uh.Mamba.init(d_in=2, hidden=3, d_out=2, key=KEY),
    "block": lambda: uh.MambaBlock.init(d_in=2, d_out=2, key=KEY),
    "lstm": lambda: uh.LSTM.init(d_in=2, hidden=3, key=KEY),
    "gru": lambda: uh.GRU.init(d_in=2, hidden=3, key=KEY),
    "gru, reset after": lambda: uh.GRU.init(d_in=2, hidden=3, key=KEY, reset="after"),
    "stack": lambda: uh.compile(attention(2), "lstm", order=1).layer,
    **{kind.__name__: partial(kind.init, **HEADS, key=KEY) for kind in MODERN},
    "RGLRU": lambda: uh.RGLRU.init(d_in=2, d_out=2, inner=3, key=KEY),
    "MinGRU": lambda: uh.MinGRU.init(d_in=2, d_out=2, hidden=3, key=KEY),
    "JambaBlock": lambda: uh.JambaBlock.init(d_in=2, d_out=2, inner=3, key=KEY),
    "a decay of exactly 1": lambda: eqx.tree_at(
        lambda layer: layer.A_log,
        uh.Mamba2.init(**HEADS, key=KEY),
        np.array([-np.inf, 0.5]),
    ),
    "no neurons": lambda: uh.compile(attention(2, rank_v=0)).layer,
}


@cache
def layer_of(name: str):
    return LAYERS[name]()


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_comes_back_bit_by_bit(name: str, tmp_path) -> None:
    layer = layer_of(name)
    uh.save(tmp_path / "layer.safetensors", layer)
    loaded = uh.load(tmp_path / "layer.safetensors")
    assert type(loaded) is type(layer)
    assert eqx.tree_equal(jax.tree.map(np.asarray, layer), loaded)
    xs = jnp.ones((3, layer.d_in), jnp.float32)
    if not getattr(layer, "needs_x64", False):
        # λ comes from NumPy's exp on one side and from JAX's on the other.
        ys = jax.jit(layer)(xs)
        np.testing.assert_allclose(ys, jax.jit(loaded)(xs), rtol=1e-5, atol=1e-6)


def loaded_without(path, layer, *fields: str):
    """Save a layer as it was saved before some fields existed, and load it."""
    uh.save(path, layer)
    tensors = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    structure = json.loads(metadata["layer"])
    for field in fields:
        del structure["fields"][field]
    metadata["layer"] = json.dumps(structure)
    safetensors.numpy.save_file(tensors, path, metadata)
    return uh.load(path)


def test_a_mamba2_of_an_older_file_has_one_norm(tmp_path) -> None:
    layer = uh.Mamba2.init(**HEADS, key=jax.random.key(0))
    assert loaded_without(tmp_path / "a.safetensors", layer, "norm_groups").norm_groups == 1


def test_a_gru_of_an_older_file_resets_before_the_product(tmp_path) -> None:
    loaded = loaded_without(tmp_path / "gru.safetensors", layer_of("gru"), "c_h", "reset")
    assert (loaded.reset, loaded.c_h) == ("before", None)
    assert eqx.tree_equal(jax.tree.map(np.asarray, layer_of("gru")), loaded)


def test_roles_and_settings_are_kept_and_foreign_weights_read(tmp_path) -> None:
    built = uh.compile(attention(2))
    uh.save(tmp_path / "rnn.safetensors", built)
    contents = read(tmp_path / "rnn.safetensors")
    assert contents.roles == tuple(map(tuple, built.roles))
    assert contents.settings == built.settings
    assert contents.settings["form"] == "minimal"
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(3, 3)) for name in ("W_V", "W_K", "W_Q")}
    safetensors.numpy.save_file(weights, tmp_path / "foreign.safetensors")
    loaded = uh.load(tmp_path / "foreign.safetensors")
    assert isinstance(loaded, uh.LinearAttention)
    np.testing.assert_array_equal(loaded.W_K, weights["W_K"])


def test_saving_replaces_whole_files_and_leaves_nothing_else(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    uh.save(path, attention(2))
    uh.save(path, attention(3))
    assert uh.load(path).d_in == 3
    assert os.listdir(tmp_path) == ["a.safetensors"]
    with pytest.raises(OSError):
        uh.save(tmp_path / "missing" / "a.safetensors", attention(2))
    with pytest.raises(uh.BadInput, match="layer or a construction"):
        uh.save(path, {"W_V": np.eye(2)})
    assert os.listdir(tmp_path) == ["a.safetensors"]


def rewrite(path, change) -> None:
    """Change a file's tensors and metadata and write it again."""
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    tensors, metadata = safetensors.numpy.load(raw), header.get("__metadata__", {})
    change(tensors, metadata)
    safetensors.numpy.save_file(tensors, path, metadata)


def edited(change, *dropped: str):
    """A change of the layer's structure, without some of its tensors."""

    def edit(tensors: dict, metadata: dict) -> None:
        structure = json.loads(metadata["layer"])
        change(structure)
        metadata["layer"] = json.dumps(structure)
        for name in dropped:
            del tensors[name]

    return edit


DAMAGE = {
    "version of the future": (lambda t, m: m.update(version="2"), "format version is 2"),
    "no version": (lambda t, m: m.pop("version"), "version is missing"),
    "missing tensor": (lambda t, m: t.pop("D"), "the tensor D is missing"),
    "extra tensor": (lambda t, m: t.update(E=np.eye(2)), "no field names: E"),
    "wrong shape": (lambda t, m: t.update(D=np.ones((2, 5))), "D has shape"),
    "wrong rank": (lambda t, m: t.update(nu=np.ones((2, 2))), "must be [hidden]"),
    "NaN": (lambda t, m: t.update(D=np.nan * t["D"]), "NaN"),
    "integers": (lambda t, m: t.update(D=t["D"].astype(int)), "int64"),
    "no JSON": (lambda t, m: m.update(layer="{"), "metadata is damaged"),
    "JSON of another kind": (lambda t, m: m.update(layer="3"), "metadata is damaged"),
    "deep JSON": (lambda t, m: m.update(layer="[" * 100 + "]" * 100), "nested"),
    "deeper JSON": (lambda t, m: m.update(layer="[" * 10**5 + "]" * 10**5), "metadata is damaged"),
    "no layer": (lambda t, m: m.pop("layer"), "metadata is damaged"),
    "unknown kind": (edited(lambda s: s.update(kind="Transformer")), "unknown kind"),
    "lacking field": (edited(lambda s: s["fields"].pop("D")), "the fields"),
    "null for a tensor": (
        edited(lambda s: s["fields"].update(D={"value": None}), "D"),
        "D is a NoneType",
    ),
    "text for a tensor": (
        edited(lambda s: s["fields"].update(D={"value": "x"}), "D"),
        "D is a str",
    ),
    "no roles": (lambda t, m: m.update(roles="[[1]]"), "metadata is damaged"),
    "too few roles": (lambda t, m: m.update(roles='[["memory", "kv"]]'), "names 1 roles"),
    "settings of another kind": (lambda t, m: m.update(settings="7"), "metadata is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused_in_one_line(damage: str, tmp_path) -> None:
    path = tmp_path / "rnn.safetensors"
    uh.save(path, uh.compile(attention(2)))
    change, message = DAMAGE[damage]
    rewrite(path, change)
    with refused(message):
        uh.load(path)


def test_no_cut_or_flipped_byte_gets_past_as_a_traceback(tmp_path) -> None:
    path = tmp_path / "rnn.safetensors"
    uh.save(path, uh.compile(attention(2)))
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(uh.BadInput):
            uh.load(path)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        at, flipped = int(rng.integers(len(whole))), bytearray(whole)
        flipped[at] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(flipped))
        try:
            uh.load(path)
        except uh.BadInput as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 100


def test_paths_that_are_none(tmp_path) -> None:
    layer = layer_of("gated")
    for path in (None, 3, b"bytes", layer):
        for use in (uh.load, lambda path: uh.save(path, layer)):
            with refused(f"A path is a string or a pathlib.Path, not {kind_of(path)}"):
                use(path)
    with refused(f"The output {tmp_path} is a folder; name a regular file"):
        uh.save(tmp_path, layer)
    assert list(tmp_path.iterdir()) == []


def test_metadata_without_numbers_is_refused(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    built = uh.compile(attention(2), "lstm", order=1)
    for value in ("NaN", "Infinity", "-Infinity"):
        uh.save(path, built)
        with safetensors.safe_open(path, "np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        metadata["settings"] = json.dumps({"epsilon": float(value)})
        safetensors.numpy.save_file(tensors, path, metadata)
        with refused(f"its metadata holds {value}, which is no number"):
            uh.load(path)
