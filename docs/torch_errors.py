"""Print the table of errors in bridges.md: .venv-bridges/bin/python docs/torch_errors.py.

Attention with d = 4 is compiled into modules of PyTorch, for TEACHERS random teachers, and run on
one sequence of LENGTH tokens in float64. An error is the largest difference from the attention,
over the largest output. It takes about two minutes. MKL multiplies matrices for PyTorch, and its
order of summation depends on the processor: MKL_ENABLE_INSTRUCTIONS=AVX2 before the command gives
that of processors without AVX-512.
"""

import jax
import numpy as np
import torch

import underhood as uh

D, LENGTH, TEACHERS = 4, 32, 40
# What is compiled, and the options of compile.
MODULES = {
    "one `nn.LSTM`, order 3": ("lstm", {"order": 3}),
    "the same with a plain `nn.Linear`": ("lstm", {"order": 3}),
    "one `nn.LSTM`, order 4": ("lstm", {"order": 4}),
    "two layers of `nn.LSTM`, order 3": ("lstm", {"order": 3, "layers": 2}),
    "two layers of `nn.GRU`, order 3": ("gru", {"order": 3, "layers": 2, "reset": "after"}),
}


def errors(name: str, number: int) -> tuple[float, float]:
    """Return the errors of one teacher's network, in PyTorch and in JAX."""
    target, options = MODULES[name]
    teacher_key, token_key = jax.random.split(jax.random.key(number))
    with jax.enable_x64(True):
        xs = np.asarray(jax.random.normal(token_key, (LENGTH, D)))
        attention = uh.LinearAttention.init(d_in=D, key=teacher_key)
        built = uh.compile(attention, target, **options)
        wanted, here = np.asarray(attention(xs)), np.asarray(built.layer(xs))
    module = uh.to_torch(built)
    if "plain" in name:
        module.readout = uh.to_torch(built.layer.readout)
    there = module(torch.tensor(xs)).detach().numpy()
    size = np.abs(wanted).max()
    return float(np.abs(there - wanted).max() / size), float(np.abs(here - wanted).max() / size)


def main() -> None:
    for name in MODULES:
        there, here = np.transpose([errors(name, number) for number in range(TEACHERS)])
        cells = np.median(there), there.max(), here.max()
        above = int(np.sum(there > 1e-10))
        print(f"| {name} | {' | '.join(f'{cell:.1e}' for cell in cells)} | {above} of {TEACHERS} |")


if __name__ == "__main__":
    main()
