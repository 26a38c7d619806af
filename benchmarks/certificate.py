"""How close the certificate's bound comes to the worst difference that gradient ascent finds.

Trained students from build/students, where there are any, and compiled networks with planted
perturbations of 1e-6. Ascent climbs |rnn − attention| at the last token, from many starts, over
all sequences of tokens of norm `radius` or less. The shares say which part of the bound is due to
the current token alone, to memory × current, to memory × memory, and to rounding.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import OUT, write

import underhood as uh
from underhood.analysis.decompilation.bounding.certificate import (
    Certificate,
    instant_bound,
    memory_with_memory_bound,
    memory_with_now_bound,
)
from underhood.analysis.decompilation.bounding.lags import COARSE, FINE, lag_nodes
from underhood.analysis.forms.quadratic import QuadraticForm
from underhood.common.linear_algebra import upper

STUDENTS = OUT.parent / "students"
MANY, STARTS, STEPS = 6, 30, 200
RADII, TIMES = (1.0, 2.0, 3.0), (8, 32)
# The same networks with D at these scales, and one network on a long sequence.
SCALES, LONG = (1e100, 1e-100), 20_000


def students() -> dict[str, uh.GatedRNN]:
    loaded = {path.stem: uh.load(path) for path in sorted(STUDENTS.glob("t20*_s0.safetensors"))}
    if not loaded:
        print("no students in build/students, so only planted perturbations")
    return dict(list(loaded.items())[:MANY])


def planted(size: float = 1e-6) -> dict[str, uh.GatedRNN | uh.SideGatedRNN]:
    """Compiled networks in which every weight is off, or every decay, or one gate is too many."""
    rng = np.random.default_rng(0)
    source = uh.LinearAttention(*rng.normal(size=(3, 4, 4)) / 2)
    built, side = uh.compile(source).layer, uh.compile(source, "side_gated_rnn").layer
    weights, side_weights = (
        {name: np.asarray(value) for name, value in vars(layer).items() if name != "nu"}
        for layer in (built, side)
    )

    def off(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: W * (1 + size * rng.normal(size=W.shape)) for name, W in arrays.items()}

    faded = np.abs(built.decay - size * rng.uniform(size=built.neurons))
    m, x = rng.normal(size=(2, 1, built.neurons))
    gate = {
        "W_out_m": np.vstack([built.W_out_m, m]),
        "W_out_x": np.vstack([built.W_out_x, x]),
        "D": np.hstack([built.D, size * rng.normal(size=(4, 1))]),
    }
    return {
        f"weights {size:g}": uh.GatedRNN(**off(weights), decay=built.decay),
        f"decays {size:g}": uh.GatedRNN(**weights, decay=faded),
        f"one gate {size:g}": uh.GatedRNN(**{**weights, **gate}, decay=built.decay),
        f"side gates {size:g}": uh.SideGatedRNN(**off(side_weights), decay=side.decay),
    }


def worst_by_ascent(
    form: QuadraticForm, radius: float, time: int, starts: int = STARTS, steps: int = STEPS
) -> float:
    """Steps along each token's gradient, ever shorter, back onto the ball where they leave it."""
    rows, columns = upper(form.d_in + 1)
    fading = form.decay ** np.arange(time - 1, -1, -1)[:, None]

    def length(tokens: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.sum(tokens**2, axis=1, keepdims=True))

    def size(xs: jax.Array) -> jax.Array:
        z = jnp.concatenate([xs, jnp.ones((time, 1))], axis=1)
        state = jnp.sum(fading * ((z[:, rows] * z[:, columns]) @ form.reads.T), axis=0)
        return jnp.sum((form.kernels @ state @ state) ** 2)

    def step(number: int, xs: jax.Array) -> jax.Array:
        gradient = jax.grad(size)(xs)
        xs = xs + 2 * radius * 0.96**number * gradient / jnp.maximum(length(gradient), 1e-200)
        return xs * jnp.minimum(1.0, radius / jnp.maximum(length(xs), 1e-9))

    drawn = np.random.default_rng(1).normal(size=(starts, time, form.d_in))
    # Constant sequences, and constant but for the last token, are good places to start from.
    drawn[::3], drawn[1::3, :-1] = drawn[::3, :1], drawn[1::3, :1]
    climb = jax.jit(jax.vmap(lambda xs: jax.lax.fori_loop(0, steps, step, xs)))
    worst = np.asarray(climb(jnp.asarray(drawn)))
    return float(np.max(np.linalg.norm(form(worst), axis=-1)))


