"""The texts beside planted networks: a model card for each, and what is asked of a method."""

from underhood.common.files import Json
from underhood.planting.answers import ROLE_KINDS

LOADING = {
    "torch.LSTM": """import torch
from safetensors.torch import load_file

weights = load_file("model.safetensors")  # embed.*, rnn.* and readout.*, float64
width = weights["rnn.weight_hh_l0"].shape[1]
embed, readout = (torch.nn.Linear(*weights[f"{end}.weight"].T.shape, bias=f"{end}.bias" in weights)
                  for end in ("embed", "readout"))
depth = sum(name.startswith("rnn.weight_ih_l") for name in weights)
rnn = torch.nn.LSTM(embed.out_features, width, depth, batch_first=True)
model = torch.nn.ModuleDict({"embed": embed, "rnn": rnn, "readout": readout}).double()
model.load_state_dict(weights)
ys = model["readout"](model["rnn"](model["embed"](xs))[0])  # xs [batch, time, d], float64
""",
}
LOADING["torch.GRU"] = LOADING["torch.LSTM"].replace("nn.LSTM", "nn.GRU")
OUR_LOADING = """import jax
import underhood as uh

layer = uh.load("model.safetensors")
with jax.enable_x64(True):  # the weights need float64
    ys = layer(xs)  # xs [time, d]
"""


def network_card(entry: Json, target: str) -> str:
    """Return the model card of one network; it does not say what is inside."""
    library = "pytorch" if target.startswith("torch.") else "underhood"
    code = LOADING.get(target, OUR_LOADING)
    return f"""---
library_name: {library}
tags: [interpretability, planted-circuit]
---

# Planted network {entry["name"]}

A network of the kind `{target}` with {entry["neurons"]} neurons. It maps a sequence of tokens
x [time, {entry["d_in"]}] to outputs y [time, {entry["d_out"]}]. Its weights were computed, not
trained. It may hold linear attention,

    y_t = Σ_h W_V^h (Σ_s λ^(t−s) x_s x_sᵀ) M^h x_t,    s ≤ t,

behind a change of basis, rescaled, duplicated and dead neurons, and a random order of neurons. Or
it may be a decoy, which holds none. The README.md two folders above says what to find.

```python
{code}```
"""


def folder_card(index: Json) -> str:
    """Return the page of a folder: what is asked, the format of answers, how they are graded."""
    planting, last = index["planting"], index["networks"][-1]["name"]
    kinds = ", ".join(ROLE_KINDS)
    return f"""# Planted networks

{index["count"]} networks of the kind `{planting["target"]}`, `networks/000` to `networks/{last}`.
Each maps tokens x [time, {planting["d"]}] to outputs of the same size. Some hold linear attention,

    y_t = Σ_h W_V^h (Σ_s λ^(t−s) x_s x_sᵀ) M^h x_t,    s ≤ t,

and some are decoys. A method reads `networks` alone. `keys` has the solutions.

## Answers

A method writes `answers/000.json` and so on, each with

| field | meaning |
|---|---|
| `verdict` | "attention" or "not attention" |
| `heads` | a list of {{"W_V": [[...]], "M": [[...]]}}; M = W_KᵀW_Q; y is the sum over heads |
| `roles` | for each neuron, layer by layer, its kind: {kinds}, or "" for none |

All fields may be left out. A file `000.safetensors` does too: tensors `heads.0.W_V`, `heads.0.M`
and so on, and metadata `verdict` and `roles` (a JSON list).

## Grades

    underhood grade FOLDER ANSWERS

| grade | meaning |
|---|---|
| verdict | whether it is right; no verdict is wrong |
| error | relative error of Σ_h W_V^h ⊗ M^h, made symmetric in x_s x_sᵀ; 1 for no answer |
| roles | share of neurons with the right kind |
| solved | the verdict is right; for attention also error ≤ 0.01 |

W_V and M are determined up to a factor, W_V·a and M/a, which the error does not see. It sees only
what the function determines. Decoys have no error and no roles.
"""
