"""The CUDA kernels of an LSTM's walk, run on the CPU: states and gradient are the equations' own.

`emulation.h` runs the kernels' text with a thread per GPU thread. It needs a C++ compiler.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.emulated import compiler_of, pointer

from underhood.layers.kernels import lstm_walk
from underhood.layers.kernels.lstm_walk import WALKED_AT_ONCE, WalkSizes

pytestmark = pytest.mark.usefixtures("x64")

# members, batch, time, d_in, hidden
CASES = {
    "one of everything": (1, 1, 1, 1, 1),
    "two programs of two members": (2, 17, 3, 4, 20),
    "as wide as it goes": (1, 3, 2, 15, 64),
    "an odd number of tiles": (1, 2, 4, 8, 17),
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Compile for the sizes of a case."""
    return compiler_of("lstm_walk", tmp_path_factory.mktemp("kernels"))


def draw(members, batch, time, d_in, hidden):
    rng = np.random.default_rng(0)
    shapes = {
        "W": (members, 4, hidden, hidden + d_in + 1),
        "xs": (members, batch, time, d_in),
        "slopes": (members, time, batch, hidden),
    }
    scale = {"W": 1 / np.sqrt(hidden), "xs": 1, "slopes": 1}
    return [np.float32(scale[name] * rng.normal(size=shape)) for name, shape in shapes.items()]


def check_walk(libraries, W, xs, slopes):
    """Compare what the kernels write with the equations in float64."""
    (members, batch, time, d_in), hidden = xs.shape, W.shape[2]
    library = libraries(WalkSizes(time, d_in, hidden))
    states = np.full((members, time, batch, hidden), np.nan, np.float32)
    by_W = np.full((members, -(-batch // WALKED_AT_ONCE), *W.shape[1:]), np.nan, np.float32)
    given = (W, xs, slopes, states, by_W)
    library.lstm_walk_emulated(members, batch, *map(pointer, given))
    for member in range(members):
        wide = [jnp.asarray(array[member], jnp.float64) for array in (W, xs, slopes)]
        walk = jax.jit(lambda W, xs: jax.vjp(partial(lstm_walk.plain_states, xs=xs), W))
        expected, back = walk(*wide[:2])
        expected_by_W = back(wide[2])[0]
        for array, right in ((states[member], expected), (by_W[member].sum(0), expected_by_W)):
            assert np.max(np.abs(array - right)) <= 2e-6 * np.max(np.abs(right))


@pytest.mark.parametrize("case", CASES)
def test_states_and_gradient_are_those_of_the_equations(libraries, case):
    check_walk(libraries, *draw(*CASES[case]))


@pytest.mark.parametrize("scales", [(1e-3, 1, 1e-4), (1, 10, 1e-9), (3, 1e-4, 1e6), (0, 1, 1)])
def test_any_scale_of_weights_inputs_and_slopes(libraries, scales):
    arrays = draw(*CASES["an odd number of tiles"])
    W, xs, slopes = (np.float32(c * array) for c, array in zip(scales, arrays, strict=True))
    check_walk(libraries, W, xs, slopes)


def test_slopes_that_grow_and_fall_over_time(libraries):
    W, xs, slopes = draw(*CASES["an odd number of tiles"])
    growth = np.float32([1e3, 1e-4, 10, 1e-2])[:, None, None]
    check_walk(libraries, W, xs, growth * slopes)
