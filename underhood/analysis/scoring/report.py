"""An attention score as a short table for people."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from underhood.analysis.scoring.scores import AttentionScore


def score_report(result: "AttentionScore") -> str:
    """Return one line per number, each with its standard error."""
    errors = result.errors
    degrees = "  ".join(
        f"{k}: {share:.1%} ± {error:.1%}"
        for k, (share, error) in enumerate(zip(result.degrees, errors.degrees, strict=True))
    )
    rows = [
        ("attention score", plus_minus(result.score, errors.score)),
        ("  form of the memory", plus_minus(result.form, errors.form)),
        ("  whole output", plus_minus(result.whole, errors.whole)),
        ("  with biases", plus_minus(result.score_with_biases, errors.score_with_biases)),
        ("  decay", plus_minus(result.decay, errors.decay)),
        ("memory", plus_minus(result.memory, errors.memory)),
    ]
    for name, field in (("key-values in state", "state_kv"), ("queries in state", "state_q")):
        value, error = getattr(result, field), getattr(errors, field)
        rows += [] if value is None else [(name, plus_minus(value, error))]
    if result.state_dimension is not None:
        dimension = f"{result.state_dimension:.1f} ± {errors.state_dimension:.1f}"
        rank = f"{result.state_rank} ± {errors.state_rank}"
        rows += [("state dimension", f"{dimension}  (rank {rank})")]
    rows += [("degrees in the input", degrees)]
    missed = f"{result.missed_by_degree_5:.1%} ± {errors.missed_by_degree_5:.1%}"
    rows += [("missed by degree 5", missed)]
    if result.baselines:
        known = "  ".join(f"{name} {score:.3f}" for name, score in result.baselines.items())
        rows += [("for comparison", known)]
    rows += [("note", note) for note in result.notes]
    return "\n".join(f"{name:<22}{value}" for name, value in rows)


def plus_minus(value: float, error: float) -> str:
    """Return a number with its standard error; a tiny error is shown as a power of ten."""
    return f"{value:.6f} ± {error:.1g}"
