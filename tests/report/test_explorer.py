"""The construction explorer in a real browser: its numbers are those of Python."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explorer_cases import (
    TIME,
    WIDTH,
    attention_of,
    drawn_settings,
    layer_of,
    padded,
    special_sources,
)

import underhood as uh
from underhood.layers.base.layer import Layer
from underhood.layers.base.recurrence import linear_recurrence
from underhood.report import page as report_page

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("x64")]
# Functions that the tests call themselves.
EXPOSED = (
    "buildConstruction, simulateBoth, plainNumbers, drawAttention, drawInputs, matrixFromRows, "
    "genericCounts, fullSvd"
)
COLOURS = ("ink", "paper", "muted", "line", "surface", "accent", "positive", "negative", "focus")
FORMS = {
    "full": ("gated_rnn", "full"),
    "compact": ("gated_rnn", "compact"),
    "minimal": ("gated_rnn", "minimal"),
    "side": ("side_gated_rnn", "minimal"),
}


def page_text() -> str:
    """The assets in one page, as a report has them: one script and one style, known by hash."""
    script = report_page.script("explorer.js")
    script += "\nexplorer(document.getElementById('explorer'));"
    script += f"\nwindow.underTest = {{ {EXPOSED} }};"
    colours = "; ".join(f"--{name}: #{3 * str(number)}" for number, name in enumerate(COLOURS))
    style = f":root {{ {colours} }} " + report_page.asset("explorer.css")
    policy = f"default-src 'none'; script-src '{report_page.policy_hash(script)}'"
    policy += f"; style-src '{report_page.policy_hash(style)}'"
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Explorer</title>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<meta name='viewport' content='width=device-width'>"
        f"<style>{style}</style></head><body><div id='explorer'></div>"
        f"<script type='module'>{script}</script></body></html>"
    )


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "page.html"
    path.write_text(page_text())
    return path.as_uri()


@pytest.fixture(scope="module")
def shared(chromium, address):
    """One page for the tests that only call functions."""
    page = chromium.new_page()
    page.goto(address)
    yield page
    page.close()


@pytest.fixture
def explorer(chromium, address):
    """A fresh explorer; what it writes to the console fails the test."""
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    yield page
    context.close()
    assert complaints == []


def state(page):
    handle = "document.getElementById('explorer').explorer"
    return json.loads(page.evaluate(f"JSON.stringify({handle}.state())"))


def choose(page, **choices):
    for name, value in choices.items():
        page.select_option(f"[name=x-{name}]", str(value))


# Attention and network in the browser, for weights and inputs that come from here. As text,
# because Playwright takes seconds to hand over so many numbers one by one.
RUN = """text => JSON.stringify(JSON.parse(text).map(({ form, inputs, ...weights }) => {
  const { matrixFromRows, buildConstruction, simulateBoth, plainNumbers } = window.underTest;
  const attention = Object.fromEntries(
    Object.entries(weights).map(([name, W]) => [name, matrixFromRows(W)]));
  const construction = buildConstruction(attention, form);
  return plainNumbers({ construction, ...simulateBoth(attention, construction, inputs) });
}))"""

DRAW = """cases => cases.map((settings) => {
  const { drawAttention, drawInputs, plainNumbers } = window.underTest;
  const { inputs } = drawInputs(settings, settings.preset === "gd");
  return plainNumbers({ ...drawAttention(settings), inputs });
})"""


@pytest.fixture(scope="module")
def cases(shared):
    """Every form of every source, as [name, case, what the browser made of it]."""
    rng = np.random.default_rng(1)
    settings = list(drawn_settings())
    sources = list(zip(map(str, settings), shared.evaluate(DRAW, settings), strict=True))
    for name, *weights in special_sources():
        names = ("W_V", "W_K", "W_Q")
        draw = {key: W.tolist() for key, W in zip(names, weights, strict=True)}
        inputs = rng.normal(size=(6, weights[0].shape[1])).tolist()
        sources.append((f"{name} {weights[0].shape}", draw | {"inputs": inputs}))
    asked = [(f"{form} {name}", draw | {"form": form}) for name, draw in sources for form in FORMS]
    answers = json.loads(shared.evaluate(RUN, json.dumps([case for _, case in asked])))
    return [(name, case, answer) for (name, case), answer in zip(asked, answers, strict=True)]


@eqx.filter_jit
def streamed(layer: Layer, xs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """States and outputs of the Python layer."""
    return linear_recurrence(jnp.asarray(layer.decay), layer.write(xs)), layer(xs)


def sizes_of(built: uh.Construction) -> dict[str, int]:
    parameters = built.parameters
    return {"neurons": built.neurons, "gates": built.gate_width, "parameters": parameters}


def close(actual, expected, *, relative: float = 1e-10) -> bool:
    actual, expected = np.asarray(actual, float), np.asarray(expected, float)
    scale = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
    return actual.shape == expected.shape and bool(
        np.max(np.abs(actual - expected), initial=0.0) <= relative * scale
    )


def test_sizes_roles_and_refusals_are_those_of_compile(cases):
    refusals = 0
    for name, case, answer in cases:
        target, form = FORMS[case["form"]]
        built = answer["construction"]
        try:
            expected = uh.compile(attention_of(case), target=target, form=form)
        except uh.ImpossibleConstruction as refusal:
            refusals += 1
            reasons = " ".join(refusal.reasons)
            assert built["refusal"] == f"The compact form is not possible: {reasons}", name
            continue
        assert built["refusal"] is None, name
        assert built["counts"] == sizes_of(expected), name
        roles = [(role["kind"], role["label"]) for role in built["roles"]]
        assert roles == list(expected.roles), name
    assert refusals > 20


def test_attention_and_networks_in_python_do_what_they_do_in_the_browser(cases):
    attended = eqx.filter_jit(lambda layer, xs: layer(xs))
    for name, case, answer in cases:
        xs, steps = np.array(case["inputs"]), answer["steps"]
        tokens = jnp.asarray(padded(xs, TIME, WIDTH))
        weights = [padded(case[W], WIDTH, WIDTH) for W in ("W_V", "W_K", "W_Q")]
        expected = attended(uh.LinearAttention(*weights), tokens)
        ys = [step["attention"]["output"] for step in steps]
        assert close(ys, expected[: len(xs), : len(ys[0])]), name
        values, keys = (xs @ np.array(case[W]).T for W in ("W_V", "W_K"))
        states = np.cumsum(np.einsum("ti,tj->tij", values, keys), axis=0)
        assert close([step["attention"]["keyValues"] for step in steps], states), name
        if answer["construction"]["refusal"]:
            continue
        for part, expected in zip(
            ("hidden", "output"),
            streamed(layer_of(answer["construction"]["layer"], xs.shape[1]), tokens),
            strict=True,
        ):
            seen = np.array([step["network"][part] for step in steps])
            assert close(seen, expected[: len(xs), : seen.shape[1]]), name


def test_the_network_is_attention_and_its_memory_the_key_values(cases):
    for name, case, answer in cases:
        if answer["construction"]["refusal"]:
            continue
        # Compact inverts a matrix, which costs its condition number.
        relative = 1e-12
        if case["form"] == "compact":
            relative *= max(condition(case["W_V"]), 1)
        for step in answer["steps"]:
            network, attention = step["network"], step["attention"]
            assert close(network["output"], attention["output"], relative=relative), name
            assert close(network["readBack"], attention["readBack"], relative=relative), name
            if case["form"] == "full":
                assert close(network["memory"], attention["keyValues"], relative=relative), name
            recomputed = np.subtract(network["output"], attention["output"])
            assert np.array_equal(step["difference"], recomputed), name
        largest = max(np.max(np.abs(step["difference"])) for step in answer["steps"])
        assert answer["largest"]["difference"] == largest


def condition(W) -> float:
    s = np.linalg.svd(np.array(W), compute_uv=False)
    return s[0] / s[-1] if s[-1] > 1e-14 * s[0] else 1e3


def test_sizes_against_d(shared):
    rng = np.random.default_rng(2)
    for form, (target, python_form) in FORMS.items():
        for d in range(1, 9):
            source = uh.LinearAttention(*rng.normal(size=(3, d, d)))
            built = uh.compile(source, target=target, form=python_form)
            counts = shared.evaluate(f"window.underTest.genericCounts('{form}', {d})")
            assert counts == sizes_of(built)


def test_singular_values(shared):
    rng = np.random.default_rng(3)
    shapes = [(1, 1), (1, 6), (6, 1), (5, 3), (3, 5), (6, 6), (12, 12)]
    matrices = [rng.normal(size=shape) for shape in shapes]
    matrices += [W[:, :1] @ W[:1] for W in matrices] + [np.ones(shape) for shape in shapes]
    matrices += [np.zeros(shape) for shape in shapes] + [1e150 * W for W in matrices[:7]]
    script = "list => list.map((W) => window.underTest.plainNumbers("
    script += "window.underTest.fullSvd(window.underTest.matrixFromRows(W))))"
    answers = shared.evaluate(script, [W.tolist() for W in matrices])
    for W, parts in zip(matrices, answers, strict=True):
        U, s, V = (np.array(parts[name]) for name in "UsV")
        exact = np.linalg.svd(W, compute_uv=False)
        tolerance = 1e-13 * max(exact[0], 1e-300)
        assert np.allclose(s, exact, rtol=0, atol=tolerance)
        assert np.allclose(U[:, : len(s)] * s @ V[:, : len(s)].T, W, rtol=0, atol=tolerance)
        for Q in (U, V):
            assert np.allclose(Q.T @ Q, np.eye(len(Q)), rtol=0, atol=1e-13)


def test_the_gradient_step_is_the_tasks_own(shared):
    settings = [case for case in drawn_settings() if case["preset"] == "gd" and case["T"] > 1]
    for case, draw in zip(settings, shared.evaluate(DRAW, settings), strict=True):
        d_x, d_y = case["dx"], case["d"] - case["dx"]
        best = uh.tasks.InContextRegression(d_x, d_y, case["T"] - 1).best_attention()
        for name in ("W_V", "W_K", "W_Q"):
            assert np.allclose(draw[name], getattr(best, name), rtol=1e-15, atol=0)
        xs = np.array(draw["inputs"])
        X, Y = xs[:-1, :d_x], xs[:-1, d_x:]
        # Every y is the same linear function of x, and the query has none.
        W, *_ = np.linalg.lstsq(X, Y, rcond=None)
        assert np.allclose(X @ W, Y, atol=1e-10)
        assert not np.any(xs[-1, d_x:])


def test_controls_rebuild_everything(explorer):
    for form in FORMS:
        for preset in ("random", "deficient", "gd"):
            choose(explorer, form=form, preset=preset, d=4, T=5)
            now = state(explorer)
            assert [now[name] for name in ("d", "T", "form", "preset")] == [4, 5, form, preset]
            assert len(now["steps"]) == len(now["inputs"]) == 5
            refused = explorer.locator(".x-refusal")
            assert refused.is_visible() == (now["refusal"] is not None)
            if now["refusal"]:
                assert refused.text_content() == now["refusal"]
                continue
            target, python_form = now["python"]["target"], now["python"]["form"]
            built = uh.compile(attention_of(now["attention"]), target=target, form=python_form)
            assert now["counts"]["parameters"] == built.parameters
            assert now["largest"]["difference"] < 1e-12 * max(now["largest"]["output"], 1) * 100
    choose(explorer, preset="deficient", d=3, rankV=0)
    assert state(explorer)["counts"] == {"neurons": 0, "gates": 0, "parameters": 0}
    before = state(explorer)
    explorer.get_by_role("button", name="New draw").click()
    assert state(explorer)["seed"] == before["seed"] + 1
    assert state(explorer)["inputs"] != before["inputs"]


def test_what_is_shown_is_the_state(explorer):
    choose(explorer, d=3, form="compact", T=4)
    explorer.get_by_role("button", name="Last").click()
    now = state(explorer)
    step = now["steps"][-1]
    for cell, expected in (
        ("y[1], network", step["network"]["output"][1]),
        ("y[1], attention", step["attention"]["output"][1]),
        ("y[1], difference", step["difference"][1]),
        ("kv[0,2], product", step["network"]["written"][2]),
        ("kv[0,2], hₜ", step["network"]["hidden"][2]),
        ("g[5], W_out_m h", step["network"]["gateOutM"][5]),
    ):
        shown = explorer.locator(f'td[aria-label^="{cell} = "]').get_attribute("title")
        assert float(shown.split(" = ")[1]) == expected
    assert explorer.locator("td.x-copy").count() == 3
    counts = explorer.locator("table.x-counts tbody").nth(2).locator("tr").nth(2).locator("td")
    assert counts.first.text_content() == str(now["counts"]["parameters"])


def test_edited_weights(explorer):
    first = explorer.locator("input.x-entry").first
    old = state(explorer)
    for text in ("nonsense", "", "1e9", "Infinity"):
        first.fill(text)
        first.press("Enter")
        assert state(explorer) == old
        assert text != "nonsense" or "not a number" in explorer.locator(".x-message").text_content()
    first.fill("-2.5")
    first.press("Tab")
    now = state(explorer)
    assert now["attention"]["W_V"][0][0] == -2.5
    assert now["preset"] == "edited"
    assert explorer.locator(".x-message").text_content() == ""
    assert now["inputs"] == old["inputs"]
    ys = attention_of(now["attention"])(jnp.asarray(now["inputs"]))
    assert close([step["network"]["output"] for step in now["steps"]], ys)
    # Typing keeps its place: the next entry has the focus.
    focused = explorer.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == "W_V row 0 column 1"
    choose(explorer, T=3)
    assert state(explorer)["attention"] == now["attention"]
    choose(explorer, d=2)
    assert state(explorer)["preset"] == "random"


def test_steps_by_keyboard_alone(explorer):
    def tokens_after(*keys: str) -> list[int]:
        tokens = []
        for key in keys:
            explorer.keyboard.press(key)
            tokens.append(state(explorer)["token"])
        return tokens

    explorer.locator("[name=x-form]").focus()
    for _ in range(80):
        explorer.keyboard.press("Tab")
        if explorer.evaluate("document.activeElement.textContent") == "First":
            break
    else:
        pytest.fail("Tab does not reach the stepper")
    keys = ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home", "ArrowLeft")
    assert tokens_after(*keys) == [1, 2, 1, 7, 0, 0]
    for _ in range(5):
        explorer.keyboard.press("Tab")
    assert explorer.evaluate("document.activeElement.type") == "range"
    keys = ("ArrowRight", "ArrowUp", "ArrowDown", "End", "ArrowRight", "Home")
    assert tokens_after(*keys) == [1, 2, 1, 7, 7, 0]
    assert explorer.locator(".x-token").text_content() == "token 1 of 8"
    explorer.get_by_role("button", name="Play").click()
    explorer.locator(".x-token", has_text="token 2").wait_for()
    explorer.get_by_role("button", name="Pause").click()


def test_copies(explorer, capsys, unhooked):
    for form in ("minimal", "side"):
        choose(explorer, d=2, T=3, form=form)
        explorer.get_by_role("button", name="Copy as JSON").click()
        explorer.locator(".x-message", has_text="JSON").wait_for()
        now = state(explorer)
        assert json.loads(explorer.evaluate("navigator.clipboard.readText()")) == now
        explorer.get_by_role("button", name="Copy as Python").click()
        explorer.locator(".x-message", has_text="Python").wait_for()
        script = explorer.evaluate("navigator.clipboard.readText()")
        assert explorer.locator(".x-script").text_content() == script
        names: dict[str, np.ndarray] = {}
        exec(script, names)
        assert close(names["ys"], [step["network"]["output"] for step in now["steps"]])
        assert float(capsys.readouterr().out.splitlines()[-1].split()[-1]) < 1e-13


@pytest.mark.parametrize("width", [360, 700, 1400])
def test_nothing_wider_than_the_screen(explorer, width):
    explorer.set_viewport_size({"width": width, "height": 800})
    for choices in ({"d": 6, "form": "full"}, {"d": 6, "form": "compact"}, {"preset": "gd"}):
        choose(explorer, **choices)
        explorer.evaluate("document.querySelectorAll('details').forEach((x) => { x.open = true; })")
        assert explorer.evaluate("document.documentElement.scrollWidth") <= width


def test_those_who_want_less_motion_are_not_offered_play(explorer):
    assert explorer.get_by_role("button", name="Play").is_visible()
    explorer.emulate_media(reduced_motion="reduce")
    explorer.reload()
    assert explorer.get_by_role("button", name="Next").is_visible()
    assert not explorer.get_by_role("button", name="Play").is_visible()
