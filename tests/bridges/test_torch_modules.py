"""PyTorch's own modules against our layers, both ways, in outputs and gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from bridge_cases import equal
from refusals import every_refusal
from teachers import attention

import underhood as uh

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.usefixtures("x64")

BATCH = np.random.default_rng(1).normal(size=(4, 12, 3))


def tensor(array):
    return torch.tensor(np.asarray(array))


def outputs(module, xs):
    """The outputs of a torch module, NumPy's; without the last state that nn.LSTM returns."""
    result = module(tensor(xs))
    return (result[0] if isinstance(result, tuple) else result).detach().numpy()


def drawn(make, *sizes, **options):
    torch.manual_seed(0)
    return make(*sizes, **options, dtype=torch.float64)


THEIRS = {
    "LSTM": lambda: drawn(nn.LSTM, 3, 5, batch_first=True),
    "LSTM, no biases": lambda: drawn(nn.LSTM, 3, 5, batch_first=True, bias=False),
    "LSTM, three layers": lambda: drawn(nn.LSTM, 3, 5, 3, batch_first=True),
    "GRU": lambda: drawn(nn.GRU, 3, 5, batch_first=True),
    "GRU, no biases": lambda: drawn(nn.GRU, 3, 5, batch_first=True, bias=False),
    "GRU, two layers": lambda: drawn(nn.GRU, 3, 5, 2, batch_first=True),
    "Linear": lambda: drawn(nn.Linear, 3, 5),
    "Linear, no bias": lambda: drawn(nn.Linear, 3, 5, bias=False),
}


@pytest.mark.parametrize("name", THEIRS)
def test_what_is_read_computes_the_same(name: str) -> None:
    module = THEIRS[name]()
    layer = uh.from_torch(module)
    assert cases.relative_error(jax.vmap(layer)(jnp.asarray(BATCH)), outputs(module, BATCH)) < 1e-12
    xs = tensor(BATCH[0]).requires_grad_()
    result = module(xs)
    result = result[0] if isinstance(result, tuple) else result
    weights = np.random.default_rng(2).normal(size=tuple(result.shape))
    torch.sum(result * tensor(weights)).backward()
    slopes = eqx.filter_grad(lambda both: jnp.sum(both[0](both[1]) * weights))(
        (layer, jnp.asarray(BATCH[0]))
    )
    assert cases.relative_error(slopes[1], xs.grad.numpy()) < 1e-12
    # Gradients of the weights have their names too. A bias of torch has that of our sum.
    if name in ("LSTM", "GRU"):
        kind = f"torch.{name}"
        gates = {"LSTM": "gfco", "GRU": "rzh"}[name]
        signs = [-1 if gate == "z" else 1 for gate in gates]
        for letter, entry in (("U", "weight_ih_l0"), ("V", "weight_hh_l0"), ("b", "bias_ih_l0")):
            ours = [
                s * getattr(slopes[0], f"{letter}_{g}") for g, s in zip(gates, signs, strict=True)
            ]
            theirs = getattr(module, entry).grad.numpy()
            assert cases.relative_error(np.concatenate(ours), theirs) < 1e-12, (kind, entry)


@pytest.mark.parametrize("name", ["LSTM", "LSTM, three layers", "GRU", "GRU, two layers", "Linear"])
def test_there_and_back(name: str) -> None:
    module = THEIRS[name]()
    layer = uh.from_torch(module)
    again = uh.to_torch(layer)
    assert cases.relative_error(outputs(again, BATCH), outputs(module, BATCH)) < 1e-12
    assert equal(uh.from_torch(again), layer)


def test_sequentials() -> None:
    parts = [drawn(nn.Linear, 3, 4), drawn(nn.GRU, 4, 5, 2, batch_first=True)]
    module = nn.Sequential(*parts, nn.Dropout(0.5), drawn(nn.Linear, 5, 2))
    stack = uh.from_torch(module)
    expected = module[3](parts[1](parts[0](tensor(BATCH)))[0]).detach().numpy()
    assert cases.relative_error(jax.vmap(stack)(jnp.asarray(BATCH)), expected) < 1e-12
    assert cases.relative_error(outputs(uh.to_torch(stack), BATCH), expected) < 1e-12
    assert equal(uh.from_torch(uh.to_torch(stack)), stack)
    assert isinstance(uh.from_torch(nn.Sequential(parts[0])), uh.Affine)


