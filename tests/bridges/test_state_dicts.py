"""State dicts of other frameworks, without the frameworks: what goes out comes back."""

import json

import jax
import layer_cases as cases
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from bridge_cases import KINDS, equal, layer_of
from teachers import attention

import underhood as uh

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_comes_back_bit_by_bit(kind: str, dtype: str, tmp_path) -> None:
    layer = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), layer_of(kind))
    arrays = uh.to_state_dict(layer, kind)
    assert equal(uh.from_state_dict(arrays, kind), layer)
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays, path)
    assert equal(uh.from_state_dict(path, kind), layer)
    again = uh.to_state_dict(uh.from_state_dict(str(path), kind=kind), kind)
    assert all(np.array_equal(again[name], arrays[name]) for name in arrays | again)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_lie_together_are_not_written_as_rows(kind: str, tmp_path) -> None:
    """safetensors writes arrays as they lie in memory, and NumPy keeps the order of a transpose."""
    layer = layer_of(kind)
    turned = jax.tree.map(np.asfortranarray, layer)
    safetensors.numpy.save_file(uh.to_state_dict(turned, kind), tmp_path / "turned.safetensors")
    assert equal(uh.from_state_dict(tmp_path / "turned.safetensors", kind), layer)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_read_without_loss(kind: str, dtype, tmp_path) -> None:
    arrays = {n: a.astype(dtype) for n, a in uh.to_state_dict(layer_of(kind), kind).items()}
    safetensors.numpy.save_file(arrays, tmp_path / "half.safetensors")
    for source in (arrays, tmp_path / "half.safetensors"):
        layer = uh.from_state_dict(source, kind)
        assert {leaf.dtype for leaf in jax.tree.leaves(layer)} == {np.dtype("float32")}
        again = uh.to_state_dict(layer, kind)
        assert all(np.array_equal(again[n].astype(dtype), arrays[n]) for n in arrays)


@pytest.mark.parametrize("kind", ["torch.LSTM", "torch.GRU"])
def test_stacks(kind: str) -> None:
    rng, layers = np.random.default_rng(1), [layer_of(kind), layer_of(kind, 1, d_in=5)]
    embed, readout = uh.Affine(cases.normal(rng, 3, 4), cases.normal(rng, 3)), None
    assert set(uh.to_state_dict(uh.Stack(embed, layers, None), kind)) == {
        *("embed.weight", "embed.bias"),
        *(f"rnn.{w}_{s}_l{n}" for w in ("weight", "bias") for s in ("ih", "hh") for n in (0, 1)),
    }
    readout = uh.Affine(cases.normal(rng, 2, 5))
    stacks = [
        uh.Stack(None, layers, None),
        uh.Stack(embed, layers, readout),
        uh.Stack(None, layers[:1], readout),
    ]
    for stack in stacks:
        assert equal(uh.from_state_dict(uh.to_state_dict(stack, kind), kind), stack)


@pytest.mark.parametrize("kind", ["torch.LSTM", "torch.GRU"])
def test_layers_of_different_widths_are_padded(kind: str) -> None:
    xs = cases.sequence(9)
    for widths in ((5, 7), (7, 5)):
        rng = np.random.default_rng(2)
        below = layer_of(kind, hidden=widths[0])
        above = layer_of(kind, 1, hidden=widths[1], d_in=widths[0])
        stack = uh.Stack(None, [below, above], uh.Affine(cases.normal(rng, 2, widths[1])))
        again = uh.from_state_dict(uh.to_state_dict(stack, kind), kind)
        assert [layer.neurons for layer in again.layers] == [7, 7]
        assert cases.relative_error(again(xs), stack(xs)) < 1e-14


@pytest.mark.parametrize("target", ["lstm", "gru"])
@pytest.mark.parametrize("layers", [1, 2])
def test_constructions(target: str, layers: int) -> None:
    # A compiled GRU never resets, so it does not matter that it would do so before the product.
    built = uh.compile(attention(3), target, layers=layers)
    kind = f"torch.{target.upper()}"
    again = uh.from_state_dict(uh.to_state_dict(built, kind), kind)
    xs = cases.sequence(20)
    assert cases.relative_error(again(xs), attention(3)(xs)) < 1e-10


def test_biases_of_torch_add_up_and_may_be_missing() -> None:
    arrays = uh.to_state_dict(layer_of("torch.LSTM"), "torch.LSTM")
    biases = np.random.default_rng(3).normal(size=(2, 20))
    moved = arrays | {"bias_ih_l0": biases[0], "bias_hh_l0": biases[1]}
    layer = uh.from_state_dict(moved, "torch.LSTM")
    np.testing.assert_array_equal(layer.b_g, biases.sum(0)[:5])
    np.testing.assert_array_equal(layer.b_f, biases.sum(0)[5:10])
    bare = {name: array for name, array in arrays.items() if "bias" not in name}
    assert not np.any(uh.from_state_dict(bare, "torch.LSTM").b_o)


def test_nested_parameters_of_flax() -> None:
    layer = layer_of("flax.LSTM")
    nested: dict = {}
    for name, array in uh.to_state_dict(layer, "flax.LSTM").items():
        cell, part = name.split(".")
        nested.setdefault(cell, {})[part] = array
    for source in (
        nested,
        {"params": nested},
        {f"{k}/{p}": v for k in nested for p, v in nested[k].items()},
    ):
        assert equal(uh.from_state_dict(source, "flax.LSTM"), layer)
    # nnx writes if_, because `if` is a word of Python.
    nested["if_"] = nested.pop("if")
    assert equal(uh.from_state_dict(nested, "flax.LSTM"), layer)


def test_parts_of_a_model_are_chosen_by_a_prefix(tmp_path) -> None:
    layer = layer_of("hf.Mamba")
    entries = uh.to_state_dict(layer, "hf.Mamba")
    model = {f"backbone.layers.1.mixer.{name}": array for name, array in entries.items()}
    model["backbone.norm.weight"] = np.ones(3, np.int8)
    safetensors.numpy.save_file(model, tmp_path / "model.safetensors")
    for source in (model, tmp_path / "model.safetensors"):
        read = uh.from_state_dict(source, "hf.Mamba", prefix="backbone.layers.1.mixer.")
        assert equal(read, layer)


def test_sharded_files(tmp_path) -> None:
    layer = layer_of("torch.GRU")
    arrays = uh.to_state_dict(layer, "torch.GRU")
    names = sorted(arrays)
    places = {name: f"model-{1 + i % 2}-of-2.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        shard = {name: arrays[name] for name in names if places[name] == file}
        safetensors.numpy.save_file(shard, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    assert equal(uh.from_state_dict(index, "torch.GRU"), layer)
