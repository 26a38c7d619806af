"""The theorems of the atlas by name. docs/theorems.md has their proofs, `witnesses.py` their gaps.

A theorem of exactness says that no weights give the source on all tokens and lengths; a limit may
exist. A theorem of closure says that no limit exists either: all functions of the target satisfy a
linear equation that the source does not.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Theorem:
    """A theorem: its letter, its title, what it says, and whether it excludes limits too."""

    letter: str
    title: str
    statement: str
    closed: bool = False


THEOREMS = {
    "norm": Theorem(
        "N",
        "norm and growth",
        "Behind a norm, or with gates that grow at most linearly, the output grows more slowly "
        "than the source when all tokens are multiplied by α.",
    ),
    "coupled": Theorem(
        "C",
        "coupled write and forget",
        "A token that writes makes the memory fade, so after n equal tokens what is read is "
        "bounded, and in attention it grows as n.",
    ),
    "swap": Theorem(
        "S",
        "swap symmetry",
        "What the first of three tokens adds to the last output stays the same if the other two "
        "change places.",
        closed=True,
    ),
    "degree": Theorem(
        "D",
        "degree",
        "The output is a polynomial of the tokens of bounded degree, so its finite differences of "
        "higher order along a ray are zero.",
        closed=True,
    ),
    "piecewise": Theorem(
        "P",
        "piecewise",
        "A layer of ReLUs is affine on pieces, and the source is not. mLSTM's core with f = 1 is "
        "attention exactly while |n·q| ≤ 1 and grows linearly beyond.",
    ),
    "scale": Theorem(
        "I",
        "scale invariance",
        "A norm forgets the scale of what it is given, but for its eps: the change is at most "
        "eps/(2r²) at mean square r².",
    ),
}
