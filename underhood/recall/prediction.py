"""Accuracy by formula on a task, and the best split of a state into keys and values.

Token by token, random filler writes too: a key followed by a value is stored, whoever put them
there. A query is followed by a value in half of its slots, which stores a wrong value at the asked
key; two filler tokens are a key and a value in a quarter of all cases. The formulas take the
expected number of such writes before a query, and average over where queries stand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from underhood.common.errors import BadInput, check_name, refuse
from underhood.common.numbers import is_whole, whole_problems
from underhood.recall.codes import CODES, DENSE_CODES, HASH_CODES
from underhood.recall.formulas import LINEAR_RULE, RULES, answer_accuracy
from underhood.tasks.mqar import MQAR, PUBLISHED_TEST

# Widths of dense value codes among which `best` chooses, and its hash codes' width.
DENSE_VALUES, CIRCLE = (16, 32, 48, 64, 96, 128, 192), 2
# Groups of queries over which the filler's writes are averaged, and sequences drawn to place them.
GROUPS, PLACED = 4, 2000


@dataclass(frozen=True)
class Split:
    """A state divided into codes for keys and values, and what it is predicted to recall.

    state     numbers that may be carried between tokens
    carried   numbers that are: dk·dv, and dk more for the shift register, token by token
    keys      dk
    values    dv
    accuracy  predicted, the mean over the test sets
    by_pairs  predicted for each number of pairs
    """

    state: int
    carried: int
    keys: int
    values: int
    codes: str
    rule: str
    stacked: bool
    accuracy: float
    by_pairs: dict[int, float]

    @property
    def bytes(self) -> int:
        """The carried state in float32."""
        return 4 * self.carried


def predict(
    pairs: int | MQAR, *, keys: int, values: int, codes: str = DENSE_CODES, rule: str = LINEAR_RULE
) -> float:
    """Return the accuracy that the formulas of docs/recall.md give.

    pairs   K, with Zoology's vocabulary of 8192 and no filler; or the task itself, with its
            vocabulary and its filler
    keys    numbers of a key's code, dk; buckets if the codes are a hash
    values  numbers of a value's code, dv
    codes   dense or hash
    rule    linear: what is written is added; delta: it replaces what the key recalls
    """
    if isinstance(pairs, MQAR):
        task = pairs
    else:
        refuse(whole_problems(pairs=pairs), about="predict")
        task = MQAR(pairs, 4 * pairs, random_fill=False)
    check_split(task, keys, values, codes, rule, about="predict")
    sizes = {"all_keys": task.all_keys, "all_values": task.all_values}
    right = [
        answer_accuracy(codes, rule, task.pairs, keys, values, **sizes, asked=asked, extra=extra)
        for asked, extra in filler_writes(task)
    ]
    # A sum of shares can be above 1 by rounding.
    return min(float(np.mean(right)), 1.0)


def check_split(task: MQAR, keys: int, values: int, codes: str, rule: str, *, about: str) -> None:
    """Refuse sizes and names that no codes have."""
    check_name("codes", codes, CODES)
    check_name("rule", rule, RULES)
    least = 1 if codes == HASH_CODES else 2
    problems = whole_problems(least=least, keys=keys, values=values)
    if is_whole(keys) and keys > task.all_keys:
        problems.append(f"keys is {keys} but there are {task.all_keys} keys; give that or less")
    refuse(problems, about=about)


@cache
def filler_writes(task: MQAR) -> tuple[tuple[float, float], ...]:
    """Return groups of queries: expected writes at asked keys, and at random keys, before them."""
    if task.stacked or not task.random_fill:
        return ((0.0, 0.0),)
    value, key = task.all_values / task.vocab, task.all_keys / task.vocab
    rng = np.random.default_rng(0)
    law = (task.power_a - 1) * np.log(np.arange(1, task.slots + 1))
    noise = rng.gumbel(size=(PLACED, task.slots))
    asks = np.sort(np.argsort(-(law + noise), axis=1)[:, : task.pairs], axis=1)
    asked = np.broadcast_to(np.arange(task.pairs), asks.shape)
    fillers = asks - asked
    # Inside a slot of two filler tokens, and between one and the slot before it.
    places = np.stack([asked.ravel() * value, fillers.ravel() * 2 * key * value], axis=1)
    ordered = places[np.argsort(places.sum(axis=1), kind="stable")]
    groups = np.array_split(ordered, min(GROUPS, len(ordered)))
    return tuple((float(a), float(b)) for a, b in (group.mean(axis=0) for group in groups))


def published_tasks(stacked: bool = False, vocab: int = 8192) -> list[MQAR]:
    """Return the seven test sets of the recall–memory figure; stacked, with as many pairs."""
    return [
        MQAR(each.pairs, 2 * each.pairs if stacked else each.length, vocab, stacked=stacked)
        for each in PUBLISHED_TEST
    ]


def carried_numbers(keys: int, values: int, *, stacked: bool) -> int:
    """Return the numbers kept from token to token: the memory, and the key of the last token."""
    return keys * values + (0 if stacked else keys)


def divide(
    state: int, values: int, codes: str, rule: str = LINEAR_RULE, *, tasks: Sequence[MQAR]
) -> Split | None:
    """Return the split with `values` numbers per value and as many keys as fit; None if none do."""
    stacked = tasks[0].stacked
    keys = min(state // (values if stacked else values + 1), tasks[0].all_keys)
    if keys < (1 if codes == HASH_CODES else 2):
        return None
    by_pairs = {
        task.pairs: predict(task, keys=keys, values=values, codes=codes, rule=rule)
        for task in tasks
    }
    carried = carried_numbers(keys, values, stacked=stacked)
    mean = float(np.mean(list(by_pairs.values())))
    return Split(state, carried, keys, values, codes, rule, stacked, mean, by_pairs)


def best(
    *,
    state: int,
    codes: str | None = None,
    rule: str = LINEAR_RULE,
    values: int | None = None,
    stacked: bool = False,
    vocab: int = 8192,
) -> Split:
    """Return the split of a state that recalls best on the published test sets.

    state   numbers that may be carried from token to token
    codes   dense or hash; by default the better of the two
    values  numbers per value; by default 2 for hash codes, and the best of DENSE_VALUES for dense
    """
    refuse(whole_problems(state=state), about="best")
    if codes is not None:
        check_name("codes", codes, CODES)
    tasks = published_tasks(stacked, vocab)
    candidates = []
    for kind in CODES if codes is None else (codes,):
        widths = (CIRCLE,) if kind == HASH_CODES else DENSE_VALUES
        for width in widths if values is None else (values,):
            check_split(tasks[0], 2, width, kind, rule, about="best")
            candidates.append(divide(state, width, kind, rule, tasks=tasks))
    splits = [split for split in candidates if split is not None]
    if not splits:
        least = (CIRCLE if values is None else values) + (0 if stacked else 1)
        least *= 2 if codes == DENSE_CODES else 1
        raise BadInput(f"best: state is {state}; no code fits, give about {least} or more.")
    return max(splits, key=lambda split: split.accuracy)
