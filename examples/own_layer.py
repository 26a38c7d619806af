"""A layer of one's own as a student: any module with an `init` and a call over one sequence.

The layer here is a minGRU (a GRU whose gates read the input alone, so that it is a linear
recurrence with a decay that changes) between a linear embedding and a quadratic readout. underhood
knows nothing about it; members of equal shape still share one program. Afterwards
`uh.attention_score` says how much of what the best one computes is attention.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

import underhood as uh


class MinGRU(eqx.Module):
    """h_t = (1 − z_t)⊙h_{t−1} + z_t⊙(U [x_t ⊗ x_t]), y = D ((A h) ⊙ (B h))."""

    U: jax.Array
    Z: jax.Array
    A: jax.Array
    B: jax.Array
    D: jax.Array

    @classmethod
    def init(cls, *, d_in, hidden, d_out, key):
        shapes = [
            (hidden, (d_in + 1) ** 2),
            (hidden, d_in + 1),
            (hidden, hidden),
            (hidden, hidden),
            (d_out, hidden),
        ]
        keys = jax.random.split(key, len(shapes))
        return cls(
            *(
                jax.random.normal(k, shape) / jnp.sqrt(shape[1])
                for k, shape in zip(keys, shapes, strict=True)
            )
        )

    def __call__(self, xs):
        extended = jnp.concatenate([xs, jnp.ones_like(xs[:, :1])], axis=1)
        products = (extended[:, :, None] * extended[:, None]).reshape(len(xs), -1)
        gates = jax.nn.sigmoid(extended @ self.Z.T)
        states = uh.linear_recurrence(1 - gates, gates * (products @ self.U.T))
        return ((states @ self.A.T) * (states @ self.B.T)) @ self.D.T


def student(width, *, key):
    return MinGRU.init(d_in=2, hidden=width, d_out=2, key=key)


def main(steps: int = 3000) -> uh.Run:
    task = uh.tasks.TeacherStudent.random(2, length=16, key=jax.random.key(0))
    run = uh.train(
        student, task, uh.Recipe.fast(steps), seeds=3, widths=(4, 16), key=jax.random.key(1)
    )
    print(run.members[["width", "seed", "normalised_loss"]].to_string(index=False))
    result = uh.attention_score(run.best(), key=jax.random.key(2), d_in=2)
    print(f"the best one: attention score {result.score:.4f} ± {result.errors.score:.4f}")
    return run


if __name__ == "__main__":
    main()
