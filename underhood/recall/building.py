"""`build`: a network that solves MQAR without training, by codes, compiled attention and a decoder.

    stacked         tokens [φ; ψ]; one layer, compiled from W_K = W_Q = [I 0], W_V = [0 I]
    token by token  a layer that remembers the last key (shift.py), then attention on [u; ψ; φ]

Carried from token to token: dk·dv numbers, and dk more token by token. Neurons with λ = 0 carry
nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from underhood.common.arrays import FLOATS, key_problems
from underhood.common.errors import BadInput, check_name, refuse
from underhood.common.numbers import whole_problems
from underhood.constructions import Construction, ImpossibleConstruction, compile
from underhood.constructions.targets.registry import TARGETS
from underhood.layers import Affine, Layer, LinearAttention, Stack
from underhood.layers.base.layer import Size
from underhood.layers.base.recurrent import DiagonalLayer
from underhood.recall.codes import NEVER, Codes, make_codes
from underhood.recall.formulas import DELTA_RULE, LINEAR_RULE
from underhood.recall.prediction import Split, best, check_split, divide, predict, published_tasks
from underhood.recall.running import Measured, measure_accuracy
from underhood.recall.shift import refuse_single_layer, shift_layer
from underhood.tasks.mqar import MQAR

# Targets whose two layers are exact token by token; the others are linearised.
GATED_TARGET, SIDE_TARGET = "gated_rnn", "side_gated_rnn"


@dataclass(frozen=True, eq=False)
class RecallNetwork:
    """A compiled network for MQAR.

    split         of the state, with what is predicted
    codes         of all keys and values
    construction  the memory layer, as `uh.compile` returned it
    layers        recurrent layers, the memory last
    """

    split: Split
    codes: Codes
    construction: Construction
    layers: tuple[Layer, ...]
    vocab: int

    target = property(lambda self: self.construction.target)
    stacked = property(lambda self: self.split.stacked)
    neurons = Size(lambda self: sum(layer.neurons for layer in self.layers))
    # Numbers that later tokens can depend on.
    carried = Size(lambda self: sum(carried_by(layer) for layer in self.layers))

    @property
    def predicted(self) -> dict[int, float]:
        """Accuracy by formula for each number of pairs of the published test sets."""
        return self.split.by_pairs

    @cached_property
    def embeddings(self) -> Float[np.ndarray, "symbols d"]:
        """A row per token of the vocabulary; stacked, a row per key and then a row per value."""
        keys, values = self.codes.keys, self.codes.values
        if self.stacked:
            return block_diagonal(keys, values)
        # Token 0 is neither a key nor a value.
        tokens = np.vstack(
            [np.zeros((1, keys.shape[1] + values.shape[1])), block_diagonal(keys, values)]
        )
        wide = self.layers[0].d_in - tokens.shape[1]
        return np.hstack([tokens, np.ones((self.vocab, wide))])

    @cached_property
    def network(self) -> Stack:
        """The whole network on the task's one-hot tokens, as `uh.train` takes it."""
        kind = self.construction.dtype
        W, b = self.codes.W, self.codes.b
        if not self.stacked:
            # Tokens that are no values are never the answer.
            others = self.vocab - len(W)
            W = np.vstack([np.zeros((others, W.shape[1])), W])
            b = np.concatenate([np.full(others, NEVER), b])
        return Stack(
            Affine(self.embeddings.T.astype(kind)),
            self.layers,
            Affine(W.astype(kind), b.astype(kind)),
            needs_x64=kind == np.float64 and not self.construction.exact,
        )

    def predict(self, task: MQAR) -> float:
        """Return the accuracy by formula on a task."""
        self.check_task(task)
        split = self.split
        sizes = {"keys": split.keys, "values": split.values}
        return predict(task, **sizes, codes=split.codes, rule=split.rule)

    def check_task(self, task: MQAR) -> None:
        if (task.vocab, task.stacked) != (self.vocab, self.stacked):
            raise BadInput(
                f"The network is built for vocab={self.vocab}, stacked={self.stacked}, but the "
                f"task has vocab={task.vocab}, stacked={task.stacked}."
            )

    def evaluate(
        self,
        tasks: MQAR | Sequence[MQAR] | None = None,
        *,
        sequences: int = 1000,
        answers: int | None = None,
        key: PRNGKeyArray | None = None,
        compiled: bool = True,
    ) -> list[Measured]:
        """Run the network on fresh sequences and return the accuracy on each task.

        tasks      by default the published test sets
        sequences  of each task
        answers    if given, as many sequences as have about this many answers
        compiled   False: run the attention that the layers compute, which takes less time
        """
        if tasks is None:
            tasks = published_tasks(self.stacked, self.vocab)
        tasks = [tasks] if isinstance(tasks, MQAR) else list(tasks)
        key = jax.random.key(1) if key is None else key
        problems = whole_problems(sequences=sequences) + key_problems(key)
        problems += [] if answers is None else whole_problems(answers=answers)
        refuse(problems, about="evaluate")
        measured = []
        for task, task_key in zip(tasks, jax.random.split(key, len(tasks)), strict=True):
            self.check_task(task)
            count = sequences if answers is None else math.ceil(answers / task.pairs)
            measured.append(
                measure_accuracy(
                    *(self.embeddings, self.layers, self.codes, task, self.predict(task)),
                    sequences=count,
                    key=task_key,
                    dtype=str(self.construction.dtype),
                    compiled=compiled,
                )
            )
        return measured