COMPILED = {
    "lstm": {"order": 3},
    "lstm, order 4": {"order": 4},
    "lstm, two layers": {"order": 3, "layers": 2},
    "gru": {"reset": "after"},
    "gru, one layer": {"reset": "after", "layers": 1},
    "gru, before": {},
    "lru": {},
    "lru_in_out": {},
    "lru_in_out_mlp": {},
    "gated_rnn": {},
    "side_gated_rnn": {},
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_attention_runs_in_torch(name: str) -> None:
    source = attention(3)
    built = uh.compile(source, name.split(",")[0], **COMPILED[name])
    module = uh.to_torch(built)
    expected = jax.vmap(source)(jnp.asarray(BATCH))
    assert cases.relative_error(outputs(module, BATCH), expected) < 1e-10
    assert cases.relative_error(outputs(module, BATCH[0]), expected[0]) < 1e-10
    # It streams, in batches and alone.
    state, ys = module.initial_state(len(BATCH)), []
    for t in range(BATCH.shape[1]):
        state, y = module.step(state, tensor(BATCH[:, t]))
        ys.append(y.detach().numpy())
    assert cases.relative_error(np.stack(ys, 1), expected) < 1e-10
    state, y = module.step(module.initial_state(), tensor(BATCH[0, 0]))
    # As everywhere, an error is relative to the largest output of the source.
    largest = np.max(np.abs(expected))
    assert np.max(np.abs(y.detach().numpy() - expected[0, 0])) < 1e-10 * largest


def test_compiled_weights_are_in_the_modules_of_torch_itself() -> None:
    source = attention(3)
    for target, make in (("lstm", nn.LSTM), ("gru", nn.GRU)):
        module = uh.to_torch(uh.compile(source, target, layers=2, order=3))
        assert type(module.rnn) is make
        assert module.rnn.num_layers == 2
        assert {"rnn.weight_ih_l0", "readout.weight"} <= set(module.state_dict())


def test_the_readout_of_a_compiled_lstm_may_be_summed_in_any_order() -> None:
    source = attention(4)
    xs = tensor(np.random.default_rng(0).normal(size=(32, 4)))
    module = uh.to_torch(uh.compile(source, "lstm", order=3))
    W = module.readout.weight
    assert isinstance(module.readout, nn.Linear)
    assert set(module.state_dict()) >= {"readout.weight"}
    with torch.no_grad():
        h = module.rnn(xs)[0]
        exact = np.asarray(h, np.longdouble) @ np.asarray(W, np.longdouble).T
        terms = {
            "plain": (h, W),
            "by parts": (h - nn.functional.pad(h[:, 1:], (0, 1)), torch.cumsum(W, 1)),
        }
        assert torch.equal(module(xs), nn.functional.linear(*terms["by parts"]))
        worst = dict.fromkeys(terms, 0.0)
        for seed in range(8):
            order = torch.randperm(h.shape[1], generator=torch.Generator().manual_seed(seed))
            for name, (left, right) in terms.items():
                summed = (left[:, order] @ right[:, order].T).numpy()
                worst[name] = max(worst[name], cases.relative_error(summed, exact))
    assert 4 * worst["by parts"] < worst["plain"]


OURS = ("gated RNN", "side-gated RNN", "LRU", "LRU in-out", "LRU in-out MLP")


@pytest.mark.parametrize("name", OURS)
def test_our_layers_as_modules(name: str) -> None:
    layer = cases.make(name)
    module = uh.to_torch(layer)
    assert equal(uh.from_torch(module), layer)
    xs = tensor(BATCH[0]).requires_grad_()
    result = module(xs)
    assert cases.relative_error(result.detach().numpy(), layer(jnp.asarray(BATCH[0]))) < 1e-12
    weights = cases.projection(layer, len(xs))
    torch.sum(result * tensor(weights)).backward()
    slopes, slope = eqx.filter_grad(lambda both: jnp.sum(both[0](both[1]) * weights))(
        (layer, jnp.asarray(BATCH[0]))
    )
    assert cases.relative_error(slope, xs.grad.numpy()) < 1e-12
    for name, parameter in module.named_parameters():
        assert cases.relative_error(getattr(slopes, name), parameter.grad.numpy()) < 1e-12, name
    state, ys = module.initial_state(), []
    for x in tensor(BATCH[0]):
        state, y = module.step(state, x)
        ys.append(y)
    assert torch.allclose(torch.stack(ys), result, atol=1e-13)
    assert module(tensor(BATCH[:, :0])).shape == (4, 0, layer.d_out)


def test_stacks_of_ours_come_back() -> None:
    stack = uh.compile(attention(3), "lru").layer
    module = uh.to_torch(stack)
    assert equal(uh.from_torch(module).layers, stack.layers)


def test_tensors_in_a_state_dict() -> None:
    module = THEIRS["LSTM"]()
    assert equal(uh.from_state_dict(module.state_dict(), "torch.LSTM"), uh.from_torch(module))
    half = {name: value.bfloat16() for name, value in module.state_dict().items()}
    layer = uh.from_state_dict(half, "torch.LSTM")
    assert layer.U_f.dtype == np.float32


REFUSED = {
    "torch.RNN … no gate": lambda: uh.from_torch(nn.RNN(3, 5)),
    "bidirectional": lambda: uh.from_torch(nn.LSTM(3, 5, bidirectional=True)),
    "proj_size": lambda: uh.from_torch(nn.LSTM(3, 5, proj_size=2)),
    "not an Embedding … prefix": lambda: uh.from_torch(nn.Embedding(3, 5)),
    "not a NoneType": lambda: uh.from_torch(None),
    "not an LSTMCell": lambda: uh.from_torch(nn.LSTMCell(3, 5)),
    "nn.Sequential is empty": lambda: uh.from_torch(nn.Sequential()),
    "one Linear before": lambda: uh.from_torch(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))),
    "not a ReLU": lambda: uh.from_torch(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.LSTM(3, 5))),
    "layer 0 takes 4": lambda: uh.from_torch(nn.Sequential(nn.Linear(3, 3), nn.LSTM(4, 5))),
    "to_torch takes a construction … not a LinearAttention; compile": (
        lambda: uh.to_torch(attention(3))
    ),
    "not a Mamba; compile": lambda: uh.to_torch(cases.make("Mamba")),
    "not a dict": lambda: uh.to_torch({}),
    "reset='after'": lambda: uh.to_torch(cases.make("GRU")),
    "weight_ih_l0 is on the device meta": lambda: uh.from_torch(nn.LSTM(3, 5, device="meta")),
    "this LSTM is quantised": lambda: uh.from_torch(
        torch.ao.nn.quantized.dynamic.LSTM(3, 5, dtype=torch.float16)
    ),
}

test_refused_modules = every_refusal(REFUSED)
