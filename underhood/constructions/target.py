"""What a target is: a kind of network, the sources and options it takes, and its builder.

`Target.plan` refuses what was asked for, with all reasons at once, or fills in the defaults.
`Target.build` turns the plan into the finished network with a role per neuron.
A new target is a file in `targets/` with a builder, and an entry in the registry there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import equinox as eqx
import jax
import numpy as np

from underhood.common.errors import BadInput, check_name, refuse
from underhood.common.numbers import number_problems, whole_problems
from underhood.constructions.construction import (
    Construction,
    ImpossibleConstruction,
    Role,
    roles_of,
)
from underhood.constructions.products.product import DEFAULT_LENGTH, Limit, Product
from underhood.constructions.sources import factors as forms
from underhood.constructions.sources.gated_rnn import gated_rnn_from, normalised_rnn
from underhood.constructions.sources.heads import Attention, Source, read_attention
from underhood.constructions.sources.magnitude import out_of_range
from underhood.constructions.sources.minimal import minimal
from underhood.constructions.sources.token_size import (
    attention_at,
    gated_rnn_at,
    with_tokens_divided,
)
from underhood.layers import GatedRNN, Layer, Stack
from underhood.layers.gru import RESETS
from underhood.layers.lru import ACTIVATIONS

FORMS: dict[str, Callable[[Attention, bool], forms.Factors]] = {
    "full": forms.full,
    "compact": forms.compact,
    "low_rank": forms.low_rank,
    "minimal": minimal,
}

# An LSTM or GRU of n neurons stores n² numbers per recurrent matrix, so the default order stops
# where a network would become unwieldy.
SENSIBLE_NEURONS = 1500

# The smallest default, 2⁻⁶⁰, is in the range, also where it is printed with two digits.
LEAST_EPSILON = 1e-19

# Longer sequences than this cannot be asked for.
LONGEST_ASKED = 2**20


@dataclass(frozen=True)
class Blueprint:
    """A source, a target's name and the caller's choices; `Target.plan` fills in form and layers.

    The choices are those of `compile`; dtype is the precision of the network. Exact targets serve
    every length and size, so `Target.plan` resets these two.
    """

    source: Source
    target: str
    dtype: np.dtype
    form: str | None = None
    order: int | None = None
    epsilon: float | None = None
    layers: int | None = None
    activation: str | None = None
    reset: str | None = None
    length: int = DEFAULT_LENGTH
    size: float = 1.0

    def __post_init__(self) -> None:
        for name, known in (("form", FORMS), ("activation", ACTIVATIONS), ("reset", RESETS)):
            if getattr(self, name) is not None:
                check_name(name, getattr(self, name), known)
        problems = [] if self.order is None else whole_problems(most=8, order=self.order)
        problems += [] if self.layers is None else whole_problems(most=2, layers=self.layers)
        if self.epsilon is not None:
            problems += number_problems(least=LEAST_EPSILON, most=10.0, epsilon=self.epsilon)
        problems += whole_problems(most=LONGEST_ASKED, length=self.length)
        problems += number_problems(above=True, size=self.size)
        refuse(problems, about="compile")

    @cached_property
    def attention(self) -> Attention | None:
        """The source's heads over x/size; None if the source is a gated RNN."""
        if isinstance(self.source, GatedRNN):
            return None
        attention = read_attention(self.source)
        return attention if self.size == 1 else attention_at(attention, self.size)

    @property
    def eps(self) -> float:
        """Rounding in the network's precision."""
        return float(np.finfo(self.dtype).eps)

    def factors(self, *, direct_reads: bool) -> forms.Factors:
        """Write the attention as memory, queries and products.

        direct_reads  every product reads one memory variable
        """
        assert self.attention is not None and self.form is not None
        return FORMS[self.form](self.attention, direct_reads)

    def gated_rnn(self, *, unit: bool = False) -> tuple[GatedRNN, tuple[Role, ...]]:
        """Return the source over x/size as a gated RNN, and the roles of its neurons.

        unit  with gates of size one, for layers with nonlinearities
        """
        source = self.source
        if isinstance(source, GatedRNN):
            # λ = 0 passes on, anything else remembers.
            kinds = np.where(np.asarray(source.decay) == 0, "query", "memory")
            roles = tuple(Role(str(kind), f"h[{i}]") for i, kind in enumerate(kinds))
            rnn = source if self.size == 1 else gated_rnn_at(source, self.size)
            return normalised_rnn(rnn) if unit else rnn, roles
        factors = self.factors(direct_reads=unit)
        memory = roles_of("memory", factors.memory_labels)
        rnn = gated_rnn_from(forms.normalised(factors) if unit else factors, source.d_in)
        return rnn, memory + roles_of("query", factors.query_labels)

    def product(
        self,
        epsilon_for: Callable[[int, float], float],
        neurons_at: Callable[[int], int] | None = None,
        default: int | None = None,
    ) -> Product:
        """Choose order and ε, unless given; a higher order than the default gains hardly anything.

        epsilon_for  the best ε at an order and eps
        neurons_at   the network's size at an order, if it grows too large at high ones
        default      the order to begin with; None: 3 in float64, 4 in float32
        """
        order = self.order
        if order is None:
            order = default or (3 if self.dtype == np.float64 else 4)
            while order > 1 and neurons_at is not None and neurons_at(order) > SENSIBLE_NEURONS:
                order -= 1
        epsilon = epsilon_for(order, self.eps) if self.epsilon is None else self.epsilon
        return Product(order, epsilon, self.dtype, self.length)

    def finish(
        self, layer: Layer, roles: tuple[Role, ...], product: Product | Limit | None = None
    ) -> Construction:
        """Give the network its precision, and its tokens their size.

        product  what the network was linearised by; None: it is exact

        Weights that the precision cannot hold are refused.
        """
        if self.size != 1:
            assert isinstance(layer, Stack), "linearised networks are stacks"
            layer = with_tokens_divided(layer, self.size)
        # The logarithm of a decay may be infinite; the layers check where.
        count = infinite_count(layer)
        with np.errstate(over="ignore"):
            layer = jax.tree.map(
                lambda leaf: np.asarray(leaf, self.dtype) if eqx.is_inexact_array(leaf) else leaf,
                layer,
            )
        if infinite_count(layer) != count:
            raise BadInput(out_of_range(str(self.dtype), self.size, large=True))
        made = Construction(self.source, self.target, self.form, layer, roles, product is None)
        if product is None:
            return made
        made = replace(made, epsilon=product.epsilon, order=product.order)
        return replace(made, length=self.length, size=float(self.size))


