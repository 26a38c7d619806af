"""A request to the compiler: the source, what was asked for, and the defaults."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from underhood.constructions.construction import Role, Source
from underhood.constructions.sources.factors import (
    Factors,
    compact,
    full,
    low_rank,
    normalised,
    per_head,
)
from underhood.constructions.sources.heads import Attention
from underhood.constructions.sources.minimal import minimal
from underhood.constructions.targets.gated_rnn import (
    gated_rnn,
    memory_roles,
    normalised_rnn,
    query_roles,
)
from underhood.layers import GatedRNN

FORMS: dict[str, Callable[[Attention, bool], Factors]] = {
    "full": per_head(full),
    "compact": per_head(compact),
    "low_rank": per_head(low_rank),
    "minimal": minimal,
}

DTYPES: dict[str, np.dtype] = {"float64": np.dtype(np.float64), "float32": np.dtype(np.float32)}


@dataclass(frozen=True)
class Request:
    """What was asked for, names resolved; None where a default is still open.

    `attention` and `form` are None for a source that is a gated RNN already.
    """

    source: Source
    attention: Attention | None
    form: str | None
    dtype: np.dtype
    order: int | None
    epsilon: float | None
    layers: int | None
    activation: str | None

    @property
    def eps(self) -> float:
        return float(np.finfo(self.dtype).eps)

    def factors(self, *, single: bool) -> Factors:
        """The attention's factors; with `single` every product reads one memory variable."""
        assert self.attention is not None and self.form is not None
        return FORMS[self.form](self.attention, single)

    def rnn(self, *, single: bool = True) -> tuple[GatedRNN, tuple[Role, ...]]:
        """The source as a gated RNN, and the roles of its neurons.

        With `single`, for layers with nonlinearities, it is normalised on the way.
        """
        if isinstance(self.source, GatedRNN):
            rnn = normalised_rnn(self.source) if single else self.source
            return rnn, roles_by_decay(self.source)
        assert self.attention is not None
        factors = normalised(self.factors(single=True)) if single else self.factors(single=False)
        roles = memory_roles(factors) + query_roles(factors)
        return gated_rnn(factors, self.attention.d_in), roles


def roles_by_decay(rnn: GatedRNN) -> tuple[Role, ...]:
    """λ = 0 passes on, anything else remembers."""
    kinds = np.where(np.asarray(rnn.decay) == 0, "query", "memory")
    return tuple(Role(str(kind), f"h[{i}]") for i, kind in enumerate(kinds))
