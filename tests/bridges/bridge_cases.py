"""Random layers of the kinds that other frameworks have, and how mixers compare with ours."""

import equinox as eqx
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np

import underhood as uh


def mamba2(rng, groups: int = 1) -> uh.Mamba2:
    """A Mamba2 with 3 inputs and outputs, 2 heads of 3 channels, and a memory of 4 rows."""
    d, heads, d_v, d_k, width = 3, 2, 3, 4, 3

    def shared(*shape: int, axis: int = 0):
        return np.repeat(cases.normal(rng, *shape), heads // groups, axis=axis)

    return uh.Mamba2(
        **{name: cases.normal(rng, heads, d_v, d) for name in ("W_z", "W_x")},
        **{name: shared(groups, d_k, d) for name in ("W_B", "W_C")},
        W_dt=cases.normal(rng, heads, d),
        conv_x=cases.normal(rng, width, heads, d_v),
        **{name: shared(width, groups, d_k, axis=1) for name in ("conv_B", "conv_C")},
        **{name: cases.normal(rng, heads, d_v) for name in ("b_x", "norm")},
        **{name: shared(groups, d_k) for name in ("b_B", "b_C")},
        **{name: cases.normal(rng, heads) for name in ("dt_bias", "A_log", "D")},
        W_out=cases.normal(rng, d, heads, d_v),
        norm_groups=groups,
    )


def layer_of(kind: str, seed: int = 0, hidden: int = 5, d_in: int = 3):
    rng = np.random.default_rng(seed)
    if kind == "torch.Linear":
        return uh.Affine(cases.normal(rng, 5, 3), cases.normal(rng, 5))
    if kind == "hf.Mamba":
        block = cases.mamba_block(rng)
        return eqx.tree_at(lambda block: block.W_out, block, cases.normal(rng, 3, 4))
    if kind == "hf.Mamba2":
        return mamba2(rng)
    if kind.endswith("LSTM"):
        return uh.LSTM(**cases.gates_of(rng, "fcgo", hidden, d_in))
    c_h = np.zeros(hidden) if kind == "nnx.GRU" else cases.normal(rng, hidden)
    return uh.GRU(**cases.gates_of(rng, "rhz", hidden, d_in), c_h=c_h, reset="after")


KINDS = ("torch.LSTM", "torch.GRU", "torch.Linear", "hf.Mamba", "hf.Mamba2")
KINDS = (*KINDS, "flax.LSTM", "flax.GRU", "nnx.LSTM", "nnx.GRU")


def equal(left, right) -> bool:
    """Whether two layers agree in kind and in every bit but the sign of zeros."""
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        np.array_equal(a, b) and a.dtype == b.dtype
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def drawn(kind, config):
    """A mixer in float64 whose weights are all random, as training leaves them."""
    import torch

    torch.manual_seed(0)
    mixer = kind(config, layer_idx=0).double().eval()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def outputs_as_in_mixer(layer, mixer, batch: np.ndarray):
    """The layer's outputs on a batch, once they and all gradients agree with the mixer's."""
    import torch

    from underhood.bridges.mamba_mixers import keep_float64

    xs = torch.tensor(batch, requires_grad=True)
    ours = jax.vmap(layer)(jnp.asarray(batch))
    with keep_float64():
        theirs = mixer(xs)
        torch.sum(theirs**2).backward()
    assert cases.relative_error(theirs.detach().numpy(), ours) < 1e-12
    slopes, slope = eqx.filter_grad(lambda both: jnp.sum(jax.vmap(both[0])(both[1]) ** 2))(
        (layer, jnp.asarray(batch))
    )
    assert cases.relative_error(slope, xs.grad.numpy()) < 1e-12
    assert cases.relative_error(slopes.A_log, mixer.A_log.grad.numpy()) < 1e-11
    W_out = slopes.W_out.reshape(len(slopes.W_out), -1)
    assert cases.relative_error(W_out, mixer.out_proj.weight.grad.numpy()) < 1e-12
    return ours
