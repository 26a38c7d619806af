"""Attention → Mamba-2, gated DeltaNet, DeltaNet, KDA, lightning: layers with silu on q, k and v.

Δ = 1 and A_log = log(−log λ) give every slice its decay exactly. The delta rule subtracts what the
memory holds along k; with keys of size ε that is of relative size ε². A norm bounds the layer's
output, and attention grows as |x|³, so none of these can be exact (docs/modern.md); Falcon-H1 has
no norm, and silu(u) − silu(−u) = u makes it exact.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from underhood.constructions.construction import Construction
from underhood.constructions.target import Blueprint
from underhood.constructions.targets.modern.slices import (
    Slices,
    antithetic,
    current_only,
    fit_decay,
    log_rate,
    mixer_network,
    repeated,
    slices_of,
    small_signal,
    zero_but,
)
from underhood.layers import KDA, DeltaNet, GatedDeltaNet, Lightning, Mamba2
from underhood.layers.modern.gated_deltanet import DeltaRule
from underhood.layers.modern.gla import lightning_decays
from underhood.layers.modern.parts import UNIT_EPS

# softplus of it is 1.
UNIT_STEP = math.log(math.expm1(1.0))
SILU_ONE = 1 / (1 + math.exp(-1.0))
# Heads of a lightning layer for every slice.
COPIES = 4
# How well fixed decays must add up to the decay that is asked for.
FITTED_TO = {np.dtype("float64"): 1e-9, np.dtype("float32"): 1e-5}


def silu_slices(plan: Blueprint) -> tuple[Slices, int, float]:
    """Return slices, the order, and what the silus on q, k and v leave of the product."""
    slices = slices_of(plan)
    return (antithetic(slices), 2, 1.0) if plan.order == 2 else (slices, 1, 1 / 8)


def reasons_against_lightning(plan: Blueprint) -> list[str]:
    return reasons_against_unfitted(plan, partial(lightning_decays, index=79, depth=80))


def reasons_against_unfitted(
    plan: Blueprint, decays_of: Callable[[int], np.ndarray], copies: int = COPIES
) -> list[str]:
    """List the source's decays that the fixed decays of a layer do not add up to."""
    if plan.attention is None or not plan.attention.fades:
        return []
    slices = slices_of(plan)
    decays = decays_of(copies * len(slices)).reshape(copies, len(slices))
    promised = FITTED_TO[plan.dtype]
    missed = [
        decay
        for number, decay in enumerate(slices.decay)
        if fit_decay(decay, decays[:, number], plan.length, plan.dtype)[1] > promised
    ]
    if not missed:
        return []
    return [f"Its decays are fixed numbers near 1 that do not add up to a decay of {missed[0]:g}."]


def reasons_against_deltanet(plan: Blueprint) -> list[str]:
    fades = plan.attention is not None and plan.attention.fades
    return ["DeltaNet has no decay; gated_deltanet has."] if fades else []


def no_convolution(slices: Slices, *, keys: str, values: str) -> dict[str, np.ndarray]:
    """Return the kernels of signals as large as keys and as values, by the signals' letters."""
    heads, d_k, d_v = len(slices), slices.K.shape[1], slices.V.shape[1]
    kernels = {f"conv_{name}": current_only(4, heads, d_k) for name in keys}
    return kernels | {f"conv_{name}": current_only(4, heads, d_v) for name in values}


def mamba2(
    slices: Slices, *, values: float, keys: float, gain: float, normed: bool = True
) -> Mamba2:
    """Return a mixer with signals of these sizes and the readout divided by `gain`."""
    heads, d_v, _ = slices.V.shape
    return zero_but(
        Mamba2,
        W_z=slices.gates(),
        W_x=values * slices.V,
        W_B=keys * slices.K,
        W_C=keys * slices.Q,
        **no_convolution(slices, keys="BC", values="x"),
        dt_bias=np.full(heads, UNIT_STEP),
        A_log=log_rate(slices.decay),
        norm=np.ones((heads, d_v)) if normed else None,
        W_out=slices.out / (gain * SILU_ONE),
        # transformers norms heads that share B and C by themselves, and here each head has its own.
        norm_groups=heads,
    )


