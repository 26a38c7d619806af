"""LRU (Appendix B.1) and its two variants: a complex diagonal recurrence between gates.

recurrence   h_t = λ⊙h_{t−1} + γ⊙(B u_t),  ỹ_t = Re[C h_t] + D u_t
             λ = exp(−exp ν + i·exp θ_log), γ = exp γ_log (free; √(1−|λ|²) at the start only)
LRU          u = x                            y = σ(W_m ỹ) ⊙ (W_x ỹ)
LRUInOut     u = σ(W_in_m x) ⊙ (W_in_x x)     y = σ(W_m ỹ) ⊙ (W_x ỹ)
LRUInOutMLP  u = W_in_2 φ(W_in_1 x)           y = W_out_2 φ(W_out_1 ỹ), no products anywhere

nu, theta_log, gamma_log [hidden]; B_re, B_im [hidden, u]; C_re, C_im [mixed, hidden]; D [mixed, u]
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.common.decay import nu_from_decay
from underhood.layers.base.layer import Size, axis_size, gaussian, zeros
from underhood.layers.base.recurrent import DiagonalLayer, RecurrentLayer

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "tanh": jnp.tanh,
}


class AbstractLRU(DiagonalLayer):
    """The complex recurrence of all three, between a gate before it and a gate after it."""

    nu: Float[Weight, " hidden"]
    theta_log: Float[Weight, " hidden"]
    gamma_log: Float[Weight, " hidden"]
    B_re: Float[Weight, "hidden u"]
    B_im: Float[Weight, "hidden u"]
    C_re: Float[Weight, "mixed hidden"]
    C_im: Float[Weight, "mixed hidden"]
    D: Float[Weight, "mixed u"]

    @abstractmethod
    def after(self, mixed: Float[Array, "*time mixed"]) -> Float[Array, "*time d_out"]:
        """Return the output, given ỹ."""

    @property
    def eigenvalues(self) -> Complex[Array, " hidden"]:
        return jnp.asarray(self.decay) * jnp.exp(1j * jnp.exp(jnp.asarray(self.theta_log)))

    def write(self, us: Float[Array, "*time u"]) -> Complex[Array, "*time hidden"]:
        gamma = jnp.exp(jnp.asarray(self.gamma_log))
        return jax.lax.complex(gamma * (us @ self.B_re.T), gamma * (us @ self.B_im.T))

    def read(
        self, states: Complex[Array, "*time hidden"], us: Float[Array, "*time u"]
    ) -> Float[Array, "*time d_out"]:
        return self.after(states.real @ self.C_re.T - states.imag @ self.C_im.T + us @ self.D.T)

    def initial_state(self) -> Complex[Array, " hidden"]:
        real = zeros(self.neurons, like=self.nu)
        return jax.lax.complex(real, real)


class GluBefore(RecurrentLayer):
    """u = σ(W_in_m x) ⊙ (W_in_x x)."""

    W_in_m: Float[Weight, "u d_in"]
    W_in_x: Float[Weight, "u d_in"]

    def enter(self, xs: Float[Array, "*time d_in"]) -> Float[Array, "*time u"]:
        return glu(self.W_in_m, self.W_in_x, xs)


class MLPBefore(RecurrentLayer):
    """The weights of u = W_in_2 φ(W_in_1 x)."""

    W_in_1: Float[Weight, "hidden_in d_in"]
    W_in_2: Float[Weight, "u hidden_in"]


class GluAfter(AbstractLRU):
    """The recurrence, and then y = σ(W_m ỹ) ⊙ (W_x ỹ)."""

    W_m: Float[Weight, "d_out mixed"]
    W_x: Float[Weight, "d_out mixed"]

    d_out = axis_size("W_m", 0)

    def after(self, mixed: Float[Array, "*time mixed"]) -> Float[Array, "*time d_out"]:
        return glu(self.W_m, self.W_x, mixed)


# Fields are those of the last base first, so that weights stand in the order in which x meets them.
class LRU(GluAfter):
    """The linear recurrent unit: a gated linear unit after the recurrence."""

    d_in = axis_size("B_re", 1)
    gate_width = axis_size("W_m", 0)

    @classmethod
    def init(
        cls, *, d_in: int, hidden: int, d_out: int, key: PRNGKeyArray, max_phase: float = 2 * np.pi
    ) -> "LRU":
        """Draw |λ| uniformly from (0, 1) and phases from (0, max_phase); γ = √(1−|λ|²)."""
        core_key, m_key, x_key = jax.random.split(key, 3)
        core = random_recurrence(d_in, hidden, d_out, max_phase, core_key)
        return cls(**core, W_m=gaussian(m_key, d_out, d_out), W_x=gaussian(x_key, d_out, d_out))

    def enter(self, xs: Float[Array, "*time d_in"]) -> Float[Array, "*time d_in"]:
        return jnp.asarray(xs)


class LRUInOut(GluAfter, GluBefore):
    """An LRU with a gated linear unit before the recurrence too (the paper's LRU In+Out)."""

    d_in = axis_size("W_in_m", 1)
    gate_width = Size(lambda self: self.W_in_m.shape[0] + self.W_m.shape[0])

    @classmethod
    def init(
        cls, *, d_in: int, hidden: int, d_out: int, key: PRNGKeyArray, max_phase: float = 2 * np.pi
    ) -> "LRUInOut":
        """Draw weights as LRU does; the input gate has as many outputs as the layer has inputs."""
        gates = ("W_in_m", "W_in_x", "W_m", "W_x")
        return cls(**random_in_out(gates, d_in, hidden, d_out, max_phase, key))


class LRUInOutMLP(AbstractLRU, MLPBefore):
    """LRU In+Out with each gate replaced by a one-hidden-layer MLP of as many parameters."""

    W_out_1: Float[Weight, "hidden_out mixed"]
    W_out_2: Float[Weight, "d_out hidden_out"]
    activation: str = eqx.field(static=True, default="relu")

    d_in = axis_size("W_in_1", 1)
    d_out = axis_size("W_out_2", 0)
    gate_width = Size(lambda self: self.W_in_1.shape[0] + self.W_out_1.shape[0])

    def further_problems(self) -> list[str]:
        if self.activation in ACTIVATIONS:
            return []
        return [f"unknown activation {self.activation!r}; use {', '.join(ACTIVATIONS)}"]

    @classmethod
    def init(
        cls,
        *,
        d_in: int,
        hidden: int,
        d_out: int,
        key: PRNGKeyArray,
        max_phase: float = 2 * np.pi,
        activation: str = "relu",
    ) -> "LRUInOutMLP":
        """Draw weights as LRUInOut does: an MLP d → d → d has the 2d² parameters of a gate."""
        gates = ("W_in_1", "W_in_2", "W_out_1", "W_out_2")
        weights = random_in_out(gates, d_in, hidden, d_out, max_phase, key)
        return cls(**weights, activation=activation)

    def enter(self, xs: Float[Array, "*time d_in"]) -> Float[Array, "*time u"]:
        return ACTIVATIONS[self.activation](xs @ self.W_in_1.T) @ self.W_in_2.T

    def after(self, mixed: Float[Array, "*time mixed"]) -> Float[Array, "*time d_out"]:
        return ACTIVATIONS[self.activation](mixed @ self.W_out_1.T) @ self.W_out_2.T


def glu(W_m: Weight, W_x: Weight, xs: Float[Array, "*time d"]) -> Float[Array, "*time gated"]:
    """Return the gated linear unit σ(W_m x) ⊙ (W_x x)."""
    return jax.nn.sigmoid(xs @ W_m.T) * (xs @ W_x.T)


def random_in_out(
    gates: tuple[str, ...], d_in: int, hidden: int, d_out: int, max_phase: float, key: PRNGKeyArray
) -> dict[str, Array]:
    """Draw two square matrices before a random recurrence and two after it."""
    core_key, *keys = jax.random.split(key, 5)
    sizes = zip(gates, keys, (d_in, d_in, d_out, d_out), strict=True)
    weights = {name: gaussian(gate_key, size, size) for name, gate_key, size in sizes}
    return weights | random_recurrence(d_in, hidden, d_out, max_phase, core_key)


def random_recurrence(
    u: int, hidden: int, mixed: int, max_phase: float, key: PRNGKeyArray
) -> dict[str, Array]:
    """Draw the recurrence's weights for the start of training (Orvieto et al. 2023)."""
    keys = jax.random.split(key, 7)
    decay = jax.random.uniform(keys[0], (hidden,), minval=1e-3, maxval=1 - 1e-3)
    phase = jax.random.uniform(keys[1], (hidden,), minval=1e-3, maxval=1.0) * max_phase
    return {
        "nu": nu_from_decay(decay, about="LRU"),
        "theta_log": jnp.log(phase),
        "gamma_log": 0.5 * jnp.log1p(-(decay**2)),
        "B_re": gaussian(keys[2], hidden, u) / np.sqrt(2),
        "B_im": gaussian(keys[3], hidden, u) / np.sqrt(2),
        "C_re": gaussian(keys[4], mixed, hidden),
        "C_im": gaussian(keys[5], mixed, hidden),
        "D": gaussian(keys[6], mixed, u),
    }


def real_recurrence(decay: np.ndarray, B: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weights of h = λh + Bu, ỹ = h, with real λ."""
    n = len(decay)
    return {
        "nu": np.asarray(nu_from_decay(decay, about="LRU")),
        # exp(−100) is a phase that is zero to the last bit.
        "theta_log": np.full(n, -100.0),
        "gamma_log": np.zeros(n),
        "B_re": B,
        "B_im": np.zeros_like(B),
        "C_re": np.eye(n),
        "C_im": np.zeros((n, n)),
        "D": np.zeros((n, B.shape[1])),
    }
