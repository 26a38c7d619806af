"""A request to the compiler: the source, what was asked for, and the defaults."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from underhood.constructions.construction import Role, Source
from underhood.constructions.factors import Factors, compact, full, low_rank, per_head
from underhood.constructions.gated_rnn import gated_rnn, memory_roles, query_roles
from underhood.constructions.minimal import minimal
from underhood.constructions.source import Attention
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
    """What was asked for, with names resolved and defaults still open (None)."""

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

    def factors(self, *, single: bool, default: str = "minimal") -> Factors:
        """The source's factors in the form asked for."""
        assert self.attention is not None
        return FORMS[self.form or default](self.attention, single)

    def accurate_form(self) -> str:
        """The default of linearised targets: the paper's products, without those of rank zero.

        The minimal form has fewer products but larger ones, which costs a factor of about 1.6
        in rounding; where only rounding limits the error, accuracy comes first.
        """
        if self.form is not None:
            return self.form
        assert self.attention is not None
        sizes = {
            name: len(FORMS[name](self.attention, True).values) for name in ("full", "low_rank")
        }
        return "low_rank" if sizes["low_rank"] < sizes["full"] else "full"

    def rnn(self) -> tuple[GatedRNN, tuple[Role, ...] | None]:
        """The source as a gated RNN, and its roles if it was attention."""
        if isinstance(self.source, GatedRNN):
            return self.source, None
        assert self.attention is not None
        factors = FORMS[self.accurate_form()](self.attention, True)
        roles = memory_roles(factors) + query_roles(factors)
        return gated_rnn(factors, self.attention.d_in), roles
