"""Attention → GLA, RetNet, RWKV-6, RWKV-7, mLSTM: layers whose q, k and v are linear.

Their cores hold attention exactly; the norm behind the core makes it a limit of order 2 in the
size ε of the values (`slices.py`). RetNet's decays are fixed, and mLSTM's forget gate stays below
σ(15), so there several heads with decays γ_a serve for one, Σ_a c_a γ_a^τ = λ^τ. mLSTM also divides
by max(|n·q|, 1), which is 1 for queries of size ε; its values need no ε of their own.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from underhood.constructions.construction import Construction
from underhood.constructions.target import Blueprint
from underhood.constructions.targets.modern.selective import SILU_ONE, reasons_against_unfitted
from underhood.constructions.targets.modern.slices import (
    centred_values,
    log_rate,
    mixer_network,
    repeated,
    slices_of,
    small_signal,
    zero_but,
)
from underhood.layers import GLA, MLSTM, RWKV6, RWKV7, RetNet
from underhood.layers.modern.gla import GATE_DIVISOR, retention_decays
from underhood.layers.modern.mlstm import DIVISOR_EPS
from underhood.layers.modern.rwkv7 import STRONGEST

# Heads for every slice: RetNet's decays are coarse, mLSTM's are within 3e-7 of 1.
RETNET_COPIES, MLSTM_COPIES = 8, 4
SOFT_CAP = 15.0


def reasons_against_retnet(plan: Blueprint) -> list[str]:
    return reasons_against_unfitted(plan, retention_decays, RETNET_COPIES)


def reasons_against_rwkv7(plan: Blueprint) -> list[str]:
    reasons = []
    if plan.attention is not None:
        lowest = min((float(np.min(h.decay, initial=1.0)) for h in plan.attention.heads), default=1)
        if lowest < math.exp(-STRONGEST):
            reasons.append(
                f"RWKV-7's decays lie between exp(−e^−½) = 0.545 and 1; one is {lowest:g}."
            )
    return reasons


def reasons_against_mlstm(plan: Blueprint) -> list[str]:
    lowest = 1 / (1 + math.exp(SOFT_CAP - 1))
    heads = plan.attention.heads if plan.attention is not None else ()
    faster = [decay for head in heads for decay in head.decay if decay < lowest]
    if not faster:
        return []
    return [
        f"The soft cap keeps mLSTM's decays above σ(−15); those from σ(−14) = {lowest:.1e} on are "
        f"built, and one is {min(faster):g}."
    ]


def logit_of(log_decay: np.ndarray) -> np.ndarray:
    """Return σ⁻¹(e^z) for z ≤ 0: +inf at 0 and −inf at −inf."""
    with np.errstate(divide="ignore"):
        return log_decay - np.log(-np.expm1(log_decay))


def build_gla(plan: Blueprint) -> Construction:
    """Return a GLA layer whose gate bias is σ⁻¹(λ^16)."""
    slices, limit = slices_of(plan), small_signal(plan, 2)
    d_k = slices.K.shape[1]
    with np.errstate(divide="ignore"):
        biases = logit_of(GATE_DIVISOR * np.log(slices.decay))
    gain = limit.epsilon * SILU_ONE / math.sqrt(d_k) / math.sqrt(1e-5)
    layer = zero_but(
        GLA,
        W_q=slices.Q,
        W_k=slices.K,
        W_v=limit.epsilon * slices.V,
        b_a=np.repeat(biases[:, None], d_k, axis=1),
        W_z=slices.gates(),
        norm=np.ones(slices.V.shape[1]),
        W_out=slices.out / gain,
    )
    return mixer_network(plan, layer, limit)


def build_retnet(plan: Blueprint) -> Construction:
    """Return a RetNet layer with eight heads for every slice."""
    slices, limit = slices_of(plan), small_signal(plan, 2)
    decays = retention_decays(RETNET_COPIES * len(slices)).reshape(RETNET_COPIES, len(slices))
    slices = repeated(slices, decays, plan.length, plan.dtype)
    gain = limit.epsilon * SILU_ONE / math.sqrt(slices.K.shape[1]) / math.sqrt(1e-5)
    layer = RetNet(
        W_q=slices.Q,
        W_k=slices.K,
        W_v=limit.epsilon * slices.V,
        W_z=slices.gates(),
        norm=np.ones(slices.V.shape[1]),
        W_out=slices.out / gain,
    )
    return mixer_network(plan, layer, limit)


def build_rwkv6(plan: Blueprint) -> Construction:
    """Return an RWKV-6 mixer.

    It reads the memory before it fades: λ r reads λ^{t−s}, and a bonus of 1/λ the token itself.
    """
    slices, limit = centred_values(slices_of(plan)), small_signal(plan, 2)
    d_k = slices.K.shape[1]
    # With λ = 0 the token before is still there, at size ε.
    reading = np.maximum(slices.decay, limit.epsilon)
    layer = zero_but(
        RWKV6,
        W_r=reading[:, None, None] * slices.Q,
        W_k=slices.K,
        W_v=limit.epsilon * slices.V,
        w_0=np.repeat(log_rate(slices.decay)[:, None], d_k, axis=1),
        bonus=np.repeat(1 / reading[:, None], d_k, axis=1),
        W_g=slices.gates(),
        norm=np.ones(slices.V.shape[:2]),
        W_out=slices.out * (math.sqrt(1e-5) / (limit.epsilon * SILU_ONE)),
    )
    return mixer_network(plan, layer, limit)


def build_rwkv7(plan: Blueprint) -> Construction:
    """Return an RWKV-7 mixer; k_k = 0 leaves nothing to erase."""
    slices, limit = centred_values(slices_of(plan)), small_signal(plan, 2)
    with np.errstate(divide="ignore"):
        biases = logit_of(np.log(np.minimum(-np.log(slices.decay) / STRONGEST, 1.0)))
    layer = zero_but(
        RWKV7,
        W_r=slices.Q,
        W_k=slices.K,
        W_v=limit.epsilon * slices.V,
        w_0=np.repeat(biases[:, None], slices.K.shape[1], axis=1),
        # 2 σ(0) = 1.
        W_g2=np.full((*slices.V.shape[:2], 1), 2.0),
        norm=np.ones(slices.V.shape[:2]),
        W_out=slices.out * (math.sqrt(64e-5) / limit.epsilon),
    )
    return mixer_network(plan, layer, limit)


def build_mlstm(plan: Blueprint) -> Construction:
    """Return an mLSTM layer with four heads for every slice, whose gates the soft cap allows."""
    slices, limit = centred_values(slices_of(plan)), small_signal(plan, 2)
    slowest = math.log1p(math.exp(-SOFT_CAP))
    # Rates that double have weights c_a near 1.
    doubling = 2.0 ** np.arange(MLSTM_COPIES)
    rates = doubling * max(2 * slowest, plan.eps ** (1 / MLSTM_COPIES) / plan.length)
    # A slice that fades has the decay that it asks for beside faster ones.
    with np.errstate(divide="ignore"):
        asked = np.clip(-np.log(slices.decay), 0, SOFT_CAP - 1)
    log_decays = -np.where(asked > rates[-1], asked * doubling[:, None], rates[:, None])
    log_decays = np.maximum(log_decays, 1 - SOFT_CAP)
    biases = SOFT_CAP * np.arctanh(logit_of(log_decays) / SOFT_CAP)
    decays = decays_of(biases, plan.dtype)
    slices = repeated(slices, decays, plan.length, plan.dtype)
    # The gate σ(0) = ½, and 1 + 1e-6 in place of the divisor 1.
    gain = limit.epsilon / (2 * math.sqrt(slices.K.shape[1]) * (1 + DIVISOR_EPS) * math.sqrt(1e-6))
    layer = zero_but(
        MLSTM,
        W_q=limit.epsilon * slices.Q,
        W_k=slices.K,
        W_v=slices.V,
        b_f=biases.ravel(),
        norm=np.ones(slices.V.shape[:2]),
        W_out=slices.out / gain,
    )
    return mixer_network(plan, layer, limit)


def decays_of(biases: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the decays σ(cap(b_f)) that an mLSTM has in a precision, as the layer rounds them."""
    with jax.enable_x64(True):
        capped = SOFT_CAP * jnp.tanh(jnp.asarray(biases, dtype) / SOFT_CAP)
        return np.asarray(jnp.exp(jax.nn.log_sigmoid(capped)), float)
