"""Associative recall without training: accuracy by formula, the best codes, compiled networks.

`predict` gives the accuracy of a memory of dk × dv numbers on MQAR, `best` the best split of a
state, and `build` a network with that state. docs/recall.md has the derivations.
"""

from underhood.recall.building import RecallNetwork, build_recall as build
from underhood.recall.codes import Codes, welch_floor
from underhood.recall.prediction import Split, best, predict
from underhood.recall.running import Measured
