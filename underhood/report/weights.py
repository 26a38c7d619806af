"""Figures made of block pictures: weights with their roles, filling memory, matrices of recall."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np

from underhood.common.decay import decay_from_nu, kinds
from underhood.common.files import Json
from underhood.report.charts import (
    Axis,
    Chart,
    Charts,
    Film,
    Groups,
    Line,
    Matrices,
    Matrix,
    Plot,
    Series,
    StoryStep,
)
from underhood.report.curves import Arrays, loss_curves

STAGES = ("untrained", "trained", "pruned", "merged", "fine-tuned", "polished", "reduced")
# Stages that the story on the page's first screen shows, and what it says of them; what it says of
# the pruned network is counted.
STORY = {
    "untrained": "Before training all weights are random.",
    "trained": "This network has seen only the inputs and outputs of an attention layer. The "
    "pictures are the weights of its output gates: blue positive, red negative.",
    "pruned": "",
}
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


def story_of(arrays: Arrays) -> tuple[StoryStep, ...]:
    """Tell in a few pictures what training finds: weights, what pruning leaves, attention."""
    steps = []
    for stage, sentence in STORY.items():
        if f"{stage}/nu" not in arrays:
            continue
        pictures = stage_pictures(arrays, stage)
        out = tuple(panel for panel in pictures.panels if panel.title in ("W_out_m", "W_out_x"))
        if stage == "pruned":
            count = Counter(kinds(decays(arrays, stage)).tolist())
            sentence = (
                f"Of the {count.total()} neurons that pruning keeps, {count['memory']} never "
                f"forget (λ = 1) and {count['query']} hold the present token (λ = 0)."
            )
            sentence += f" {count['other']} are in between." if count["other"] else ""
        title = pictures.title.split(",")[0]
        steps.append(StoryStep(Matrices(title, out, 2), sentence))
    if steps and "memory/tokens" in arrays:
        steps.append(memory_step(arrays))
    return tuple(steps)


def memory_step(arrays: Arrays) -> StoryStep:
    """Show the attention's memory after the last token beside what is read from neurons."""
    frame = memory_film(arrays).frames[-1]
    panels = tuple(panel for panel in frame if panel.title in ("attention", "neurons"))
    attention, neurons = (panel.values for panel in panels)
    gap = float(np.max(np.abs(neurons - attention))) / max(float(np.max(np.abs(attention))), 1e-300)
    reduced = "reduced/nu" in arrays
    of = f"{len(arrays['reduced/nu' if reduced else 'pruned/nu'])} neurons"
    sentence = (
        f"Attention's memory Σ v kᵀ after {len(arrays['memory/tokens'])} tokens, and the same read "
        f"from the {of}{' of the polished and reduced network' if reduced else ''}. "
        f"The largest difference is {gap:.0e} of the largest entry."
    )
    return StoryStep(Matrices("The attention in them", panels, 2, together=True), sentence)


def blocks_charts(arrays: Arrays, result: Json) -> Charts:
    """Show figure2: the weights at every stage, the kernel that merges, and memory as it fills."""
    stages = [stage for stage in STAGES if f"{stage}/nu" in arrays]
    charts: list[Chart] = [stage_pictures(arrays, stage) for stage in stages]
    charts += [merging_pictures(arrays)] if arrays["merging"].size else []
    charts += [memory_film(arrays)] if "memory/tokens" in arrays else []
    return (*charts, loss_curves(arrays))


def readings_charts(arrays: Arrays, result: Json) -> Charts:
    """Show weight_decay: one matrix by every reading, and the neurons left in every group."""
    networks = [name.removesuffix("/nu") for name in arrays if name.endswith("/nu")]
    panels = []
    for name in networks:
        pictures = {panel.title: panel for panel in stage_pictures(arrays, name).panels}
        panels.append(replace(pictures["W_out_m"], title=name))
    groups = list(dict.fromkeys(row["group"] for row in result["rows"]))
    counts = Series(
        "students",
        np.array([groups.index(row["group"]) for row in result["rows"]], float),
        np.array([row["neurons"] for row in result["rows"]], float),
        mark="points",
    )
    axes = Axis("group of students", names=tuple(groups)), Axis("neurons left")
    return (
        Matrices("W_out_m as trained; one teacher", tuple(panels), len(panels)),
        Plot("Neurons that pruning leaves", *axes, (counts,), (Line("the paper's", 14.0),)),
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


def stored_charts(arrays: Arrays, result: Json) -> Charts:
    """Show recall_gated: what each neuron receives from every pair, and from every query."""
    decay, received = decays(arrays, "pruned"), arrays["received"]
    order, symbols = memory_first(decay), received.shape[1]
    axes: tuple[Groups, Groups] = ((("x", symbols),), (("y", symbols),))
    pairs = tuple(Matrix(f"λ = {decay[place]:.2f}", received[place], *axes) for place in order)
    by_query, neurons = arrays["received_by_query"][order], role_groups(decay[order])
    asked = Matrix("", by_query, neurons, (("x of the query", symbols),))
    return (
        Matrices("What a neuron receives from the pair (x, y)", pairs, 4),
        Matrices("What neurons receive from a query", (asked,), 1),
        loss_curves(arrays),
    )


def recalled_charts(arrays: Arrays, result: Json) -> Charts:
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
    places = np.ndindex(symbols, symbols)
    pairs = tuple(Matrix(f"x{x + 1} y{y + 1}", M[x, y]) for x, y in places)
    return (
        Matrices("Weights after pruning", (*weights, D), 4),
        Matrices("M(x, y): what every pair adds to the memory", pairs, symbols, together=True),
        loss_curves(arrays),
    )