def carried_by(layer: Layer) -> int:
    """Return how many numbers of a layer's state later tokens can depend on."""
    if isinstance(layer, DiagonalLayer):
        return int(np.count_nonzero(np.asarray(layer.decay)))
    if isinstance(layer, Stack):
        return sum(carried_by(part) for part in layer.layers)
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(layer.initial_state)))


def build_recall(
    *,
    state: int | None = None,
    target: str = GATED_TARGET,
    codes: str | None = None,
    keys: int | None = None,
    values: int | None = None,
    rule: str = LINEAR_RULE,
    latch: bool = False,
    stacked: bool = False,
    layers: int | None = None,
    vocab: int = 8192,
    dtype: str | None = None,
    key: PRNGKeyArray | None = None,
) -> RecallNetwork:
    """Return a network that solves MQAR with a state of the given size, without training.

    state   numbers carried from token to token; by default as many as keys and values take
    target  gated_rnn or side_gated_rnn; stacked, every target of `uh.compile`
    codes   dense or hash; by default the better of the two
    keys    numbers of a key's code, with `values`, in place of `state`
    values  numbers of a value's code; by default the best for the state
    rule    linear; delta is refused, because a write of these layers does not depend on the state
    latch   stop writing after the pairs; refused, because λ and gates do not depend on the state
    layers  1 stacked, 2 token by token; another number is refused
    dtype   float32, or float64, the default for linearised targets
    key     of the random codes
    """
    check_name("target", target, TARGETS)
    check_request(target, rule, latch, stacked, layers)
    key = jax.random.key(0) if key is None else key
    precision = ("float32" if TARGETS[target].exact else "float64") if dtype is None else dtype
    check_name("dtype", precision, FLOATS)
    refuse(key_problems(key), about="build")
    split = choose_split(state, keys, values, codes, stacked, vocab)
    task = published_tasks(stacked, vocab)[0]
    made = make_codes(
        split.codes,
        all_keys=task.all_keys,
        all_values=task.all_values,
        keys=split.keys,
        values=split.values,
        rng=np.random.default_rng(np.asarray(jax.random.key_data(key))),
    )
    attention = memory_attention(split.keys, split.values, stacked=stacked)
    # The matrices select coordinates, so the full form is as small as the minimal one, its weights
    # are 0 and 1, and nothing has to be factored.
    form = "full" if target in (GATED_TARGET, SIDE_TARGET) else None
    built = compile(attention, target, form=form, dtype=precision)
    if stacked:
        return RecallNetwork(split, made, built, (built.layer,), vocab)
    shift, _ = shift_layer(split.keys, split.values, side=target == SIDE_TARGET, dtype=precision)
    return RecallNetwork(split, made, built, (shift, built.layer), vocab)


def check_request(target: str, rule: str, latch: bool, stacked: bool, layers: int | None) -> None:
    """Refuse what the target cannot do, with the reasons."""
    if not isinstance(latch, bool) or not isinstance(stacked, bool):
        raise BadInput("build: give True or False for latch and stacked.")
    if layers is not None:
        refuse(whole_problems(most=2, layers=layers), about="build")
    if layers == 1 and not stacked:
        refuse_single_layer(target)
    if layers == 2 and stacked:
        raise BadInput("build: stacked MQAR takes one layer; leave layers out.")
    reasons = []
    if rule == DELTA_RULE:
        reasons.append(
            "The delta rule writes v − Sk, which depends on the state S; what a token writes in "
            "this layer depends on the token alone. uh.recall.predict gives its accuracy."
        )
    if latch:
        reasons.append(
            "A latch closes for good when two keys or two values follow each other; this needs a "
            "threshold or a λ that depends on the state, and this layer has neither."
        )
    if reasons:
        raise ImpossibleConstruction(f"MQAR with these options in {target}", reasons)
    if not stacked and target not in (GATED_TARGET, SIDE_TARGET):
        raise BadInput(
            f"build: token by token use {GATED_TARGET} or {SIDE_TARGET}; {target} is built for "
            "stacked=True only. The shift register needs numbers of very different sizes."
        )


def choose_split(
    state: int | None,
    keys: int | None,
    values: int | None,
    codes: str | None,
    stacked: bool,
    vocab: int,
) -> Split:
    """Return the split that was asked for: by its state, or by its codes."""
    if (state is None) == (keys is None):
        raise BadInput("build: give state=, or keys= and values=.")
    if state is not None:
        return best(state=state, codes=codes, values=values, stacked=stacked, vocab=vocab)
    assert keys is not None
    if values is None or codes is None:
        raise BadInput("build: with keys= also give values= and codes=.")
    tasks = published_tasks(stacked, vocab)
    check_split(tasks[0], keys, values, codes, LINEAR_RULE, about="build")
    taken = keys * (values if stacked else values + 1)
    split = divide(taken, values, codes, tasks=tasks)
    assert split is not None and split.keys == keys
    return split


def memory_attention(keys: int, values: int, *, stacked: bool) -> LinearAttention:
    """Return the attention of the memory, on [φ; ψ] stacked and on [u; ψ; φ] token by token."""
    width = keys + values + (0 if stacked else keys)
    read = np.eye(width)
    W_K, W_V = read[:keys], read[keys : keys + values]
    return LinearAttention(W_V, W_K, W_K if stacked else read[keys + values :])


def block_diagonal(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    rows, columns = first.shape
    joined = np.zeros((rows + len(second), columns + second.shape[1]))
    joined[:rows, :columns], joined[rows:, columns:] = first, second
    return joined
