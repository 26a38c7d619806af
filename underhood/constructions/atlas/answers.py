"""What `can` returns: the answer, the network or the theorem, the error and the witness.

exact       weights that differ from the source by rounding alone, at every length and size
limit       weights with an error as small as one likes, at any fixed length and size of tokens
impossible  a theorem says that there are no such weights, not even in a limit
open        neither built nor excluded; if a theorem excludes exact weights, it is named

A name stands for the example of `sources.py`. Weights of a target given as a layer are not read.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from underhood.common.errors import BadInput
from underhood.constructions.atlas.adversaries import MAKERS, adversary, fit_adversary
from underhood.constructions.atlas.facts import (
    TWO_MIN_GRUS,
    Facts,
    facts_of,
)
from underhood.constructions.atlas.min_gru_pair import pair_error
from underhood.constructions.atlas.sources import (
    ATLAS_SOURCES,
    AnySource,
    adds_up,
    compilable,
    example_of,
    run_source,
    run_wide,
)
from underhood.constructions.atlas.witnesses import (
    Combination,
    Gap,
    RunBatch,
    compare_constant,
    compare_growth,
    degree_combination,
    swap_combination,
)
from underhood.constructions.compiling import compile
from underhood.constructions.construction import Construction
from underhood.layers import Layer, Stack, parameter_count

IS_EXACT, IS_LIMIT, IS_IMPOSSIBLE, IS_OPEN = ANSWERS = ("exact", "limit", "impossible", "open")
# Sequences on which an error is measured, and their tokens.
ERROR_SEQUENCES, ERROR_LENGTH = 4, 32
# ε of the networks whose growth is measured.
COARSE_EPSILON = 1e-3


@dataclass(frozen=True)
class AtlasAnswer:
    """Whether a source fits into a target.

    answer        exact, limit, impossible or open
    order         of a limit, as `Construction.order`
    theorems      that exclude exact weights, or all weights if the answer is impossible
    how, reason   the construction in words, and the answer in words
    construction  what `compile` returned, if it built the network
    layer         the network, if it was built
    length        tokens at which the error is measured
    given         the source itself
    """

    source: str
    target: str
    answer: str
    reason: str
    given: AnySource
    how: str = ""
    order: int | None = None
    theorems: tuple[str, ...] = ()
    construction: Construction | None = None
    layer: Layer | None = None
    length: int = ERROR_LENGTH

    @property
    def theorem(self) -> str | None:
        """The first of the theorems."""
        return self.theorems[0] if self.theorems else None

    @cached_property
    def error(self) -> float | None:
        """The error on fresh sequences, as `Construction.error` has it; None if nothing is run."""
        if self.target == TWO_MIN_GRUS and self.answer == IS_LIMIT:
            source = compilable(self.given)
            assert source is not None
            return pair_error(source)
        if self.layer is None:
            return None
        shape = (ERROR_SEQUENCES, self.length, self.given.d_in)
        xs = np.random.default_rng(1).normal(size=shape)
        expected = run_source(self.given, xs)
        difference = np.max(np.abs(run_wide(self.layer, xs) - expected))
        largest = np.max(np.abs(expected))
        # A source that is zero has a network that is zero, and no relative error.
        return float(difference / largest) if largest > 0 else float(difference)

    @property
    def neurons(self) -> int | None:
        return None if self.layer is None else int(self.layer.neurons)

    @property
    def parameters(self) -> int | None:
        return None if self.layer is None else parameter_count(self.layer)

    def witness(self, *, fitted: bool = True) -> Gap | None:
        """Compute the gap of the first theorem; None without a theorem, or without a layer to run.

        fitted  fit weights of the target to the source; False: take the network that was built

        The source and the layer run on stated tokens, and the larger of both layers' values counts.
        """
        if self.theorem is None or self.theorem == "piecewise":
            return None
        if self.theorem == "coupled":
            return self.coupling() if fitted and self.target in MAKERS else None
        layers: list[Layer] = [self.fitted_network()] if fitted and self.target in MAKERS else []
        if self.construction is not None and self.theorem == "norm":
            layers.append(self.coarse().layer)
        if not layers:
            return None
        gaps = [self.compare(partial(run_wide, layer)) for layer in layers]
        worst = max(range(len(gaps)), key=lambda place: gaps[place].target_value)
        return replace(gaps[worst], gap=min(gap.gap for gap in gaps))

    def fitted_network(self) -> Stack:
        """Return a network of the target whose weights were fitted to the source."""
        if self.source in ATLAS_SOURCES and self.given is example_of(self.source):
            return adversary(self.target, self.source)
        return fit_adversary(self.target, self.given)[0]

    def coarse(self) -> Construction:
        """Return the same limit at an ε at which the tokens of the witness are large."""
        assert self.construction is not None
        return compile(self.construction.source, self.target, epsilon=COARSE_EPSILON)

    def compare(self, layer: RunBatch) -> Gap:
        """Return the gap between the source and a layer of the target."""
        facts, source = facts_of(self.target), runner(self.given)
        if self.theorem == "norm":
            return compare_growth(source, layer, self.given.d_in, facts)
        combination = combination_of(str(self.theorem), facts, self.given.d_in)
        return combination.compare(source, layer)

    def coupling(self) -> Gap:
        """Return the gap of theorem C, of a layer fitted to the source."""
        coupled = facts_of(self.target).coupled and adds_up(compilable(self.given))
        if not (coupled and self.answer != IS_EXACT and self.target in MAKERS):
            raise BadInput(
                f"coupling: theorem C is not run for {self.source} → {self.target}; "
                "uh.can(source, target).theorems names those that hold."
            )
        return compare_constant(runner(self.given), self.fitted_network(), self.given.d_in)


def runner(source: AnySource) -> RunBatch:
    return partial(run_source, source)


def combination_of(theorem: str, facts: Facts, width: int) -> Combination:
    """Return the combination of a theorem of closure."""
    if theorem == "swap":
        return swap_combination(width)
    assert facts.degree is not None
    return degree_combination(width, facts.degree)
