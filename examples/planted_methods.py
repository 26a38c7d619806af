"""Three methods that look for attention in planted networks, and write their answers.

    python examples/planted_methods.py FOLDER ANSWERS decompile
    python examples/planted_methods.py FOLDER ANSWERS correlation
    python examples/planted_methods.py FOLDER ANSWERS regression

FOLDER comes from `underhood plant`, and `underhood grade FOLDER ANSWERS` grades the answers. Copy
this file to test a method of your own: it must fill in `Answer` from a layer alone.
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import jax
import numpy as np

import underhood as uh

# Of the probes by correlation. A neuron is what it correlates with at least this much, and a
# network is attention if at least this share of its neurons is something.
STRONG, MANY = 0.9, 0.5
# Of the regression: attention leaves less than this share of the outputs, by size.
LEFT = 1e-3
SEQUENCES, LENGTH = 16, 64


@dataclass(frozen=True)
class Answer:
    verdict: str
    heads: list[dict[str, list]] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)


def decompile(layer: uh.Layer) -> Answer:
    """Read the exact function off the weights; for gated and side-gated RNNs."""
    result = uh.decompile(layer)
    several = isinstance(result.attention, uh.MultiHead)
    heads = result.attention if several else uh.MultiHead(list(result.heads) or [result.attention])
    W_O = np.eye(heads.d_heads) if heads.W_O is None else np.asarray(heads.W_O)
    parts = np.split(W_O, np.cumsum([head.d_out for head in heads.heads])[:-1], axis=1)
    matrices = [
        {"W_V": (part @ head.W_V).tolist(), "M": (head.W_K.T @ head.W_Q).tolist()}
        for part, head in zip(parts, heads.heads, strict=True)
    ]
    roles = ["dead" if role.kind == "other" else role.kind for role in result.neurons]
    return Answer(result.verdict, matrices, roles)


def correlation(layer: uh.Layer) -> Answer:
    """Probe every neuron for the sums Σ x_a x_b and for x_c, and the outputs for their products."""
    d = layer.d_in
    states, outputs, sums, tokens = observe(layer)
    memory, query = strongest(states, sums), strongest(states, tokens)
    roles = np.where(memory >= query, "memory", "query")
    roles = np.where(np.maximum(memory, query) >= STRONG, roles, "dead")
    verdict = "attention" if np.mean(roles != "dead") >= MANY else "not attention"
    # The coefficient of one product alone, as if the others were not there.
    products = sums[:, :, None] * tokens[:, None]
    alone = np.einsum("npc,no->opc", products, outputs) / np.sum(products**2, axis=0)
    heads = split_into_heads(alone, d)[:1]
    return Answer(verdict, heads, roles.tolist())


def regression(layer: uh.Layer) -> Answer:
    """Fit the outputs by all products Σ x_a x_b · x_c at once; the neurons are not looked at."""
    _, outputs, sums, tokens = observe(layer)
    products = (sums[:, :, None] * tokens[:, None]).reshape(len(sums), -1)
    fitted = np.linalg.lstsq(products, outputs)[0]
    left = np.linalg.norm(outputs - products @ fitted) / np.linalg.norm(outputs)
    heads = split_into_heads(fitted.T.reshape(layer.d_out, -1, layer.d_in), layer.d_in)
    return Answer("attention" if left <= LEFT else "not attention", heads)


def observe(layer: uh.Layer) -> list[np.ndarray]:
    """Return states, outputs, the sums Σ x_a x_b for a ≤ b, and tokens, all on random sequences."""
    xs = np.random.default_rng(0).normal(size=(SEQUENCES, LENGTH, layer.d_in))
    with jax.enable_x64(True):
        traces = [uh.trace(layer, jax.numpy.asarray(x)) for x in xs]
    names = sorted(name for name in traces[0] if name.split(".")[-1] == "state")
    states = [np.hstack([np.real(trace[name]) for name in names]) for trace in traces]
    a, b = np.triu_indices(layer.d_in)
    sums = np.cumsum(xs[..., a] * xs[..., b], axis=1)
    outputs = [trace["output"] for trace in traces]
    return [np.concatenate(parts) for parts in (states, outputs, sums, xs)]


def split_into_heads(T: np.ndarray, d: int) -> list[dict[str, list]]:
    """Write Σ T_opc (x_a x_b)_p x_c as a sum of W_V ⊗ M, the largest term first."""
    a, b = np.triu_indices(d)
    square = np.zeros((len(T), d, d, d))
    square[:, a, b] += T / 2
    square[:, b, a] += T / 2
    U, s, Vt = np.linalg.svd(square.reshape(len(T) * d, d * d), full_matrices=False)
    return [
        {"W_V": (s[h] * U[:, h]).reshape(len(T), d).tolist(), "M": Vt[h].reshape(d, d).tolist()}
        for h in np.flatnonzero(s > 1e-9 * s[0])
    ]


def strongest(states: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return the largest correlation, by size, of each neuron with a feature."""
    both = [part - part.mean(axis=0) for part in (states, features)]
    left, right = (part / np.maximum(np.linalg.norm(part, axis=0), 1e-300) for part in both)
    return np.abs(left.T @ right).max(axis=1)


METHODS = {"decompile": decompile, "correlation": correlation, "regression": regression}


def main(folder: Path, answers: Path, method: str) -> list[Answer]:
    index = json.loads((folder / "index.json").read_text("utf-8"))
    target, given = index["planting"]["target"], []
    answers.mkdir(parents=True, exist_ok=True)
    for network in index["networks"]:
        weights = folder / "networks" / network["name"] / "model.safetensors"
        foreign = target.startswith("torch.")
        layer = uh.from_state_dict(weights, target) if foreign else uh.load(weights)
        given.append(METHODS[method](layer))
        (answers / f"{network['name']}.json").write_text(json.dumps(asdict(given[-1])), "utf-8")
    return given


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
