"""Networks made to fool a verdict, each with its true function known by construction.

An adversary is a network, the truth about it, and options for `decompile`. `ordinary` ones have
weights of ordinary size and hardly cancel; the others hide something behind rounding, overflow or
underflow, so "undecided" is no shame there.
"""

from dataclasses import dataclass, field

import equinox as eqx
import jax
import numpy as np
from scrambles import weights
from teachers import attention

import underhood as uh

ATTENTION, NOT = "attention", "not attention"
GATES = ("W_in_m", "W_in_x", "W_out_m", "W_out_x", "D")


@dataclass(frozen=True)
class Adversary:
    name: str
    network: object
    truth: str
    ordinary: bool = False
    options: dict = field(default_factory=dict)


def source():
    return attention(3, 5)


def compiled(target="gated_rnn"):
    return uh.compile(source(), target).layer


def random_network(seed=0, **sizes):
    sizes = {"d_in": 3, "hidden": 8, "gated": 8, "d_out": 3} | sizes
    drawn = uh.GatedRNN.init(**sizes, key=jax.random.key(seed))
    return jax.tree.map(lambda leaf: np.asarray(leaf, float), drawn)


def with_squares(rnn, readouts, decays):
    """More neurons Σ λ^k x₁², each squared by a gate output of its own, read by output 0."""
    given, more = weights(rnn), len(readouts)
    n, gated = rnn.neurons, rnn.gate_width
    reads = np.zeros((more, rnn.d_in + 1))
    reads[:, 0] = 1.0
    gates = np.zeros((more, n + more))
    gates[np.arange(more), n + np.arange(more)] = 1.0
    D = np.zeros((rnn.d_out, more))
    D[0] = readouts
    return uh.GatedRNN(
        W_in_m=np.vstack([given["W_in_m"], reads]),
        W_in_x=np.vstack([given["W_in_x"], reads]),
        decay=np.append(given["decay"], decays),
        W_out_m=np.vstack([np.pad(given["W_out_m"], ((0, 0), (0, more))), gates]),
        W_out_x=np.vstack([np.pad(given["W_out_x"], ((0, 0), (0, more))), gates]),
        D=np.hstack([given["D"], D]).reshape(rnn.d_out, gated + more),
    )


def scaled(rnn, **powers):
    """Weights times powers of ten."""
    for name, power in powers.items():
        where = lambda layer, name=name: getattr(layer, name)  # noqa: E731
        rnn = eqx.tree_at(where, rnn, np.asarray(getattr(rnn, name)) * 10.0**power)
    return rnn


def leaking(rnn, leak):
    """The same network with memory that loses the share `leak` per token."""
    decay = np.where(rnn.decay == 1, 1 - leak, rnn.decay)
    return uh.GatedRNN(**(weights(rnn) | {"decay": decay}))


def doubled_memory(rnn, strength, leak):
    """The network plus `strength` times (itself − itself with leaking memory)."""
    first, second = weights(rnn), weights(leaking(rnn, leak))
    blocks = [(first, 1 + strength), (second, -strength)]
    zero = np.zeros_like(first["W_out_m"])
    return uh.GatedRNN(
        **{name: np.vstack([part[name] for part, _ in blocks]) for name in ("W_in_m", "W_in_x")},
        decay=np.concatenate([part["decay"] for part, _ in blocks]),
        **{
            name: np.block([[first[name], zero], [zero, second[name]]])
            for name in ("W_out_m", "W_out_x")
        },
        D=np.hstack([share * part["D"] for part, share in blocks]),
    )


def dense(rnn, A):
    return uh.DenseGatedRNN(A=A, **{name: weights(rnn)[name] for name in GATES})


def sums_of_squares(decay, readout=1.0, d=1):
    """One neuron, one gate output: (Σ λ^k x₁²)²."""
    row = np.eye(1, d + 1)
    eye = np.ones((1, 1))
    return uh.GatedRNN(
        W_in_m=row,
        W_in_x=row,
        decay=np.array([decay]),
        W_out_m=eye,
        W_out_x=eye,
        D=np.array([[readout]]),
    )


def one_neuron(m, x, decay):
    """One neuron that reads one token [x; 1], squared."""
    eye = np.ones((1, 1))
    gates = {"W_in_m": np.array([m], float), "W_in_x": np.array([x], float)}
    return uh.GatedRNN(**gates, decay=np.array([decay]), W_out_m=eye, W_out_x=eye, D=eye)


def weights_of(layer):
    return layer.W_V, layer.W_K, layer.W_Q


