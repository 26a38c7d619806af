"""The atlas: which source fits into which recurrent layer, and why not where it does not."""

from underhood.constructions.atlas.answers import AtlasAnswer
from underhood.constructions.atlas.deciding import can
from underhood.constructions.atlas.facts import atlas_targets
from underhood.constructions.atlas.sources import ATLAS_SOURCES
from underhood.constructions.atlas.theorems import THEOREMS
