"""`trace` and `attention_score` of torch modules: as of the layers read from them, and checked."""

import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from bridge_cases import layer_of, mamba2
from refusals import refused
from teachers import attention

import underhood as uh

torch = pytest.importorskip("torch")
nn = torch.nn

# float64 is off: a module in float64 switches it on by itself.

XS = np.random.default_rng(1).normal(size=(9, 3))


def drawn(make, *sizes, **options):
    torch.manual_seed(0)
    return make(*sizes, **options, dtype=torch.float64)


def sequential():
    parts = [drawn(nn.Linear, 3, 4), drawn(nn.LSTM, 4, 5), drawn(nn.GRU, 5, 5, 2, dropout=0.5)]
    return nn.Sequential(*parts, drawn(nn.Linear, 5, 2))


# How a module is made, and the names of what it shows itself.
MODULES = {
    "LSTM": (lambda: drawn(nn.LSTM, 3, 5), {"state", "cell", "output"}),
    "GRU": (lambda: drawn(nn.GRU, 3, 5), {"state", "output"}),
    "Sequential": (sequential, {"embed", "layers[0].cell", "layers[1].state", "output"}),
    "compiled LSTM": (
        lambda: uh.to_torch(uh.compile(attention(3), "lstm", order=3)),
        {"layers[0].cell", "output"},
    ),
    "gated RNN": (lambda: uh.to_torch(cases.make("gated RNN")), {"written", "state", "output"}),
    "LRUs": (
        lambda: uh.to_torch(uh.compile(attention(3), "lru", order=1)),
        {"layers[0].written", "layers[1].state", "output"},
    ),
    "MambaMixer": (lambda: uh.to_torch(layer_of("hf.Mamba")), {"u", "C", "gate", "output"}),
    "Mamba2Mixer": (lambda: uh.to_torch(mamba2(np.random.default_rng(0))), {"gate", "output"}),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_the_trace_of_its_layer(name: str) -> None:
    if "Mixer" in name:
        pytest.importorskip("transformers")
    make, shows = MODULES[name]
    module = make()
    module.train()
    traced = uh.trace(module, torch.tensor(XS, requires_grad=True))
    assert module.training
    shown = uh.bridges.own_values(module, XS)
    assert shows <= set(shown) & set(traced)
    with jax.enable_x64(True):
        expected = uh.trace(uh.from_torch(module), jnp.asarray(XS))
    assert list(traced) == list(expected)
    # A mixer casts to float32, and a readout of size ε⁻² amplifies rounding.
    bound = {"MambaMixer": 1e-5, "Mamba2Mixer": 1e-5}.get(name, 1e-8)
    for key, value in traced.items():
        assert value.dtype == expected[key].dtype, key
        assert cases.relative_error(value, expected[key]) < bound, key
        if key in shown:
            np.testing.assert_array_equal(value, shown[key])


def test_a_patch_is_what_torch_computes_from_the_changed_state() -> None:
    lstm = drawn(nn.LSTM, 3, 5, 2)
    new = np.full(5, 0.3)
    patched = uh.trace(lstm, XS, patch={"layers[0].state[3]": new, "layers[1].cell[3]": -new})
    xs = torch.tensor(XS)
    with torch.no_grad():
        h, c = lstm(xs[:4])[1]
        # After token 3 the upper layer runs again, on the changed state of the lower one.
        lower = np.array(uh.trace(lstm, XS)["layers[0].state"])[:3]
        below = torch.tensor(np.vstack([lower, new]))
        upper = nn.LSTM(5, 5, dtype=torch.float64)
        upper.load_state_dict(
            {n.replace("_l1", "_l0"): v for n, v in lstm.state_dict().items() if n.endswith("l1")}
        )
        o = torch.sigmoid(
            upper.weight_ih_l0[15:] @ below[3]
            + upper.weight_hh_l0[15:] @ upper(below[:3])[0][-1]
            + upper.bias_ih_l0[15:]
            + upper.bias_hh_l0[15:]
        )
        c[1] = torch.tensor(-new)
        h[0], h[1] = torch.tensor(new), o * torch.tanh(c[1])
        after, _ = lstm(xs[4:], (h, c))
    assert cases.relative_error(patched["output"][3], h[1].numpy()) < 1e-12
    assert cases.relative_error(patched["output"][4:], after.numpy()) < 1e-12
    before = uh.trace(lstm, XS)["output"][:3]
    assert cases.relative_error(patched["output"][:3], before) < 1e-12


class Doubled(nn.LSTM):
    """A module that computes something else than its weights say."""

    def forward(self, xs, state=None):
        outputs, state = super().forward(xs, state)
        return 2 * outputs, tuple(2 * part for part in state)


class DoubledOutputs(nn.LSTM):
    """The same with the states as they are."""

    def forward(self, xs, state=None):
        outputs, state = super().forward(xs, state)
        return 2 * outputs, state


def test_changed_outputs_are_seen_too() -> None:
    xs = np.random.default_rng(0).normal(size=(5, 3))
    with refused("DoubledOutputs's own 'output' … its forward pass does something else"):
        uh.trace(DoubledOutputs(3, 4, dtype=torch.float64), xs)


def test_a_module_that_computes_something_else_is_refused() -> None:
    with refused("Doubled's own 'state' … its forward pass does something else"):
        uh.trace(drawn(Doubled, 3, 5), XS)
    with refused("a Linear has no state"):
        uh.trace(drawn(nn.Linear, 3, 5), XS)
    with refused("from_torch takes … not a ReLU"):
        uh.trace(nn.ReLU(), XS)
    with refused("tokens [time, d_in]"):
        uh.trace(drawn(nn.GRU, 3, 5), "tokens")
    with refused("xs holds complex numbers"):
        uh.trace(drawn(nn.GRU, 3, 5), np.ones((4, 3)) + 0j)
    with refused("xs holds NaN"):
        uh.trace(drawn(nn.GRU, 3, 5), np.full((4, 3), np.nan))


def test_a_module_is_scored_as_its_layer() -> None:
    module = drawn(nn.GRU, 2, 4)
    options = {"key": jax.random.key(0), "time": 6, "sequences": 64}
    score = uh.attention_score(module, **options)
    assert score.score == uh.attention_score(uh.from_torch(module), **options).score
    with refused("a Linear is a linear map of one token"):
        uh.attention_score(drawn(nn.Linear, 2, 2), **options)