def review_pair(readouts, decays):
    """The review's network: (Σ x²)² twice, with readouts that nearly cancel."""
    row, eye = np.array([[1.0, 0.0], [1.0, 0.0]]), np.eye(2)
    return uh.GatedRNN(
        W_in_m=row,
        W_in_x=row,
        decay=np.array(decays),
        W_out_m=eye,
        W_out_x=eye,
        D=np.array([readouts]),
    )


def without_current_token(rnn):
    """Memory without the current token: λ = 0 neurons subtract what memory neurons just wrote."""
    given = weights(rnn)
    memory = given["decay"] == 1
    return uh.GatedRNN(
        **{name: np.vstack([given[name], given[name][memory]]) for name in ("W_in_m", "W_in_x")},
        decay=np.append(given["decay"], np.zeros(memory.sum())),
        **{
            name: np.hstack([given[name], -given[name][:, memory]])
            for name in ("W_out_m", "W_out_x")
        },
        D=given["D"],
    )


def multi_head(heads, d=3, d_k=None, seed=0, target="gated_rnn"):
    rng = np.random.default_rng([heads, d, seed])
    made = [
        uh.LinearAttention(rng.normal(size=(d, d)), *rng.normal(size=(2, d_k or d, d)))
        for _ in range(heads)
    ]
    return uh.compile(uh.MultiHead(made, rng.normal(size=(d, heads * d)) / heads), target).layer


def in_float32(rnn):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), rnn)


