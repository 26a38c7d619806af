"""What notebooks show: tables with escaped text and pictures that can be decoded."""

import base64
import io
import re
from html.parser import HTMLParser

import equinox as eqx
import jax
import matplotlib.image
import numpy as np
import pytest
from teachers import random_gated

import underhood as uh
from underhood.layers.base.markup import colours, html_picture, html_table, largest_of_blocks, png
from underhood.layers.rendering import layer_html


class Balance(HTMLParser):
    """Closes every tag that was opened."""

    def __init__(self):
        super().__init__()
        self.opened, self.cells = [], []

    def handle_starttag(self, tag, attributes):
        if tag != "img":
            self.opened.append(tag)

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        self.cells.append(data)


def cells(html):
    parser = Balance()
    parser.feed(html)
    assert not parser.opened
    return parser.cells


def test_a_layer_is_a_table_of_its_arrays():
    rng = np.random.default_rng(0)
    layer = random_gated(rng, 2, 5, 3, 2, decays=[0.25, 1.0])
    shown = cells(layer._repr_html_())
    assert shown[0] == "GatedRNN: d_in 2, d_out 2, neurons 5"
    for name, shape in (("W_in_m", "5 × 3"), ("decay", "5"), ("W_out_x", "3 × 5"), ("D", "2 × 3")):
        assert shown[shown.index(name) + 1] == shape
    assert "nu" not in shown
    assert "0.25" in shown


def test_stacks_heads_constructions_and_decompilations_are_shown():
    attention = uh.LinearAttention(*np.random.default_rng(0).normal(size=(3, 2, 2)))
    built = uh.compile(attention, "lstm", order=1)
    shown = cells(built._repr_html_())
    # A role per neuron would fill the screen.
    assert "exact=False" in repr(built) and "roles" not in repr(built)
    assert {"Construction", "lstm", "layers.0.U_f", "readout.W"} <= set(shown)
    assert shown[shown.index("memory neurons") + 1] == str(
        sum(role.kind == "memory" for role in built.roles)
    )
    assert "heads.0.W_V" in cells(uh.MultiHead([attention])._repr_html_())
    shown = cells(uh.decompile(uh.compile(attention).layer)._repr_html_())
    assert {"attention", "M = W_KᵀW_Q", "2 × 2", "query neurons"} <= set(shown)


def test_text_is_escaped_and_odd_arrays_are_shown():
    table = html_table("<b>&", [{"a<": "<script>", "b": None}]).text
    assert "<script>" not in table and "&lt;script&gt;" in table and "&lt;b&gt;&amp;" in table
    assert "onerror" not in re.sub(
        r"alt='[^']*'", "", html_picture("' onerror='x", np.ones(2)).text
    )

    class Odd(eqx.Module):
        weights: dict
        function: object = eqx.field(static=True, default=print)

    odd = {
        "<i>": np.zeros((0, 3)),
        "z": np.ones((2, 3, 4)) + 1j,
        "n": np.float32([np.nan]),
        "s": np.array(2.0),
    }
    shown = cells(layer_html(Odd(odd)))
    assert "weights.<i>" in shown and "2 × 3 × 4" in shown and "number" in shown
    seen = []
    jax.jit(lambda layer: seen.append(layer_html(layer)))(Odd({"w": np.ones(3)}))
    assert "3" in cells(seen[0])


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (48, 96), (49, 97), (200, 1)])
def test_a_picture_shows_signs_and_sizes(shape):
    matrix = np.random.default_rng(0).normal(size=shape)
    source = re.search(r"base64,([^']*)'", html_picture("W", matrix).text)[1]
    seen = matplotlib.image.imread(io.BytesIO(base64.b64decode(source)), format="png")
    blocks = largest_of_blocks(matrix)
    assert seen.shape[:2] == blocks.shape and blocks.shape[0] <= 48 and blocks.shape[1] <= 96
    np.testing.assert_allclose(seen[..., :3] * 255, colours(blocks), atol=0.5)
    blue = seen[..., 2] > seen[..., 0]
    strong = np.abs(blocks) > 0.05 * np.abs(blocks).max()
    np.testing.assert_array_equal(blue[strong], (blocks > 0)[strong])
    if blocks.shape == shape:
        np.testing.assert_array_equal(blocks, matrix)
    assert np.max(np.abs(blocks)) == np.max(np.abs(matrix))


def test_a_picture_of_nothing_is_empty_and_of_zeros_is_white():
    assert html_picture("W", np.zeros((0, 3))).text == ""
    assert np.all(colours(np.zeros((2, 2))) == 255)
    assert png(colours(np.zeros((2, 2)))).startswith(b"\x89PNG")
