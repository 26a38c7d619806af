"""`compile`: from a source and the name of a target to a `Construction`, or to a refusal."""

import difflib
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from underhood.common.errors import BadInput
from underhood.constructions.construction import Construction, Source
from underhood.constructions.impossibility import ImpossibleConstruction
from underhood.constructions.sources.heads import read_attention
from underhood.constructions.targets.refusals import reasons_against, refuse_source
from underhood.constructions.targets.registry import TARGETS
from underhood.constructions.target import DTYPES, FORMS, Request
from underhood.layers import GatedRNN, LinearAttention, MultiHead, Stack
from underhood.layers.lru import ACTIVATIONS


def compile(
    source: Source,
    target: str = "gated_rnn",
    form: str | None = None,
    dtype: str = "float64",
    *,
    order: int | None = None,
    epsilon: float | None = None,
    layers: int | None = None,
    activation: str | None = None,
) -> Construction:
    """The target network that computes the source's function.

    source: LinearAttention or MultiHead; or a GatedRNN for lru, lru_in_out, lru_in_out_mlp, mamba,
    lstm, gru and decayed_attention. form: full, compact, low_rank or minimal, which is the default:
    how attention is written as products. order, epsilon: of the linearisation (`product.py`),
    chosen for the dtype and for tokens of size one unless given (larger tokens want a smaller
    epsilon). layers: 1 or 2, where both are possible. activation: of lru_in_out_mlp.
    Raises ImpossibleConstruction with all reasons when there is no such network.
    """
    kind = TARGETS[one_of("target", target, TARGETS)]
    form = None if form is None else one_of("form", form, FORMS)
    precision = DTYPES[one_of("dtype", dtype, DTYPES)]
    activation = None if activation is None else one_of("activation", activation, ACTIVATIONS)
    check_number("order", order, int, 1, 8)
    check_number("layers", layers, int, 1, 2)
    check_number("epsilon", epsilon, float, 1e-12, 10.0)
    if not isinstance(source, LinearAttention | MultiHead | GatedRNN):
        refuse_source(source, target)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(source)):
        raise BadInput("compile reads the weights themselves: call it outside jit, grad and vmap.")
    attention = None if isinstance(source, GatedRNN) else read_attention(source)
    request = Request(source, attention, form, precision, order, epsilon, layers, activation)
    if reasons := reasons_against(request, target, kind):
        raise ImpossibleConstruction(f"{type(source).__name__} → {target}", reasons)
    if attention is not None and kind.has_forms:
        request = replace(request, form=form or "minimal")
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            built = kind.build(request)
        except BadInput:
            # Sources are finite, so only an overflow on the way makes a layer refuse its weights.
            raise BadInput(f"The source's weights are too large for {dtype}; scale them.") from None
        layer = jax.tree.map(
            lambda leaf: np.asarray(leaf, precision) if eqx.is_inexact_array(leaf) else leaf,
            built.layer,
        )
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(layer)):
        raise BadInput(f"The network's weights are too large for {dtype}; scale the source down.")
    if isinstance(layer, Stack) and kind.linearised:
        layer = Stack(layer.embed, layer.layers, layer.readout, needs_x64=precision == np.float64)
    product = built.product
    return Construction(
        source=source,
        target=target,
        form=request.form,
        layer=layer,
        roles=built.roles,
        exact=not kind.linearised,
        epsilon=None if product is None else product.epsilon,
        order=None if product is None else product.order,
    )


def one_of(what: str, name: Any, known: dict[str, Any]) -> str:
    """The name, or a refusal that lists the valid ones."""
    if isinstance(name, str) and name in known:
        return name
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise BadInput(f"Unknown {what} {name!r}; use one of {', '.join(known)}.{hint}")


def check_number(what: str, value: Any, kind: type, low: float, high: float) -> None:
    """Refuse what is not a number of the right kind within its range."""
    if value is None:
        return
    whole, real = int | np.integer, int | float | np.integer | np.floating
    fits = isinstance(value, whole if kind is int else real)
    if not fits or isinstance(value, bool) or not low <= value <= high:
        words = "a whole number" if kind is int else "a number"
        raise BadInput(f"{what} must be {words} from {low:g} to {high:g}, not {value!r}.")