def adversaries():
    rnn, rng = compiled(), np.random.default_rng(0)
    n = rnn.neurons
    memory = np.flatnonzero(np.asarray(rnn.decay) == 1)
    jordan = np.diag(np.asarray(rnn.decay))
    jordan[memory[0], memory[1]] = 1.0
    turning = np.diag(np.asarray(rnn.decay))
    turning[np.ix_(memory[:2], memory[:2])] = [[0.6, 0.8], [-0.8, 0.6]]
    growing = np.diag(np.where(np.asarray(rnn.decay) == 1, 1.001, 0.0))
    cases = [
        Adversary(f"cancelling to degree 4 at {S:.0e}", with_squares(rnn, [S, -S + 1], [1, 1]), NOT)
        for S in (1e6, 1e8, 1e10, 1e12, 1e14, 1e15)
    ]
    cases += [
        Adversary(f"cancelling exactly at {S:.0e}", with_squares(rnn, [S, -S], [1, 1]), ATTENTION)
        for S in (1e6, 1e8, 1e10, 1e12, 1e14, 1e15, 1e100)
    ]
    for power in (160, 152, 153, 300, -160, -170, -300):
        cases += [
            Adversary(f"attention, D × 1e{power}", scaled(rnn, D=power), ATTENTION),
            Adversary(f"random, D × 1e{power}", scaled(random_network(), D=power), NOT),
        ]
    cases += [
        Adversary("input gates × 1e100", scaled(rnn, W_in_m=100), ATTENTION),
        Adversary("input gates × 1e-100", scaled(rnn, W_in_m=-100, W_in_x=-60), ATTENTION),
        Adversary("out × 1e150, D × 1e-150", scaled(rnn, W_out_m=150, D=-150), ATTENTION),
        Adversary("random, out × 1e150", scaled(random_network(1), W_out_m=150, D=-200), NOT),
        Adversary(
            "side, side gate × 1e-150", scaled(compiled("side_gated_rnn"), W_side=-150), ATTENTION
        ),
        Adversary("the review's pair", review_pair([1e12, -1e12 * (1 - 1e-12)], [1.0, 1.0]), NOT),
        Adversary("the review's decays", review_pair([1e8, -1e8], [1.0, 1 - 1e-7]), NOT),
        Adversary(
            "the review's pair × 1e152", review_pair([1e164, -1e164 * (1 - 1e-12)], [1.0, 1.0]), NOT
        ),
        Adversary("a pair of opposites", review_pair([1.0, -1.0], [1.0, 1.0]), ATTENTION),
        Adversary(
            "degree 4 of share 1e-8",
            with_squares(rnn, [1e8, -1e8 + 1e-7], [1, 1]),
            NOT,
            options={"tolerance": 1e-11},
        ),
        Adversary("the same, allowed", with_squares(rnn, [1e8, -1e8 + 1e-7], [1, 1]), ATTENTION),
        Adversary("one neuron, memory", sums_of_squares(1.0), NOT, True),
        Adversary("one neuron, no memory", sums_of_squares(0.0), NOT, True),
        Adversary("one fading neuron of two inputs", sums_of_squares(0.5, d=2), NOT, True),
        Adversary("one input", uh.compile(attention(1, 3)).layer, ATTENTION, True),
        Adversary("float32 weights", in_float32(rnn), ATTENTION, True),
        Adversary("random float32 weights", in_float32(random_network(2)), NOT, True),
        Adversary(
            "float32, cancelling at 1e6",
            in_float32(with_squares(rnn, [1e6, -1e6], [1, 1])),
            ATTENTION,
        ),
        Adversary(
            "float32, cancelling to 1", in_float32(with_squares(rnn, [1e6, -1e6 + 1], [1, 1])), NOT
        ),
        Adversary("dense, diagonal", dense(rnn, np.diag(np.asarray(rnn.decay))), ATTENTION, True),
        Adversary("dense, a Jordan block", dense(rnn, jordan), NOT),
        Adversary("dense, turning", dense(rnn, turning), NOT),
        Adversary("dense, growing", dense(rnn, growing), NOT),
        Adversary("zeros", with_zeros(rnn), ATTENTION, True),
        Adversary("compiled", rnn, ATTENTION, True),
        Adversary("side-gated", compiled("side_gated_rnn"), ATTENTION, True),
        Adversary("random", random_network(), NOT, True),
        Adversary(
            "random, six inputs", random_network(3, d_in=6, d_out=6, hidden=12, gated=12), NOT, True
        ),
        Adversary("two heads", multi_head(2), ATTENTION, True),
        Adversary("three heads of rank one", multi_head(3, 4, 1), ATTENTION, True),
        Adversary("two heads, one allowed", multi_head(2), NOT, True, {"max_heads": 1}),
        Adversary("six heads, four allowed", multi_head(6, 6), NOT, True),
        Adversary("two side-gated heads", multi_head(2, target="side_gated_rnn"), ATTENTION, True),
        Adversary("a square added", with_squares(rnn, [0.1], [1.0]), NOT, True),
        Adversary("a fading square added", with_squares(rnn, [0.1], [0.5]), NOT, True),
        Adversary("a small square added", with_squares(rnn, [1e-8], [1.0]), ATTENTION, True),
        Adversary("without the current token", without_current_token(rnn), NOT, True),
        Adversary(
            "weights off by a hundredth", off_by(rnn, 1e-2, rng), NOT, True, {"max_heads": 1}
        ),
        Adversary("every weight off by 1e-6", off_by(rnn, 1e-6, rng), ATTENTION, True),
        Adversary("dead neurons", with_squares(rnn, [0.0] * 3, [1.0, 0.5, 0.0]), ATTENTION, True),
        Adversary("weak neurons", with_squares(rnn, [1e-300, 1e-200], [1.0, 0.5]), ATTENTION, True),
    ]
    cases += [
        Adversary(f"leaking by 1e-{k}", leaking(rnn, 10.0**-k), ATTENTION, k < 8)
        for k in (2, 4, 7, 10, 13)
    ]
    cases += [
        Adversary(
            f"leak 1e-{k} times 1e{k - 1}",
            doubled_memory(rnn, 10.0 ** (k - 1), 10.0**-k),
            NOT,
            options={"max_heads": 1},
        )
        for k in (2, 4, 6, 8)
    ]
    # Heads of decay 0 are not searched for, so these may be undecided; they are never denied.
    for decay in ([0.0] * 3, [1.0, 0.0, 0.5], [1e-6] * 3, [0.9, 0.9005, 0.0]):
        forgetful = uh.LinearAttention(*weights_of(source()), decay=np.array(decay))
        cases.append(
            Adversary(f"attention with decays {decay}", uh.compile(forgetful).layer, ATTENTION)
        )
    skip = uh.LinearAttention(
        0.1 * np.eye(3), *np.zeros((2, 1, 3)), b_K=np.ones(1), b_Q=np.ones(1), decay=np.zeros(3)
    )
    skipped = uh.MultiHead([source(), skip], np.hstack([np.eye(3), np.eye(3)]))
    cases += [
        Adversary("attention plus the token", uh.compile(skipped).layer, ATTENTION),
        Adversary("one neuron, the token squared", one_neuron([0, 1], [1, 0], 0.0), ATTENTION),
        Adversary("one neuron, a constant", one_neuron([0, 1], [0, 1], 0.0), ATTENTION),
        Adversary("a fading constant squared", one_neuron([0, 1], [0, 1], 0.5), ATTENTION),
    ]
    cases.append(Adversary("the review's leak", doubled_memory(rnn, 1e2, 1e-7), ATTENTION))
    assert n == rnn.neurons and len(cases) >= 40
    return cases


def with_zeros(rnn):
    return uh.GatedRNN(**(weights(rnn) | {"D": np.zeros_like(rnn.D)}))


def off_by(rnn, share, rng):
    """Every weight but the decays off by a random share."""
    changed = {
        name: W * (1 + share * rng.normal(size=W.shape))
        for name, W in weights(rnn).items()
        if name != "decay"
    }
    return uh.GatedRNN(**(weights(rnn) | changed))
