"""The fifteen claims, in the paper's order, read from `claims.toml`."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    name      of its experiment
    title     of its section on the page
    sentence  the claim in one line, as `underhood list` shows it
    text      the claim in two or three sentences, as the page states it
    """

    name: str
    title: str
    sentence: str
    text: str


SOURCE = files("underhood.results").joinpath("claims.toml").read_text(encoding="utf-8")
CLAIMS = tuple(Claim(**claim) for claim in tomllib.loads(SOURCE)["claim"])
