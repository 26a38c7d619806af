"""Teacher-student (Section 4, Appendix C.1): imitate a linear attention on x_t ~ N(0, I).

Every output counts: the loss is ½·mean over outputs, time and batch of (y − teacher(x))².
`scale` is the teacher's output variance, averaged over outputs and time. Without biases the
outputs have mean zero, and the loss of always answering zero is half of `scale`.
"""

from typing import ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.errors import BadInput, refuse, with_article
from underhood.common.numbers import whole_problems
from underhood.layers import LinearAttention
from underhood.layers.base.layer import Size
from underhood.tasks.moments import output_moments
from underhood.tasks.task import Batch, Task


class TeacherStudent(Task):
    """Imitate `attention` on sequences of `length` normal tokens."""

    attention: LinearAttention
    length: int = eqx.field(static=True)

    reads_last: ClassVar[bool] = False

    # Axes are counted from the end, so that a stack of teachers has the same sizes.
    d_in = Size(lambda self: self.attention.W_V.shape[-1])
    d_out = Size(lambda self: self.attention.W_V.shape[-2])
    time = Size(lambda self: self.length)

    def __init__(self, attention: LinearAttention, length: int = 32):
        refuse(whole_problems(length=length), about="TeacherStudent")
        if not isinstance(attention, LinearAttention):
            kind = type(attention).__name__
            raise BadInput(
                f"TeacherStudent: the teacher is {with_article(kind)}; give one LinearAttention."
            )
        if attention.d_out == 0:
            raise BadInput("TeacherStudent: the teacher has no outputs; give W_V at least one row.")
        self.attention, self.length = attention, int(length)

    @classmethod
    def random(
        cls, d: int, rank: int | None = None, *, length: int = 32, key: PRNGKeyArray
    ) -> "TeacherStudent":
        """Draw a teacher from d to d numbers, with W_V and M = W_KᵀW_Q of rank `rank`.

        At full rank the entries of W_V, W_K and W_Q are N(0, 1/d). Below it W_V is a product of
        two matrices of `rank` rows, as M is. Their entries are N(0, 1/√(rank·d)), so that those of
        W_V and M have variance 1/d. (The paper cuts off singular values instead.)
        """
        problems = [] if rank is None else whole_problems(least=0, rank=rank)
        refuse(whole_problems(d=d) + problems, about="TeacherStudent.random")
        if rank is None or rank == d:
            return cls(LinearAttention.init(d_in=d, key=key), length)
        if rank > d:
            raise BadInput(f"TeacherStudent.random: rank is {rank}; with d = {d} give {d} or less.")
        keys = jax.random.split(key, 4)
        left, right, W_K, W_Q = (jax.random.normal(part_key, (rank, d)) for part_key in keys)
        # An entry of W_V or M is a sum of `rank` products, each of variance size⁴.
        size = float(max(rank, 1) * d) ** -0.25
        return cls(LinearAttention(size**2 * left.T @ right, size * W_K, size * W_Q), length)

    @property
    def zero_loss(self) -> float:
        return float(0.5 * np.mean(output_moments(self.one_teacher(), self.length)[1]))

    @property
    def scale(self) -> float:
        means, squares = output_moments(self.one_teacher(), self.length)
        return float(np.mean(squares - means**2))

    @property
    def best_loss(self) -> float:
        return 0.0

    def best_attention(self) -> LinearAttention:
        """Return the teacher."""
        return self.attention

    def one_teacher(self) -> LinearAttention:
        """Return the teacher; refuse a stack of them, which only `jax.vmap` can take apart."""
        if self.attention.W_V.ndim != 2:
            count = self.attention.W_V.shape[0]
            raise BadInput(f"TeacherStudent holds {count} stacked teachers: use jax.vmap over it.")
        return self.attention

    def sample(self, key: PRNGKeyArray, batch: int) -> Batch:
        inputs = jax.random.normal(key, (batch, self.length, self.d_in))
        # A GPU would otherwise round the teacher's products to ten bits.
        with jax.default_matmul_precision("highest"):
            return Batch(inputs, jax.vmap(self.one_teacher())(inputs))

    def with_length(self, length: int) -> "TeacherStudent":
        """Return the same teacher on `length` tokens."""
        return TeacherStudent(self.attention, length)
