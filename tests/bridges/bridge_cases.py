"""Random layers of the kinds that other frameworks have."""

import equinox as eqx
import jax
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
