"""What no recurrence can beat: the bits that answers need (Fano), whatever the network.

K distinct values out of C are H = Σ log₂(C − i) bits. A state of B bits between the pairs and the
queries lets through at most B of them. Fano's inequality bounds what is left to know about a value
whose answer is right with probability a by h(a) + (1 − a) log₂(C − 1). So

    B ≥ H − K (h(a) + (1 − a) log₂(C − 1)).
"""

import math

import numpy as np
from scipy import special
from scipy.optimize import brentq

from underhood.tasks.mqar import MQAR


def needed_bits(task: MQAR, accuracy: float) -> float:
    """Return the fewest bits of state with which a task can be solved with this accuracy."""
    count, pairs = task.all_values, task.pairs
    values = float(np.sum(np.log2(count - np.arange(pairs))))
    missing = float(special.entr(accuracy) + special.entr(1 - accuracy)) / math.log(2)
    return values - pairs * (missing + (1 - accuracy) * math.log2(count - 1))


def accuracy_limit(task: MQAR, bits: float) -> float:
    """Return the largest accuracy on a task that a state of `bits` bits allows."""
    if bits >= needed_bits(task, 1.0):
        return 1.0
    guessed = 1 / task.all_values
    if bits <= needed_bits(task, guessed):
        return guessed
    return float(brentq(lambda accuracy: needed_bits(task, accuracy) - bits, guessed, 1.0))


def mean_limit(tasks: list[MQAR], bits: float) -> float:
    """Return the largest mean accuracy over tasks that a state of `bits` bits allows."""
    return float(np.mean([accuracy_limit(task, bits) for task in tasks]))
