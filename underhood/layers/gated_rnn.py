"""Gated RNN (Eq. 2), h_t = λ⊙h_{t−1} + g_in(x_t), y_t = D g_out(h_t); and with a side gate.

W_in_m, W_in_x    input gate    [hidden, d_in + 1]  g_in(x)  = (W_in_m [x;1]) ⊙ (W_in_x [x;1])
decay             λ             [hidden]            stored as ν, λ = exp(−exp ν)
W_out_m, W_out_x  output gate   [gated, hidden]     g_out(h) = (W_out_m h) ⊙ (W_out_x h)
D                 readout       [d_out, gated]
W_side            side gate     [hidden, d_in]      y_t = D((W_side x_t) ⊙ h_t) (Appendix A.2)

The output at t reads the state that x_t has already entered; the paper's Eq. 2 is one step late.
With side gating D is [d_out, hidden], no constant is appended, and no neuron passes the query on.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.common.decay import nu_from_decay
from underhood.layers.base.layer import Size, append_one, axis_size, bilinear, gaussian
from underhood.layers.base.recurrence import run_loop
from underhood.layers.base.recurrent import DiagonalLayer, RecurrentLayer, Written


class BilinearGates(RecurrentLayer):
    """The gates that the diagonal and the dense gated RNN share."""

    W_in_m: eqx.AbstractVar[Float[Weight, "hidden d_in_plus_1"]]
    W_in_x: eqx.AbstractVar[Float[Weight, "hidden d_in_plus_1"]]
    W_out_m: eqx.AbstractVar[Float[Weight, "gated hidden"]]
    W_out_x: eqx.AbstractVar[Float[Weight, "gated hidden"]]
    D: eqx.AbstractVar[Float[Weight, "d_out gated"]]

    d_in = Size(lambda self: self.W_in_m.shape[1] - 1)
    d_out = axis_size("D", 0)
    neurons = axis_size("W_in_m", 0)
    gate_width = axis_size("W_out_m", 0)

    def further_problems(self) -> list[str]:
        missing = self.W_in_m.shape[1] == 0
        return ["W_in_m and W_in_x need a last column for the constant 1"] if missing else []

    def write(self, us: Float[Array, "*time d_in"]) -> Written:
        """Return g_in; the constant 1 is appended here."""
        return bilinear(self.W_in_m, self.W_in_x, append_one(jnp.asarray(us)))

    def read(self, states: Written, us: Float[Array, "*time d_in"]) -> Float[Array, "*time d_out"]:
        return bilinear(self.W_out_m, self.W_out_x, states) @ self.D.T


class GatedRNN(BilinearGates, DiagonalLayer):
    """The paper's gated RNN with a diagonal recurrence."""

    W_in_m: Float[Weight, "hidden d_in_plus_1"]
    W_in_x: Float[Weight, "hidden d_in_plus_1"]
    nu: Float[Weight, " hidden"]
    W_out_m: Float[Weight, "gated hidden"]
    W_out_x: Float[Weight, "gated hidden"]
    D: Float[Weight, "d_out gated"]

    def __init__(
        self,
        *,
        W_in_m: Weight,
        W_in_x: Weight,
        decay: Weight,
        W_out_m: Weight,
        W_out_x: Weight,
        D: Weight,
    ):
        self.W_in_m, self.W_in_x = W_in_m, W_in_x
        self.nu = nu_from_decay(decay, about="GatedRNN")
        self.W_out_m, self.W_out_x, self.D = W_out_m, W_out_x, D

    @classmethod
    def init(
        cls, *, d_in: int, hidden: int, gated: int, d_out: int, key: PRNGKeyArray
    ) -> "GatedRNN":
        """Draw weights from N(0, 1/fan-in) and λ uniformly from (0, 1)."""
        decay_key, *keys = jax.random.split(key, 6)
        return cls(
            W_in_m=gaussian(keys[0], hidden, d_in + 1),
            W_in_x=gaussian(keys[1], hidden, d_in + 1),
            decay=jax.random.uniform(decay_key, (hidden,)),
            W_out_m=gaussian(keys[2], gated, hidden),
            W_out_x=gaussian(keys[3], gated, hidden),
            D=gaussian(keys[4], d_out, gated),
        )


