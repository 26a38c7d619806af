"""`compile`: from a source and the name of a target to a `Construction`, or to a refusal."""

import jax
import numpy as np
from jax.typing import DTypeLike

from underhood.common.arrays import FLOATS, float_name
from underhood.common.errors import BadInput, check_name
from underhood.constructions.construction import Construction, ImpossibleConstruction, Source
from underhood.constructions.target import Blueprint
from underhood.constructions.targets.registry import TARGETS
from underhood.layers import GatedRNN, LinearAttention, MultiHead

SOFTMAX = ("MultiheadAttention", "MultiHeadAttention", "MultiHeadDotProductAttention")


def compile(
    source: Source,
    target: str = "gated_rnn",
    form: str | None = None,
    dtype: DTypeLike = "float64",
    *,
    order: int | None = None,
    epsilon: float | None = None,
    layers: int | None = None,
    activation: str | None = None,
) -> Construction:
    """Return the target network that computes the source's function.

    source      a LinearAttention or MultiHead; for lru, lru_in_out, lru_in_out_mlp, mamba, lstm,
                gru and decayed_attention also a GatedRNN
    form        how attention is written as products: full, compact, low_rank or minimal (default)
    dtype       float64 or float32
    order       of the linearisation (`product.py`), 1 to 8; by default chosen for dtype and size
    epsilon     of the linearisation; by default the best for dtype and order on tokens of size one
    layers      1 or 2, where both are possible
    activation  of lru_in_out_mlp; gelu unless given

    Raises ImpossibleConstruction with all reasons if there is no such network.
    """
    # Validate.
    check_name("target", target, TARGETS)
    check_name("dtype", float_name(dtype), FLOATS)
    check_source(source, target)
    precision = FLOATS[float_name(dtype)]
    asked = Blueprint(source, target, precision, form, order, epsilon, layers, activation)
    # Plan, or refuse with all reasons.
    plan = TARGETS[target].plan(asked)
    # Build.
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return TARGETS[target].build(plan)
    except BadInput:
        # Sources are finite, so only an overflow makes a layer refuse its weights.
        raise BadInput(
            f"The source's weights are too large for {precision}; scale them down."
        ) from None


def check_source(source: object, target: str) -> None:
    """Refuse what is no source, or has no numbers yet."""
    kind = type(source).__name__
    if kind in SOFTMAX:
        raise ImpossibleConstruction(
            f"{kind} → {target}",
            [
                "Softmax attention keeps every past token and weighs it by exp(k·q), which no "
                "state of fixed size can hold.",
                "Give its matrices to LinearAttention if the linear part is what you are after.",
            ],
        )
    if not isinstance(source, LinearAttention | MultiHead | GatedRNN):
        raise BadInput(f"compile takes a LinearAttention, a MultiHead or a GatedRNN, not a {kind}.")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(source)):
        raise BadInput("compile reads the weights themselves: call it outside jit, grad and vmap.")
