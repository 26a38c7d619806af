"""The forms of the linear recurrence side by side, forward and backward, against their floor.

The floor is the time to read the inputs and write the states once, at the copy bandwidth measured
in the same run. Ratios within one run are what counts; the machine may be noisy.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _common import seconds, write

from underhood.layers.base import recurrence

NEURONS, BATCH = 100, 8


def decay_matrix(decay, inputs, initial):
    """h = L u with L_ts = λ^{t−s} written out: one matrix product per neuron, O(T²)."""
    matrix, from_start = recurrence.toeplitz(decay, inputs.shape[0])
    return jnp.einsum("tsn,sn->tn", matrix, inputs) + from_start * initial


FORMS = (
    recurrence.scan,
    recurrence.associative,
    recurrence.doubling,
    decay_matrix,
    recurrence.chunkwise,
)


def measure(form, decay, inputs) -> tuple[float, float]:
    """Seconds forward, and forward with gradients."""

    def states(decay, inputs):
        return jax.vmap(lambda us: recurrence.linear_recurrence(decay, us, form=form))(inputs)

    forward = jax.jit(states)
    gradient = jax.jit(jax.grad(lambda d, u: jnp.sum(states(d, u) ** 2), (0, 1)))
    return (
        seconds(lambda: forward(decay, inputs).block_until_ready()),
        seconds(lambda: jax.block_until_ready(gradient(decay, inputs))),
    )


def main() -> None:
    size = 2**26
    numbers = jnp.arange(size, dtype=jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    bandwidth = 8 * size / seconds(lambda: copy(numbers).block_until_ready())
    device = jax.devices()[0].device_kind
    print(f"{device}: copy {bandwidth / 1e9:.1f} GB/s, n = {NEURONS}, batch {BATCH}, float32")
    print(f"{'T':>6} {'form':<13} {'forward':>9} {'gradient':>9} {'× floor':>8}")
    rows = []
    for time in (32, 256, 2048, 16384, 65536):
        batch = BATCH if time <= 2048 else 1
        rng = np.random.default_rng(0)
        decay = jnp.asarray(rng.uniform(size=NEURONS), jnp.float32)
        inputs = jnp.asarray(rng.normal(size=(batch, time, NEURONS)), jnp.float32)
        floor = 2 * inputs.nbytes / bandwidth
        for form in FORMS:
            name = form.__name__
            if form is decay_matrix and time > 256:
                continue
            taken, back = measure(form, decay, inputs)
            rows.append(
                {"T": time, "form": name, "forward": taken, "gradient": back, "floor": floor}
            )
            print(
                f"{time:>6} {name:<13} {1e3 * taken:7.2f}ms {1e3 * back:7.2f}ms "
                f"{taken / floor:8.1f}"
            )
    write("recurrence", {"device": device, "bandwidth": bandwidth, "rows": rows})


if __name__ == "__main__":
    main()