def build_mamba2(plan: Blueprint) -> Construction:
    """Return a Mamba-2 mixer with its norm."""
    slices, order, silus = silu_slices(plan)
    limit = small_signal(plan, order)
    # The doubled silus are exact at every size, so only the norm needs small signals.
    keys = 1.0 if order == 2 else limit.epsilon
    gain = silus * limit.epsilon * keys**2 / math.sqrt(1e-5)
    return mixer_network(plan, mamba2(slices, values=limit.epsilon, keys=keys, gain=gain), limit)


def build_falcon_h1(plan: Blueprint) -> Construction:
    """Return a Mamba-2 mixer without norm, which is exact."""
    layer = mamba2(antithetic(slices_of(plan)), values=1.0, keys=1.0, gain=1.0, normed=False)
    return mixer_network(plan, layer, None)


def delta_network(
    plan: Blueprint,
    kind: type[DeltaRule],
    further: Callable[[Slices], dict[str, np.ndarray]],
    *,
    gate: float,
    eps: float,
) -> Construction:
    """Return a delta rule; β = σ(0) = ½, and keys and queries are normed.

    further  returns the weights that not all delta rules have
    gate     what multiplies the normed output
    """
    slices, order, silus = silu_slices(plan)
    limit = small_signal(plan, order)
    epsilon = limit.epsilon
    gain = silus * gate / math.sqrt(eps)
    left = gain * epsilon**3 / UNIT_EPS / math.sqrt(slices.K.shape[1]) / 2
    layer = zero_but(
        kind,
        W_q=epsilon * slices.Q,
        W_k=epsilon * slices.K,
        W_v=epsilon * slices.V,
        **no_convolution(slices, keys="qk", values="v"),
        norm=np.ones(slices.V.shape[1]),
        W_out=slices.out / left,
        eps=eps,
        **further(slices),
    )
    return mixer_network(plan, layer, limit)


def build_deltanet(plan: Blueprint) -> Construction:
    """Return a DeltaNet."""
    return delta_network(plan, DeltaNet, lambda slices: {}, gate=1.0, eps=1e-5)


def build_gated_deltanet(plan: Blueprint) -> Construction:
    """Return a gated DeltaNet."""

    def gates(slices: Slices) -> dict[str, np.ndarray]:
        steps = np.full(len(slices), UNIT_STEP)
        return {"A_log": log_rate(slices.decay), "dt_bias": steps, "W_z": slices.gates()}

    return delta_network(plan, GatedDeltaNet, gates, gate=SILU_ONE, eps=1e-6)


def build_kda(plan: Blueprint) -> Construction:
    """Return a KDA mixer; its gate is σ(0) = ½."""

    def gates(slices: Slices) -> dict[str, np.ndarray]:
        steps = np.full(slices.K.shape[:2], UNIT_STEP)
        return {"A_log": log_rate(slices.decay), "dt_bias": steps}

    return delta_network(plan, KDA, gates, gate=0.5, eps=1e-5)


def build_lightning(plan: Blueprint) -> Construction:
    """Return the last lightning layer of a MiniMax, with four heads for every slice."""
    slices = slices_of(plan)
    limit = small_signal(plan, 1)
    heads = COPIES * len(slices)
    decays = lightning_decays(heads, 79, 80).reshape(COPIES, len(slices))
    slices = repeated(slices, decays, plan.length, plan.dtype)
    layer = zero_but(
        Lightning,
        W_q=limit.epsilon * slices.Q,
        W_k=limit.epsilon * slices.K,
        W_v=limit.epsilon * slices.V,
        norm=np.ones(slices.V.shape[:2]),
        # Three silus and a gate of σ(0) = ½.
        W_out=slices.out * (16 * math.sqrt(1e-6) / limit.epsilon**3),
    )
    return mixer_network(plan, layer, limit)