def parts(certificate: Certificate, radius: float, time: int) -> list[float]:
    """The bound, term by term."""
    form = certificate.difference
    fine, coarse = (lag_nodes(form.decay, time, spacing) for spacing in (FINE, COARSE))
    return [
        instant_bound(form, radius),
        memory_with_now_bound(form, fine, radius),
        memory_with_memory_bound(form, coarse, radius),
        certificate.rounding(radius, time),
    ]


def scaled_checks() -> list[dict[str, object]]:
    """Ascent on the difference in its own units; the layers themselves run on what it found."""
    rows = []
    for name, network in planted().items():
        for scale in SCALES:
            certificate = uh.decompile(rescaled(network, scale)).certificate
            bound = certificate.bound(2.0, 32)
            worst = worst_by_ascent(certificate.difference, 2.0, 32)
            worst = float(np.ldexp(worst, certificate.exponent))
            rows.append(shown(f"{name} × {scale:g}", 2.0, 32, bound, worst))
    return rows


def long_checks() -> list[dict[str, object]]:
    """LONG tokens: constant, random and alternating sequences through both layers, and ascent."""
    rows = []
    rng = np.random.default_rng(0)
    for name, network in planted().items():
        for scale in (1.0, *SCALES):
            certificate = uh.decompile(rescaled(network, scale)).certificate
            drawn = rng.normal(size=(8, LONG, network.d_in))
            drawn[:3] = drawn[:3, :1]
            drawn[3] = drawn[3, :1] * (-1.0) ** np.arange(LONG)[:, None]
            xs = 2 * drawn / np.linalg.norm(drawn, axis=2, keepdims=True)
            apart = (
                np.asarray(jax.jit(jax.vmap(layer))(xs))
                for layer in (certificate.network, certificate.attention)
            )
            difference = next(apart) - next(apart)
            largest = float(np.max(np.abs(difference))) or 1.0
            worst = largest * float(np.max(np.linalg.norm(difference / largest, axis=2)))
            bound = certificate.bound(2.0, LONG)
            rows.append(shown(f"{name} × {scale:g}", 2.0, LONG, bound, worst))
            climbed = worst_by_ascent(certificate.difference, 2.0, LONG, starts=3, steps=40)
            climbed = float(np.ldexp(climbed, certificate.exponent))
            rows.append(shown(f"{name} × {scale:g}, ascent", 2.0, LONG, bound, climbed))
    return rows


def rescaled(network: uh.GatedRNN | uh.SideGatedRNN, scale: float) -> uh.GatedRNN | uh.SideGatedRNN:
    return eqx.tree_at(lambda layer: layer.D, network, np.asarray(network.D) * scale)


def shown(name: str, radius: float, time: int, bound: float, worst: float) -> dict[str, object]:
    print(
        f"{name:<26} {radius:6g} {time:6} {bound:9.2e} {worst:9.2e} {bound / worst:9.2f}",
        flush=True,
    )
    return {"network": name, "radius": radius, "time": time, "bound": bound, "worst": worst}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    rows = []
    print(
        f"{'network':<17} residual radius time     bound     worst  factor   "
        "instant  memory × now  memory × memory  rounding"
    )
    for name, network in {**students(), **planted()}.items():
        certificate = uh.decompile(network).certificate
        for radius in RADII:
            for time in TIMES:
                bound = certificate.bound(radius, time)
                worst = worst_by_ascent(certificate.difference, radius, time)
                shares = [part / bound for part in parts(certificate, radius, time)]
                print(
                    f"{name:<17} {certificate.residual:8.1e} {radius:6g} {time:4} {bound:9.2e} "
                    f"{worst:9.2e} {bound / worst:7.2f}  {shares[0]:8.1%} {shares[1]:13.1%} "
                    f"{shares[2]:16.1%} {shares[3]:9.1e}",
                    flush=True,
                )
                rows.append(
                    {
                        "network": name,
                        "radius": radius,
                        "time": time,
                        "bound": bound,
                        "worst": worst,
                        "shares": shares,
                    }
                )
    print(f"the largest factor is {max(row['bound'] / row['worst'] for row in rows):.1f}")
    extremes = [*scaled_checks(), *long_checks()]
    exceeded = [row for row in [*rows, *extremes] if not row["worst"] <= row["bound"]]
    print(f"exceeded: {len(exceeded)} of {len(rows) + len(extremes)}")
    rows += extremes
    write("certificate", rows)


if __name__ == "__main__":
    main()