class DenseGatedRNN(BilinearGates):
    """The same gates around a full recurrent matrix: h_t = A h_{t−1} + g_in(x_t)."""

    W_in_m: Float[Weight, "hidden d_in_plus_1"]
    W_in_x: Float[Weight, "hidden d_in_plus_1"]
    A: Float[Weight, "hidden hidden"]
    W_out_m: Float[Weight, "gated hidden"]
    W_out_x: Float[Weight, "gated hidden"]
    D: Float[Weight, "d_out gated"]

    @classmethod
    def init(
        cls,
        *,
        d_in: int,
        hidden: int,
        gated: int,
        d_out: int,
        key: PRNGKeyArray,
        noise: float = 0.01,
    ) -> "DenseGatedRNN":
        """Draw gates as GatedRNN does; A is diag(λ) plus noise of standard deviation noise/√n."""
        gate_key, noise_key = jax.random.split(key)
        diagonal = GatedRNN.init(d_in=d_in, hidden=hidden, gated=gated, d_out=d_out, key=gate_key)
        A = jnp.diag(diagonal.decay) + noise * gaussian(noise_key, hidden, hidden)
        gates = ("W_in_m", "W_in_x", "W_out_m", "W_out_x", "D")
        return cls(A=A, **{name: getattr(diagonal, name) for name in gates})

    def carry(self, state: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
        return state @ jnp.asarray(self.A).T

    def states(self, written: Written, *, backend: str | None = None) -> Written:
        def advance(state: Array, now: Array) -> tuple[Array, Array]:
            state = self.carry(state) + now
            return state, state

        return run_loop(advance, jnp.zeros(written.shape[1:], written.dtype), written, backend)


class SideGatedRNN(DiagonalLayer):
    """A diagonal linear recurrence between an input gate and a gate on the side."""

    W_in_m: Float[Weight, "hidden d_in"]
    W_in_x: Float[Weight, "hidden d_in"]
    nu: Float[Weight, " hidden"]
    W_side: Float[Weight, "hidden d_in"]
    D: Float[Weight, "d_out hidden"]

    d_in = axis_size("W_in_m", 1)
    d_out = axis_size("D", 0)
    gate_width = axis_size("W_side", 0)

    def __init__(self, *, W_in_m: Weight, W_in_x: Weight, decay: Weight, W_side: Weight, D: Weight):
        self.W_in_m, self.W_in_x = W_in_m, W_in_x
        self.nu = nu_from_decay(decay, about="SideGatedRNN")
        self.W_side, self.D = W_side, D

    @classmethod
    def init(cls, *, d_in: int, hidden: int, d_out: int, key: PRNGKeyArray) -> "SideGatedRNN":
        """Draw weights from N(0, 1/fan-in) and λ uniformly from (0, 1)."""
        decay_key, *keys = jax.random.split(key, 5)
        return cls(
            W_in_m=gaussian(keys[0], hidden, d_in),
            W_in_x=gaussian(keys[1], hidden, d_in),
            decay=jax.random.uniform(decay_key, (hidden,)),
            W_side=gaussian(keys[2], hidden, d_in),
            D=gaussian(keys[3], d_out, hidden),
        )

    def write(self, us: Float[Array, "*time d_in"]) -> Written:
        """Return g_in."""
        return bilinear(self.W_in_m, self.W_in_x, us)

    def read(self, states: Written, us: Float[Array, "*time d_in"]) -> Float[Array, "*time d_out"]:
        return ((us @ self.W_side.T) * states) @ self.D.T