def infinite_count(layer: Layer) -> int:
    """Count the weights that are no finite numbers."""
    return sum(int(np.sum(~np.isfinite(leaf))) for leaf in jax.tree.leaves(layer))


@dataclass(frozen=True)
class Target:
    """A kind of network that sources are compiled into.

    build                           returns the finished network of a plan
    from_attention, from_gated_rnn  how many layers it may take, the default first; (): impossible
    takes                           options that it takes besides `layers`
    reasons_against                 lists what it has against a source, beyond what all targets have
    not_from_gated_rnn              why a gated RNN is no source for it
    proves                          tells whether the reasons against a source are a proof
    orders                          the orders that it has; (): every order
    """

    build: Callable[[Blueprint], Construction]
    from_attention: tuple[int, ...]
    from_gated_rnn: tuple[int, ...] = ()
    takes: tuple[str, ...] = ("form",)
    reasons_against: Callable[[Blueprint], list[str]] = lambda plan: []
    not_from_gated_rnn: str = (
        "A gated RNN has an output gate over two state vectors, which this target lacks."
    )
    orders: tuple[int, ...] = ()
    proves: Callable[[Blueprint], bool] = lambda plan: False

    @property
    def exact(self) -> bool:
        """Whether the network needs no ε: it has no sigmoids that serve as products."""
        return "epsilon" not in self.takes

    def plan(self, asked: Blueprint) -> Blueprint:
        """Choose what is left open, or refuse with all reasons.

        ImpossibleConstruction is raised if the target cannot hold the source, or is not built for
        it, and BadInput if only the options are wrong.
        """
        if self.exact:
            asked = replace(asked, length=DEFAULT_LENGTH, size=1.0)
        attention = asked.attention
        possible = self.from_gated_rnn if attention is None else self.from_attention
        reasons = [] if possible else [self.not_from_gated_rnn]
        if asked.form == "compact" and "form" in self.takes and attention is not None:
            reasons += forms.reasons_against_compact(attention)
        proved = bool(reasons and possible) or self.proves(asked)
        reasons += self.reasons_against(asked)
        options = self.reasons_against_options(asked, possible)
        if reasons:
            request = f"{type(asked.source).__name__} → {asked.target}"
            raise ImpossibleConstruction(request, reasons + options, proved=proved)
        if options:
            raise BadInput(f"compile: {' '.join(options)}")
        has_form = attention is not None and "form" in self.takes
        form = asked.form or "minimal" if has_form else None
        return replace(asked, form=form, layers=asked.layers or possible[0])

    def reasons_against_options(self, asked: Blueprint, possible: tuple[int, ...]) -> list[str]:
        """List the options that the target or the source has no use for.

        possible  how many layers the target may take
        """
        reasons, name = [], asked.target
        if asked.form is not None and asked.attention is None:
            reasons.append(
                "form= says how attention is written as products; a gated RNN has its own."
            )
        elif asked.form is not None and "form" not in self.takes:
            reasons.append(f"form= has no meaning for {name}, which holds x kᵀ whole.")
        given = [option for option in ("order", "epsilon") if getattr(asked, option) is not None]
        if given and self.exact:
            reasons.append(f"The target {name} is exact, so {' and '.join(given)} cannot be set.")
        elif asked.order is not None and self.orders and asked.order not in self.orders:
            orders = " or ".join(map(str, self.orders))
            reasons.append(f"The target {name} takes order {orders}, not {asked.order}.")
        if possible and asked.layers is not None and asked.layers not in possible:
            counts, plural = " or ".join(map(str, possible)), "s" * (possible != (1,))
            reasons.append(f"The target {name} takes {counts} layer{plural}, not {asked.layers}.")
        if asked.activation is not None and "activation" not in self.takes:
            reasons.append("activation= belongs to lru_in_out_mlp.")
        if asked.reset is not None and "reset" not in self.takes:
            reasons.append("reset= belongs to gru.")
        return reasons
