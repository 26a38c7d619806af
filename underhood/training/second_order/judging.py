"""The loss of a network on thousands of sequences that no step has seen.

A start is fitted to a few dozen sequences where the function needs no more. The loss on as few
fresh ones says little: it is often far too low, and the lowest of several starts nearly always is.
"""

import jax
from jaxtyping import PRNGKeyArray

from underhood.tasks import Task
from underhood.training.second_order.examples import sample
from underhood.training.second_order.separable import SeparableNetwork

# So many sequences, or a few more, say what the loss is, to a few percent.
JUDGED_SEQUENCES = 4096
# They are drawn in parts, because long ones fill the memory. Compiling a program for another size
# takes longer than this many parts.
USUAL_PART, MOST_DRAWS = 256, 256


def judged_loss(
    network: SeparableNetwork, task: Task, key: PRNGKeyArray, part: int = USUAL_PART
) -> float:
    """Return the loss on at least `JUDGED_SEQUENCES` sequences that the key draws.

    part  sequences that are drawn at once; a size that has been compiled before takes least time
    """
    part = part if part * MOST_DRAWS >= JUDGED_SEQUENCES else USUAL_PART
    parts = -(-JUDGED_SEQUENCES // part)
    total = 0.0
    for part_key in jax.random.split(key, parts):
        data = sample(task, part_key, part).first(JUDGED_SEQUENCES)
        total += data.cost(data.outputs(network) - data.targets)
    return total / parts
