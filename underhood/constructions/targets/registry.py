"""The targets: for each kind of network its builder, and how many layers a source may take.

A new target is a file with its construction, a builder here and a line in `TARGETS`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from underhood.constructions.construction import Role
from underhood.constructions.products.product import Product
from underhood.constructions.sources.factors import normalised
from underhood.constructions.targets import decayed_attention as reverse
from underhood.constructions.targets import gru, gru_single, lru, lstm, mamba
from underhood.constructions.targets import lru_in_out_mlp as mlp
from underhood.constructions.targets.gated_rnn import (
    gated_rnn,
    memory_roles,
    query_roles,
    side_gated_rnn,
)
from underhood.constructions.target import Request
from underhood.layers import Layer


@dataclass(frozen=True)
class Built:
    """What a target's builder returns; `product` only where sigmoids were linearised."""

    layer: Layer
    roles: tuple[Role, ...]
    product: Product | None = None


@dataclass(frozen=True)
class Target:
    """A kind of network: its builder, and how many layers each kind of source may take."""

    build: Callable[[Request], Built]
    from_attention: tuple[int, ...]
    from_gated_rnn: tuple[int, ...]
    linearised: bool
    has_forms: bool = True


# An LSTM or GRU of n neurons stores n² numbers per recurrent matrix, so the default order stops
# where a network would become unwieldy.
SENSIBLE_NEURONS = 1500


def choose_product(
    request: Request,
    epsilon_for: Callable[[int, float], float],
    neurons_at: Callable[[int], int] | None = None,
) -> Product:
    """The order and ε asked for; else the order past which the error hardly falls any more."""
    order = request.order
    if order is None:
        order = 3 if request.dtype == np.float64 else 4
        while order > 1 and neurons_at is not None and neurons_at(order) > SENSIBLE_NEURONS:
            order -= 1
    epsilon = request.epsilon
    return Product(order, epsilon_for(order, request.eps) if epsilon is None else epsilon)


def build_gated_rnn(request: Request) -> Built:
    factors = request.factors(single=False)
    assert request.attention is not None
    roles = memory_roles(factors) + query_roles(factors)
    return Built(gated_rnn(factors, request.attention.d_in), roles)


def build_side_gated_rnn(request: Request) -> Built:
    factors = request.factors(single=True)
    return Built(side_gated_rnn(factors), memory_roles(factors))


def build_lru(request: Request) -> Built:
    rnn, roles = request.rnn()
    product = choose_product(request, lru.epsilon_for)
    stack = lru.two_lru_layers(rnn, product)
    passing = lru.pass_roles(stack.layers[0].neurons)
    return Built(stack, passing + roles, product)


def build_lru_in_out(request: Request) -> Built:
    rnn, roles = request.rnn()
    product = choose_product(request, lru.epsilon_for)
    return Built(lru.lru_in_out(rnn, product), roles, product)


def build_lru_in_out_mlp(request: Request) -> Built:
    rnn, _ = request.rnn()
    activation = request.activation or "gelu"
    product = choose_product(request, lambda n, eps: mlp.epsilon_for(n, eps, activation))
    stack, roles = mlp.lru_in_out_mlp(rnn, product.order, product.epsilon, activation)
    return Built(stack, roles, product)


def build_lstm(request: Request) -> Built:
    if request.attention is not None and request.layers != 2:
        factors = normalised(request.factors(single=True))
        product = choose_product(
            request, lstm.one_layer_epsilon, lambda n: len(factors.values) * (n * n + 2 * n)
        )
        stack, roles = lstm.one_lstm_layer(factors, request.attention.d_in, product, request.dtype)
        return Built(stack, roles, product)
    rnn, _ = request.rnn()
    product = choose_product(
        request, lstm.two_layer_epsilon, lambda n: (n + 1) * max(rnn.neurons, rnn.gate_width)
    )
    stack, roles = lstm.two_lstm_layers(rnn, product, request.dtype)
    return Built(stack, roles, product)


def build_gru(request: Request) -> Built:
    if request.layers == 1:
        assert request.attention is not None
        factors = normalised(request.factors(single=True))
        product = choose_product(
            request, gru.epsilon_for, lambda n: (6 * n + 2) * len(factors.values)
        )
        cubic = request.epsilon or gru_single.cubic_scale_for(product.order, request.eps)
        stack, roles = gru_single.one_gru_layer(
            factors, request.attention.d_in, product, cubic, request.dtype
        )
        return Built(stack, roles, product)
    rnn, _ = request.rnn()
    product = choose_product(
        request, gru.epsilon_for, lambda n: (n + 1) * max(rnn.neurons, rnn.gate_width)
    )
    stack, roles = gru.two_gru_layers(rnn, product, request.dtype)
    return Built(stack, roles, product)


def build_mamba(request: Request) -> Built:
    if request.attention is not None and request.layers != 2:
        factors = request.factors(single=True)
        layer = mamba.one_mamba_layer(factors, request.attention.d_in)
        return Built(layer, memory_roles(factors))
    rnn, roles = request.rnn(single=False)
    products = tuple(Role("product", f"gate[{p}]") for p in range(rnn.gate_width))
    return Built(mamba.two_mamba_layers(rnn), roles + products)


def build_mamba_block(request: Request) -> Built:
    assert request.attention is not None
    return Built(*mamba.mamba_block(request.attention))


def build_decayed_attention(request: Request) -> Built:
    rnn, roles = request.rnn(single=False)
    stack = reverse.two_attention_layers(rnn)
    products = tuple(Role("product", f"gate[{p}]") for p in range(rnn.gate_width))
    return Built(stack, (roles + products)[: stack.neurons])


TARGETS: dict[str, Target] = {
    "gated_rnn": Target(build_gated_rnn, (1,), (), linearised=False),
    "side_gated_rnn": Target(build_side_gated_rnn, (1,), (), linearised=False),
    "lru": Target(build_lru, (2,), (2,), linearised=True),
    "lru_in_out": Target(build_lru_in_out, (1,), (1,), linearised=True),
    "lru_in_out_mlp": Target(build_lru_in_out_mlp, (1,), (1,), linearised=True),
    "mamba": Target(build_mamba, (1, 2), (2,), linearised=False),
    "mamba_block": Target(build_mamba_block, (1,), (), linearised=False, has_forms=False),
    "lstm": Target(build_lstm, (1, 2), (2,), linearised=True),
    "gru": Target(build_gru, (2, 1), (2,), linearised=True),
    "decayed_attention": Target(build_decayed_attention, (2,), (2,), linearised=False),
}
