"""Random layers: shapes, keys, and that every public layer is in the tables."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest
from layer_cases import CASES, CLOSE, every_layer, make, relative_error, sequence, shapes
from naive import naive

import underhood as uh

pytestmark = pytest.mark.usefixtures("x64")

GATES = "W_in_m W_in_x [5 4], W_out_m W_out_x [6 5], D [2 6]"
COMPLEX = "nu theta_log gamma_log [5], B_re B_im [5 3], C_re C_im [2 5], D [2 3]"
MAMBA = """W_input [4 3], b_input W_delta [4], b_delta [], W_A [5 4], b_A [5], W_side [2 3],
    W_B [5 4 4], b_B [5 4], W_C [2 5 4], b_C [2 5]"""
BLOCK = """W_in_u W_in_z [4 3], conv [6 4], b_conv b_dt D [4], W_x_dt [2 4], W_dt [4 2],
    W_x_B W_x_C [5 4], A_log [4 5], W_out [2 4]"""


def gates(letters, d_in=3, part=""):
    sizes = {"U": f"[5 {d_in}]", "V": "[5 5]", "b": "[5]"}
    return ", ".join(f"{part}{s}_{gate} {sizes[s]}" for gate in letters for s in "UVb")


def gru(width, *, key):
    return uh.GRU.init(d_in=width, hidden=width, key=key)


SIZES = {"d_in": 3, "hidden": 5, "d_out": 2}
STACKED = ", ".join(gates("rhz", d_in=5, part=f"layers.{i}.") for i in (0, 1))
HEADS = ", ".join(f"heads.{i}.W_V [2 3], heads.{i}.W_K heads.{i}.W_Q [4 3]" for i in (0, 1))
HEADED = {"d_in": 3, "d_out": 2, "heads": 2, "d_k": 4, "d_v": 5}
SHORT = HEADED | {"width": 3}
QKV, OUT = "W_q W_k [2 4 3], W_v [2 5 3]", "W_out [2 2 5]"
DELTA = f"{QKV}, W_b [2 3], conv_q conv_k [3 2 4], conv_v [3 2 5], norm [5], {OUT}"

# A layer, its sizes, and the shapes of its weights.
INITS = {
    "attention": (uh.LinearAttention, {"d_in": 3, "d_v": 2, "d_k": 4}, "W_V [2 3], W_K W_Q [4 3]"),
    "square attention": (uh.LinearAttention, {"d_in": 3}, "W_V W_K W_Q [3 3]"),
    "heads": (
        uh.MultiHead,
        {"d_in": 3, "heads": 2, "d_v": 2, "d_k": 4},
        f"{HEADS}, W_O [4 4]",
    ),
    "gated": (uh.GatedRNN, SIZES | {"gated": 6}, f"{GATES}, nu [5]"),
    "dense": (uh.DenseGatedRNN, SIZES | {"gated": 6}, f"{GATES}, A [5 5]"),
    "side": (uh.SideGatedRNN, SIZES, "W_in_m W_in_x W_side [5 3], nu [5], D [2 5]"),
    "LRU": (uh.LRU, SIZES, f"{COMPLEX}, W_m W_x [2 2]"),
    "LRU in-out": (uh.LRUInOut, SIZES, f"{COMPLEX}, W_in_m W_in_x [3 3], W_m W_x [2 2]"),
    "MLP": (uh.LRUInOutMLP, SIZES, f"{COMPLEX}, W_in_1 W_in_2 [3 3], W_out_1 W_out_2 [2 2]"),
    "Mamba": (uh.Mamba, SIZES | {"inner": 4}, MAMBA),
    "block": (
        uh.MambaBlock,
        {"d_in": 3, "d_out": 2, "inner": 4, "state": 5, "width": 6, "rank": 2},
        BLOCK,
    ),
    "LSTM": (uh.LSTM, {"d_in": 3, "hidden": 5}, gates("fcgo")),
    "GRU": (uh.GRU, {"d_in": 3, "hidden": 5}, gates("rhz")),
    "Mamba-2": (
        uh.Mamba2,
        SHORT,
        f"""W_z W_x [2 5 3], W_B W_C [2 4 3], W_dt [2 3], conv_x [3 2 5], conv_B conv_C [3 2 4],
        b_x norm [2 5], b_B b_C [2 4], dt_bias A_log D [2], {OUT}""",
    ),
    "Falcon-H1": (
        uh.Mamba2,
        SHORT | {"normed": False},
        f"""W_z W_x [2 5 3], W_B W_C [2 4 3], W_dt [2 3], conv_x [3 2 5], conv_B conv_C [3 2 4],
        b_x [2 5], b_B b_C [2 4], dt_bias A_log D [2], {OUT}""",
    ),
    "DeltaNet": (uh.DeltaNet, SHORT, DELTA),
    "gated DeltaNet": (
        uh.GatedDeltaNet,
        SHORT,
        f"{DELTA}, W_a [2 3], A_log dt_bias [2], W_z [2 5 3]",
    ),
    "KDA": (
        uh.KDA,
        SHORT | {"rank": 6},
        f"""{DELTA}, W_f1 W_g1 [6 3], W_f2 [2 4 6], W_g2 [2 5 6], A_log [2], dt_bias [2 4]""",
    ),
    "GLA": (
        uh.GLA,
        HEADED | {"rank": 6},
        f"{QKV}, W_a1 [6 3], W_a2 [2 4 6], b_a [2 4], W_z [2 5 3], norm [5], {OUT}",
    ),
    "RetNet": (uh.RetNet, HEADED, f"{QKV}, W_z [2 5 3], norm [5], {OUT}"),
    "lightning": (uh.Lightning, HEADED, f"{QKV}, W_z [2 5 3], norm [2 5], {OUT}"),
    "HGRN2": (uh.HGRN2, HEADED, f"W_q W_f [2 4 3], W_v [2 5 3], norm [2 5], {OUT}"),
    "RWKV-6": (
        uh.RWKV6,
        HEADED | {"rank": 6},
        f"""mu_r mu_k mu_v mu_w mu_g [3], W_r W_k [2 4 3], W_v W_g [2 5 3], W_w1 [6 3],
        W_w2 [2 4 6], w_0 bonus [2 4], norm b_norm [2 5], {OUT}""",
    ),
    "RWKV-7": (
        uh.RWKV7,
        HEADED | {"rank": 6},
        f"""mu_r mu_w mu_k mu_v mu_a mu_g [3], W_r W_k [2 4 3], W_v [2 5 3], W_w1 W_a1 W_g1 [6 3],
        W_w2 W_a2 [2 4 6], W_g2 [2 5 6], w_0 a_0 k_k k_a r_k [2 4], norm b_norm [2 5], {OUT}""",
    ),
    "mLSTM": (
        uh.MLSTM,
        HEADED,
        f"{QKV}, W_i W_f [2 3], b_i b_f [2], W_o [2 5 3], norm [2 5], {OUT}",
    ),
    "RG-LRU": (
        uh.RGLRU,
        {"d_in": 3, "d_out": 2, "inner": 5, "width": 6},
        """W_x W_y [5 3], b_x b_y b_conv b_i b_r Lambda [5], conv [6 5], W_i W_r [5 5],
        W_out [2 5], b_out [2]""",
    ),
    "Jamba block": (
        uh.JambaBlock,
        {"d_in": 3, "d_out": 2, "inner": 5, "state": 4, "width": 6, "rank": 7},
        """W_in_u W_in_z [5 3], conv [6 5], b_conv b_dt D [5], W_x_dt [7 5], W_x_B W_x_C [4 5],
        norm_dt [7], norm_B norm_C [4], W_dt [5 7], A_log [5 4], W_out [2 5]""",
    ),
    "minGRU": (uh.MinGRU, SIZES, "W_z W_h [5 3], W_out [2 5]"),
    "stack": (
        uh.Stack,
        {"make_layer": gru, "d_in": 4, "hidden": 5, "d_out": 2, "depth": 2},
        f"embed.W [5 4], embed.b [5], {STACKED}, readout.W [2 5]",
    ),
}


def made(name, seed=0):
    kind, sizes, _ = INITS[name]
    return kind.init(**sizes, key=jax.random.key(seed))


def named_arrays(layer):
    leaves = jax.tree_util.tree_leaves_with_path(layer)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


@pytest.mark.parametrize("name", INITS)
def test_init_has_the_documented_shapes_and_runs(name):
    layer = made(name)
    expected = shapes(INITS[name][2])
    assert {path: leaf.shape for path, leaf in named_arrays(layer).items()} == expected
    xs = sequence(6, d_in=layer.d_in)
    assert relative_error(eqx.filter_jit(layer)(xs), naive(layer, xs)) < CLOSE


# What starts the same whatever the key: biases at zero, and Mamba's documented Δ, A and D.
NOT_RANDOM = {
    "LSTM": [f"b_{gate}" for gate in "fcgo"],
    "GRU": [f"b_{gate}" for gate in "rhz"],
    "stack": ["embed.b", *(f"layers.{i}.b_{gate}" for i in (0, 1) for gate in "rhz")],
    "Mamba": ["b_input", "W_delta", "b_delta", "b_A", "b_B"],
    "block": ["b_conv", "A_log", "D"],
    "Mamba-2": ["b_x", "b_B", "b_C", "D", "norm"],
    "Falcon-H1": ["b_x", "b_B", "b_C", "D"],
    **{
        name: ["norm"]
        for name in ("DeltaNet", "gated DeltaNet", "KDA", "RetNet", "lightning", "HGRN2")
    },
    "GLA": ["b_a", "norm"],
    "RWKV-6": [*(f"mu_{c}" for c in "rkvwg"), "w_0", "norm", "b_norm"],
    "RWKV-7": [
        *(f"mu_{c}" for c in "rwkvag"),
        *("w_0", "a_0", "k_k", "k_a", "r_k", "norm", "b_norm"),
    ],
    "mLSTM": ["b_i", "b_f", "norm"],
    "Jamba block": ["b_conv", "A_log", "D", "norm_dt", "norm_B", "norm_C"],
    "RG-LRU": ["b_x", "b_y", "b_conv", "b_i", "b_r", "b_out"],
}


@pytest.mark.parametrize("name", INITS)
def test_init_depends_on_its_key_alone(name):
    first, again, changed = (named_arrays(made(name, seed)) for seed in (0, 0, 1))
    for path, leaf in first.items():
        np.testing.assert_array_equal(leaf, again[path])
    # Entry by entry, because a matrix may be the sum of a random diagonal and random noise.
    fixed = {path for path, leaf in first.items() if np.any(leaf == changed[path])}
    assert fixed == set(NOT_RANDOM.get(name, []))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (HEADED | {"d_w": 3}, "GLA.init.. got an unexpected keyword argument 'd_w'"),
        (HEADED | {"width": 3}, "GLA.init.. got an unexpected keyword argument 'width'"),
        ({"d_in": 3, "heads": 2, "d_k": 4}, "GLA.init.. is missing the keyword argument 'd_out'"),
    ],
)
def test_sizes_are_checked_as_arguments_are(sizes, words):
    with pytest.raises(TypeError, match=words):
        uh.GLA.init(**sizes, key=jax.random.key(0))


def test_every_public_layer_is_in_the_tables():
    offered = (getattr(uh, name) for name in uh.__all__)
    kinds = {kind for kind in offered if isinstance(kind, type) and issubclass(kind, uh.Layer)}
    kinds.remove(uh.Layer)
    assert {type(make(name)) for name in CASES} == kinds
    assert {kind for kind, *_ in INITS.values()} == kinds


@every_layer
def test_layers_are_frozen(name):
    layer = make(name)
    for field in dataclasses.fields(layer):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(layer, field.name, getattr(layer, field.name))
