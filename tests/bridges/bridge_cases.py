"""Random layers of the kinds that other frameworks have."""

import equinox as eqx
import jax
import layer_cases as cases
import numpy as np

import underhood as uh


def layer_of(kind: str, seed: int = 0, hidden: int = 5, d_in: int = 3):
    rng = np.random.default_rng(seed)
    if kind == "torch.Linear":
        return uh.Affine(cases.normal(rng, 5, 3), cases.normal(rng, 5))
    if kind == "hf.Mamba":
        block = cases.mamba_block(rng)
        return eqx.tree_at(lambda block: block.W_out, block, cases.normal(rng, 3, 4))
    if kind.endswith("LSTM"):
        return uh.LSTM(**cases.gates_of(rng, "fcgo", hidden, d_in))
    c_h = np.zeros(hidden) if kind == "nnx.GRU" else cases.normal(rng, hidden)
    return uh.GRU(**cases.gates_of(rng, "rhz", hidden, d_in), c_h=c_h, reset="after")


KINDS = ("torch.LSTM", "torch.GRU", "torch.Linear", "hf.Mamba")
KINDS = (*KINDS, "flax.LSTM", "flax.GRU", "nnx.LSTM", "nnx.GRU")


def equal(left, right) -> bool:
    """Whether two layers agree in kind and in every bit but the sign of zeros."""
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        np.array_equal(a, b) and a.dtype == b.dtype
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )
