"""Figures made of block pictures: weights with their roles, filling memory, matrices of recall."""

import itertools

import numpy as np

from underhood.common.decay import decay_from_nu, kinds
from underhood.common.files import Json
from underhood.report.charts import Chart, Figure, Film, Groups, Matrices, Matrix
from underhood.report.curves import Arrays, loss_curves

STAGES = ("trained", "pruned", "merged", "polished", "reduced")
# Kernels shown one by one.
MOST_KERNELS = 3


def decays(arrays: Arrays, stage: str) -> np.ndarray:
    return np.asarray(decay_from_nu(np.asarray(arrays[f"{stage}/nu"], float)))


def role_groups(decay: np.ndarray) -> Groups:
    """Return the kinds of neighbouring neurons and their counts, in the order given."""
    groups = itertools.groupby(kinds(decay).tolist())
    return tuple((kind, len(list(group))) for kind, group in groups)


def memory_first(decay: np.ndarray) -> np.ndarray:
    """Return the order by falling λ: memory, then other neurons, then queries."""
    return np.argsort(-np.round(decay, 2), kind="stable")


def stage_pictures(arrays: Arrays, stage: str) -> Matrices:
    """Show all weights of one network, neurons sorted by λ."""
    in_m, in_x, out_m, out_x, D = (
        np.asarray(arrays[f"{stage}/{name}"], float)
        for name in ("W_in_m", "W_in_x", "W_out_m", "W_out_x", "D")
    )
    decay = decays(arrays, stage)
    order = memory_first(decay)
    neurons = role_groups(decay[order])
    inputs: Groups = (("x", in_m.shape[1] - 1), ("1", 1))
    gates: Groups = (("gate outputs", len(out_m)),)
    panels = (
        Matrix("λ", decay[order][:, None], neurons),
        Matrix("W_in_m", in_m[order], neurons, inputs),
        Matrix("W_in_x", in_x[order], neurons, inputs),
        Matrix("W_out_m", out_m[:, order], gates, neurons),
        Matrix("W_out_x", out_x[:, order], gates, neurons),
        Matrix("D", D, (("y", len(D)),), gates),
    )
    title = f"{stage.capitalize()}: {len(decay)} neurons, {D.shape[1]} gate outputs"
    return Matrices(title, panels, 6)


def blocks_figure(arrays: Arrays, result: Json) -> Figure:
    """Show figure2: the weights at every stage, the kernel that merges, and memory as it fills."""
    charts: list[Chart] = [
        stage_pictures(arrays, stage) for stage in STAGES if f"{stage}/nu" in arrays
    ]
    charts += [merging_pictures(arrays)] if arrays["merging"].size else []
    charts += [memory_film(arrays)] if "memory/tokens" in arrays else []
    return Figure(
        (*charts, loss_curves(arrays)),
        "Blue is positive, red negative, pale zero; every panel has its own scale. In the "
        "construction input gates write products of two inputs into memory (λ = 1) and single "
        "inputs, through the constant 1, into queries (λ = 0); every output gate multiplies a "
        "memory with a query. The film shows the attention's key-value matrix over one sequence, "
        "and the same read from the neurons by a regression on other sequences.",
    )


def merging_pictures(arrays: Arrays) -> Matrices:
    """Show gate outputs as outer products of what they read, and the kernel that they share."""
    neurons = role_groups(decays(arrays, "pruned"))
    gates, D = arrays["merging"], arrays["pruned/D"]
    m, x = arrays["pruned/W_out_m"][gates], arrays["pruned/W_out_x"][gates]
    outer = np.einsum("ja,jb->jab", m, x)
    kernels = (outer + outer.transpose(0, 2, 1)) / 2
    panels = [
        Matrix(f"gate output {gate + 1}", kernel, neurons, neurons)
        for gate, kernel in zip(gates[:MOST_KERNELS], kernels, strict=False)
    ]
    # They reach the outputs along one direction, each with its own weight.
    direction = D[:, gates[np.argmax(np.linalg.norm(D[:, gates], axis=0))]]
    weight = direction @ D[:, gates] / max(float(direction @ direction), 1e-300)
    together = np.einsum("j,jab->ab", weight, kernels)
    panels.append(Matrix(f"all {len(gates)} together", together, neurons, neurons))
    left_out = len(gates) - len(panels) + 1
    more = f" ({left_out} more not shown)" if left_out > 0 else ""
    title = f"Gate outputs that merge into fewer{more}"
    if len(gates) < 2:
        title, panels = "Nothing merges here; the kernel of one gate output", panels[:1]
    return Matrices(title, tuple(panels), len(panels))


def memory_film(arrays: Arrays) -> Film:
    """Show key-values token by token: the attention's, the neurons', and their difference."""
    parts = [arrays[f"memory/{name}"] for name in ("tokens", "attention", "neurons")]
    axes = tuple(((name, count),) for name, count in zip("vk", parts[1].shape[1:], strict=True))
    frames = tuple(
        (
            Matrix("token", token[:, None], (("x", len(token)),)),
            Matrix("attention", attention, *axes),
            Matrix("neurons", neurons, *axes),
            Matrix("difference", neurons - attention, *axes),
        )
        for token, attention, neurons in zip(*parts, strict=True)
    )
    names = tuple(f"token {t + 1} of {len(frames)}" for t in range(len(frames)))
    title = "Key-value memory Σ v kᵀ as it fills: attention's, and read from neurons"
    return Film(title, frames, names)


def stored_figure(arrays: Arrays, result: Json) -> Figure:
    """Show recall_gated: what each neuron receives from every pair, and from every query."""
    decay = decays(arrays, "pruned")
    received, order = arrays["received"], memory_first(decay)
    symbols = received.shape[1]
    axes: tuple[Groups, Groups] = ((("x", symbols),), (("y", symbols),))
    pairs = tuple(Matrix(f"λ = {decay[place]:.2f}", received[place], *axes) for place in order)
    by_query, neurons = arrays["received_by_query"][order], role_groups(decay[order])
    asked = Matrix("", by_query, neurons, (("x of the query", symbols),))
    return Figure(
        (
            Matrices("What a neuron receives from the pair (x, y)", pairs, 4),
            Matrices("What neurons receive from a query", (asked,), 1),
            loss_curves(arrays),
        ),
        "The student with the fewest neurons, after pruning. The paper's neuron receives v_x at "
        "one y and nothing at the others, and its query neuron holds v_x of the query.",
    )


def recalled_figure(arrays: Arrays, result: Json) -> Figure:
    """Show recall_side: the weights of side gating, and M for every pair."""
    M = arrays["M"][0]
    symbols = len(M)
    halves: Groups = (("x", symbols), ("y", symbols))
    neurons = role_groups(decays(arrays, "pruned"))
    weights = tuple(
        Matrix(name, arrays[f"pruned/{name}"], neurons, halves)
        for name in ("W_in_x", "W_side", "W_in_m")
    )
    D = Matrix("Dᵀ", arrays["pruned/D"].T, neurons, (("y", symbols),))
    pairs = tuple(
        Matrix(f"x{x + 1} y{y + 1}", M[x, y]) for x in range(symbols) for y in range(symbols)
    )
    return Figure(
        (
            Matrices("Weights after pruning", (*weights, D), 4),
            Matrices("M(x, y): what every pair adds to the memory", pairs, symbols, together=True),
            loss_curves(arrays),
        ),
        "The first student. Above: W_in_x and W_side read x, W_in_m reads y, and D repeats it. "
        "Below: one panel per pair, with the scores y' down and the query x' across; attention "
        "would have the one blue entry at (y, x) and nothing else.",
    )
