"""`compile`: from a source and the name of a target to a `Construction`, or to a refusal."""

from dataclasses import replace

import jax
import numpy as np
from jax.typing import DTypeLike

from underhood.common.arrays import FLOATS, float_name
from underhood.common.errors import BadInput, check_name, with_article
from underhood.constructions.construction import Construction, ImpossibleConstruction
from underhood.constructions.products.product import DEFAULT_LENGTH
from underhood.constructions.sources.heads import Source
from underhood.constructions.sources.magnitude import range_problem
from underhood.constructions.target import Blueprint
from underhood.constructions.targets.registry import TARGETS

# The largest error that a linearised network may have at the length and size asked for.
PROMISED = {"float64": 1e-6, "float32": 1e-2}

SOFTMAX = ("MultiheadAttention", "MultiHeadAttention", "MultiHeadDotProductAttention")


def compile(
    source: Source,
    target: str = "gated_rnn",
    form: str | None = None,
    dtype: DTypeLike = "float64",
    *,
    order: int | None = None,
    epsilon: float | None = None,
    layers: int | None = None,
    activation: str | None = None,
    reset: str | None = None,
    length: int = DEFAULT_LENGTH,
    size: float = 1.0,
) -> Construction:
    """Return the target network that computes the source's function.

    source      a LinearAttention or MultiHead; for lru, lru_in_out, lru_in_out_mlp, mamba, lstm,
                gru and decayed_attention also a GatedRNN
    form        how attention is written as products: full, compact, low_rank or minimal (default)
    dtype       float64 or float32
    order       of the linearisation (`product.py`), 1 to 8; by default chosen for the dtype
    epsilon     of the linearisation; by default the best for dtype, order, length and size
    layers      1 or 2, where both are possible
    activation  of lru_in_out_mlp; gelu unless given
    reset       of gru: before the product (default) or after it, as in PyTorch and Flax
    length      of the longest sequence that a linearised network must serve
    size        of the largest tokens that it must serve: the standard deviation of their entries

    Exact targets serve every length and size. If another length or size is asked of a linearised
    target, its error there is measured on random tokens, and a network above PROMISED is refused
    with BadInput, unless `epsilon` is given. ImpossibleConstruction is raised with all reasons if
    the target cannot hold the source.
    """
    # Validate.
    check_name("target", target, TARGETS)
    check_name("dtype", float_name(dtype), FLOATS)
    check_source(source, target)
    precision = FLOATS[float_name(dtype)]
    asked = Blueprint(
        source, target, precision, form, order, epsilon, layers, activation, reset, length, size
    )
    problem = range_problem(source, size, str(precision), exact=TARGETS[target].exact)
    if problem is not None:
        raise BadInput(problem)
    # Plan, or refuse with all reasons.
    plan = TARGETS[target].plan(asked)
    # Build.
    built = TARGETS[target].build(plan)
    # The defaults are tested, and measuring takes a second.
    if epsilon is None and not built.exact and (length, size) != (DEFAULT_LENGTH, 1):
        errors = errors_as_asked(built, plan)
        if errors[-1] > PROMISED[str(precision)]:
            check_promise(built, errors, size, works=longest_length(plan))
    return built


def errors_as_asked(built: Construction, plan: Blueprint) -> np.ndarray:
    """Return the errors on random tokens of the length and size that were asked for."""
    return built.errors(key=jax.random.key(0), length=plan.length, size=plan.size, sequences=4)


def longest_length(plan: Blueprint) -> int:
    """Return about the largest length for which a network keeps the promise; 0 if none does."""
    works, fails = 0, plan.length
    while fails - works > max(1, works // 10):
        tried = (works + fails) // 2
        built = TARGETS[plan.target].build(replace(plan, length=tried))
        # The same sequences each time, so the network is compiled once.
        if errors_as_asked(built, plan)[tried - 1] <= PROMISED[str(plan.dtype)]:
            works = tried
        else:
            fails = tried
    return works


def check_promise(built: Construction, errors: np.ndarray, size: float, *, works: int = 0) -> None:
    """Refuse a network whose error is above PROMISED at the end of a sequence.

    errors  what `Construction.errors` returned
    size    of the tokens
    works   a shorter length for which a network keeps the promise; 0 if it is not known
    """
    limit, name = PROMISED[str(built.dtype)], f"{built.target} in {built.dtype}"
    if errors[-1] <= limit:
        return
    served = np.flatnonzero(errors <= limit)
    reach = f" It holds up to {served[-1] + 1} tokens." if len(served) else ""
    changes = ["dtype='float64'"] if built.dtype == np.float32 else []
    changes.append(f"length={works}, for which it works" if works else "a shorter length")
    # Networks are built for a size, and their errors there hardly depend on it.
    changes += ["a smaller size"] if size > 1 else []
    raise BadInput(
        f"On {len(errors)} tokens of size {size:g} the error of {name} is {errors[-1]:.1e}, but "
        f"compile promises {limit:g}.{reach} Use {' or '.join(changes)}; with epsilon= compile "
        "promises nothing and returns the network."
    )


def check_source(source: object, target: str) -> None:
    """Refuse what is no source, or has no numbers yet."""
    kind = type(source).__name__
    if kind in SOFTMAX:
        raise ImpossibleConstruction(
            f"{kind} → {target}",
            [
                "Softmax attention keeps every past token and weighs it by exp(k·q), which no "
                "state of fixed size can hold.",
                "Give its matrices to LinearAttention if the linear part is what you are after.",
            ],
        )
    if not isinstance(source, Source):
        raise BadInput(
            f"compile takes a LinearAttention, a MultiHead or a GatedRNN, not {with_article(kind)}."
        )
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(source)):
        raise BadInput("compile reads the weights themselves: call it outside jit, grad and vmap.")
