"""The fifteen claims, in the paper's order, then ours; read from `claims.toml`."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Claim:
    """A claim that an experiment tests.

    name      of its experiment
    title     of its section on the page
    sentence  the claim in one line, as `underhood list` shows it
    text      the claim in two or three sentences, as the page states it
    ours      whether we make the claim, and not the paper
    """

    name: str
    title: str
    sentence: str
    text: str
    ours: bool = False


SOURCE = files("underhood.results").joinpath("claims.toml").read_text(encoding="utf-8")
CLAIMS = tuple(Claim(**claim) for claim in tomllib.loads(SOURCE)["claim"])
PAPER_CLAIMS = tuple(claim for claim in CLAIMS if not claim.ours)
