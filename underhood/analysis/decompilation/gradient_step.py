"""The gradient step inside a network that was trained on in-context regression (Table 2).

One step of gradient descent on ½|Y − WX|² from W = 0 answers the query x with Σ_s y_s x_sᵀ P x,
where P = η I, or another matrix if the step is preconditioned. P is fitted by least squares to the
network's answers on sequences of the task, all outputs together, and judged on fresh sequences.
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.arguments import ReadableNetwork
from underhood.analysis.decompilation.on_task import (
    Share,
    check_same_sizes,
    ratio_share,
    sampled_chunks,
)
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.forms.scaling import in_range
from underhood.common.errors import BadInput
from underhood.tasks import InContextRegression


@dataclass(frozen=True)
class GradientStep:
    """One gradient step, as a network takes it.

    step            η, the mean of the diagonal of P
    step_error      its standard error over the sampled sequences
    preconditioner  P/η [d_x, d_x]: the identity for a plain step
    residual        root-mean-square difference from the network's answers over their root mean
                    square, on fresh sequences
    residual_error  its standard error
    best_step       η* of the task, in closed form
    """

    step: float
    step_error: float
    preconditioner: np.ndarray
    residual: float
    residual_error: float
    best_step: float

    def __str__(self) -> str:
        off = self.preconditioner - np.eye(len(self.preconditioner))
        return (
            f"one gradient step with η = {self.step:.5f} ± {self.step_error:.1g} (the task's best "
            f"is {self.best_step:.5f}); it explains all but {self.residual:.2g} ± "
            f"{self.residual_error:.1g} of the answers; the preconditioner differs from the "
            f"identity by {np.max(np.abs(off)):.2g} at most"
        )


def read_gradient_step(network: ReadableNetwork, task: InContextRegression) -> GradientStep:
    """Return the gradient step nearest to a network's answers on a regression task."""
    if not isinstance(task, InContextRegression):
        kind = type(task).__name__
        raise BadInput(
            f"gradient_step reads a regression: give an InContextRegression, not {kind}."
        )
    check_same_sizes(network, task, about="gradient_step")
    scaled = in_range(network)
    form = quadratic_form(scaled.layer)
    d_x = task.d_x

    def pieces(xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Σ_s y_s x_s,i x_j [many, d_y, d_x·d_x] and the network's answers [many, d_y]."""
        written = np.einsum("sto,sti->soi", xs[:, :-1, d_x:], xs[:, :-1, :d_x])
        features = written[..., None] * xs[:, -1, None, None, :d_x]
        return features.reshape(*features.shape[:2], -1), form(xs)[:, -1]

    grams, rights = [], []
    for xs in sampled_chunks(task, seed=0):
        features, answers = pieces(xs)
        flat = features.reshape(-1, d_x * d_x)
        grams.append(flat.T @ flat)
        rights.append(flat.T @ answers.ravel())
    fitted = np.linalg.lstsq(np.sum(grams, axis=0), np.sum(rights, axis=0), rcond=1e-12)[0]
    # Every chunk alone gives a step too; their spread is the error of the mean.
    alone = [np.linalg.lstsq(G, b, rcond=1e-12)[0] for G, b in zip(grams, rights, strict=True)]
    steps = [np.trace(P.reshape(d_x, d_x)) / d_x for P in alone]
    missed, sizes = [], []
    for xs in sampled_chunks(task, seed=1):
        features, answers = pieces(xs)
        missed.append(np.mean((answers - features @ fitted) ** 2, axis=1))
        sizes.append(np.mean(answers**2, axis=1))
    residual: Share = ratio_share(np.concatenate(missed), np.concatenate(sizes))
    P = np.ldexp(fitted.reshape(d_x, d_x), scaled.exponent)
    step = float(np.trace(P)) / d_x
    error = float(np.ldexp(np.std(steps) / np.sqrt(len(steps)), scaled.exponent))
    best = float(task.best_attention().W_V[0, d_x])
    relative = P / step if step else np.zeros_like(P)
    return GradientStep(step, error, relative, residual.value, residual.error, best)
