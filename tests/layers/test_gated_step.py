"""The CUDA kernel of a gated RNN's step, run on the CPU: loss and gradients are the layer's own.

`emulation.h` runs the kernel's text with a thread per GPU thread. It needs a C++ compiler.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.emulated import compiler_of, pointer

from underhood.layers.kernels import gated_step
from underhood.layers.kernels.gated_step import GateWeights, step_sizes

pytestmark = pytest.mark.usefixtures("x64")

# members, parts, batch, time, d_in, hidden, gated, d_out
CASES = {
    "as large as the minimal network": (1, 1, 4, 32, 4, 14, 10, 4),
    "two members in two parts": (2, 2, 8, 16, 3, 5, 7, 2),
    "more neurons than gate outputs": (1, 1, 4, 32, 12, 28, 9, 12),
    "more gate outputs than neurons": (1, 2, 4, 32, 2, 9, 40, 1),
    "one of everything": (1, 1, 1, 64, 1, 1, 1, 1),
    "chunks of 32 tokens": (1, 1, 1, 32, 4, 20, 20, 4),
    "more warps than tiles": (1, 1, 16, 4, 3, 5, 7, 2),
}


def draw(members, batch, time, d_in, hidden, gated, d_out):
    rng = np.random.default_rng(0)
    shapes = {
        "W_in_m": (hidden, d_in + 1),
        "W_in_x": (hidden, d_in + 1),
        "decay": (hidden,),
        "W_out_m": (gated, hidden),
        "W_out_x": (gated, hidden),
        "D": (d_out, gated),
    }
    arrays = {
        name: (rng.normal(size=(members, *shape)) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes.items()
    }
    arrays["decay"] = rng.uniform(size=(members, hidden)).astype(np.float32)
    # λ at its ends.
    arrays["decay"][:, : hidden // 3] = 1.0
    arrays["decay"][:, hidden // 3 : hidden // 2] = 0.0
    xs = rng.normal(size=(members, batch, time, d_in)).astype(np.float32)
    targets = rng.normal(size=(members, batch, time, d_out)).astype(np.float32)
    return GateWeights(**arrays), xs, targets


def sizes_of(weights, xs):
    member = GateWeights(*(jnp.asarray(array[0]) for array in weights))
    return step_sizes(member, jnp.asarray(xs[0]))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Compile for the sizes of a case."""
    return compiler_of("gated_step", tmp_path_factory.mktemp("kernels"))


def emulated(library, sizes, parts, weights, xs, targets):
    members, batch = xs.shape[:2]
    sums = np.full((members, sizes.numbers), np.nan, np.float32)
    given = (*weights, xs, targets)
    library.gated_step_emulated(members, parts, batch, *map(pointer, given), pointer(sums))
    return sums


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_the_layers_own(libraries, case):
    members, parts, *shape = CASES[case]
    check_step(libraries, parts, *draw(members, *shape))


SCALED = (1, 1, 8, 32, 3, 10, 9, 2)


def test_products_are_as_accurate_at_other_scales(libraries):
    members, parts, *shape = SCALED
    weights, xs, targets = draw(members, *shape)
    scales = {"W_in_m": 1e-5, "W_in_x": 3e4, "W_out_m": 2e-7, "W_out_x": 4e3, "D": 5e4}
    weights = GateWeights(
        **{name: scales.get(name, 1) * array for name, array in weights._asdict().items()}
    )
    check_step(libraries, parts, GateWeights(*map(np.float32, weights)), xs, targets)


def test_a_scale_that_falls_keeps_what_was_summed(libraries):
    members, parts, *shape = SCALED
    weights, xs, targets = draw(members, *shape)
    # A chunk has two sequences. The slopes of the last chunk are the smallest of all.
    growth = np.repeat([1e-2, 1, 30, 3e-2], 2).astype(np.float32)[:, None, None]
    check_step(libraries, parts, weights, xs * growth, targets * growth)


@pytest.mark.parametrize("name", ["W_in_m", "W_out_x", "D", "decay"])
def test_zero_weights_have_a_loss_and_gradients(libraries, name):
    members, parts, *shape = SCALED
    weights, xs, targets = draw(members, *shape)
    weights = weights._replace(**{name: np.zeros_like(getattr(weights, name))})
    check_step(libraries, parts, weights, xs, targets)


def test_what_is_not_a_number_stays_so(libraries):
    members, parts, *shape = SCALED
    weights, xs, targets = draw(members, *shape)
    weights.W_out_m[0, 3, 2] = np.nan
    sizes = sizes_of(weights, xs)
    sums = emulated(libraries(sizes), sizes, parts, weights, xs, targets)
    assert np.isnan(gated_step.unpacked(sizes, jnp.asarray(sums[0]))["loss"])


def check_step(libraries, parts, weights, xs, targets):
    """Compare all that the kernel writes with equations in float64."""
    members = len(xs)
    plain = jax.jit(jax.value_and_grad(gated_step.plain_loss))
    sizes = sizes_of(weights, xs)
    assert sizes is not None
    sums = emulated(libraries(sizes), sizes, parts, weights, xs, targets)
    for member in range(members):
        wide = GateWeights(*(jnp.asarray(array[member], jnp.float64) for array in weights))
        loss, slopes = plain(wide, jnp.asarray(xs[member], jnp.float64), targets[member])
        expected = slopes._asdict() | {"loss": loss}
        for name, array in gated_step.unpacked(sizes, jnp.asarray(sums[member])).items():
            largest = np.max(np.abs(expected[name]))
            error = np.max(np.abs(array - expected[name]))
            assert error <= 3e-6 * largest, (name, error, largest)


@pytest.mark.parametrize(("factor", "used"), [(1.0, True), (1.001, False), (np.nan, False)])
def test_a_kernel_that_is_wrong_on_a_machine_is_not_used(libraries, monkeypatch, factor, used):
    sizes = sizes_of(*draw(*SCALED[:1], *SCALED[2:])[:2])
    library = libraries(sizes)

    def call_step(target, sizes, weights, xs, targets):
        arrays = (np.asarray(array, np.float32)[None] for array in (*weights, xs, targets))
        *weights, xs, targets = arrays
        return factor * jnp.asarray(emulated(library, sizes, 1, weights, xs, targets)[0])

    monkeypatch.setattr(gated_step, "registered", lambda *given: "step")
    monkeypatch.setattr(gated_step, "call_step", call_step)
    gated_step.registered_target.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert (gated_step.registered_target(sizes) is not None) == used
        assert bool(warned) != used
    finally:
        gated_step.registered_target.cache_clear()


@pytest.mark.parametrize(
    ("time", "batch", "hidden", "d", "tokens"),
    [
        (32, 64, 100, 4, 64),
        (32, 64, 110, 12, 32),
        (32, 1, 20, 4, 32),
        (16, 64, 20, 4, 64),
        (24, 64, 20, 4, None),
        (128, 64, 20, 4, None),
        (32, 64, 200, 4, None),
        (32, 64, 20, 13, None),
    ],
)
def test_sizes_are_those_that_fit_on_the_chip(time, batch, hidden, d, tokens):
    weights, xs, _ = draw(1, batch, time, d, hidden, hidden, d)
    sizes = sizes_of(weights, xs)
    assert (sizes and sizes.tokens) == tokens
    assert sizes is None or sizes.bytes <= 227 * 1024
