"""Linear attention, trained on in-context regression, becomes one step of gradient descent.

The paper's claim for the case that attention itself is learned: its loss reaches the closed form
of one optimal step, and its weights are that step's. On a token [x; y] with y = 0 at the query, the
output is W_V (Σ z zᵀ) M [x; 0], so the columns of M that read a query's y are never used; what is
compared is W_V ⊗ M without them, which fixes the split of scale between W_V and M as well.
"""

import jax
import numpy as np

import underhood as uh

TASK = uh.tasks.InContextRegression()


def student(width, *, key):
    return uh.LinearAttention.init(d_in=TASK.d_in, d_v=TASK.d_out, d_k=width, key=key)


def function(attention):
    """What the layer does on this task: W_V ⊗ M, the query's y left out."""
    M = np.asarray(attention.W_K, float).T @ np.asarray(attention.W_Q, float)
    return np.multiply.outer(np.asarray(attention.W_V, float), M[:, : TASK.d_x])


def main(steps: int = 20_000, seeds: int = 4) -> list[float]:
    run = uh.train(
        student, TASK, uh.Recipe.noisy(steps), seeds=seeds, widths=3, key=jax.random.key(0)
    )
    descent = function(TASK.best_attention())
    distances = []
    print(f"one optimal step of gradient descent: loss {TASK.best_loss:.6f}")
    for row, model in zip(run.rows, run.models, strict=True):
        distance = np.linalg.norm(function(model) - descent) / np.linalg.norm(descent)
        distances.append(float(distance))
        print(f"seed {row['seed']}: loss {row['loss']:.6f}, weights differ by {distance:.1%}")
    model = run.best()
    M = np.asarray(model.W_K).T @ np.asarray(model.W_Q)
    scale = M[0, 0]
    print("\nW_V, times the scale of M; gradient descent has [0 | I/14.8]:")
    print(np.array2string(np.asarray(model.W_V) * scale, precision=4, suppress_small=True))
    print("M over its scale, x columns; gradient descent has [I; 0]:")
    print(np.array2string(M[:, : TASK.d_x] / scale, precision=3, suppress_small=True))
    return distances


if __name__ == "__main__":
    main()
