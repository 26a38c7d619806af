"""The report in a real browser: everything drawn, usable by keyboard, quiet, on any screen."""

import json
import os

import jax.numpy as jnp
import numpy as np
import pytest
from explorer_cases import attention_of
from result_files import COMMITTED, ROOT, page_of, put

from underhood.common.decay import decay_from_nu, kinds
from underhood.common.tensors import read_tensors
from underhood.results.claims import CLAIMS

# Those of the paper, and ours that were run.
SHOWN_CLAIMS = [
    claim.name for claim in CLAIMS if not claim.ours or (COMMITTED["quick"] / claim.name).exists()
]

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("x64")]

SCREENSHOTS = ROOT / "build" / "screenshots"
READY = "html[data-ready=yes]"

# For every chart: does it show something? Canvases of zeros are meant to be empty.
DRAWN = """() => [...document.querySelectorAll("[data-chart]")].map((place) => {
  const lines = [...place.querySelectorAll(".series .line")].filter((one) => {
    return one.getAttribute("d").length > 10;
  });
  const drawn = ".series .dot, .series .bar, .signs button";
  const marks = lines.length + place.querySelectorAll(drawn).length;
  const inked = [...place.querySelectorAll("canvas")].filter((canvas) => {
    const pen = canvas.getContext("2d");
    const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
    return data.some((value, i) => i % 4 === 3 && value > 0);
  });
  return { claim: place.closest("section")?.dataset.claim, marks: marks + inked.length };
})"""


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    """The report on the committed results of the quick scale."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    page_of(COMMITTED["quick"], path)
    return path.as_uri()


def opened(browser, address: str, **options):
    """A page, and the list that gathers whatever it complains of or asks for."""
    context = browser.new_context(**options)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on("request", lambda asked: asked.url != address and complaints.append(asked.url))
    page.goto(address)
    page.wait_for_selector(READY)
    return page, complaints


@pytest.fixture(scope="module")
def shared(chromium, address):
    page, complaints = opened(chromium, address, viewport={"width": 1400, "height": 900})
    yield page
    assert complaints == []
    page.context.close()


@pytest.fixture
def page(shared):
    """The report as it opens."""
    shared.reload()
    shared.wait_for_selector(READY)
    return shared


def chart(page, claim: str, place: int = 0):
    return page.locator(f"[data-claim={claim}] [data-chart]").nth(place)


def test_every_section_is_there_and_every_chart_is_drawn(page) -> None:
    drawn = page.evaluate(DRAWN)
    assert [chart for chart in drawn if not chart["marks"]] == []
    assert {chart["claim"] for chart in drawn if chart.get("claim")} == set(SHOWN_CLAIMS)
    for name in SHOWN_CLAIMS:
        section = page.locator(f"section[data-claim={name}]")
        assert section.locator(".claimed").is_visible()
        assert section.locator(".verdict").first.is_visible()
        assert f"underhood reproduce {name} --scale quick" in section.text_content()


def test_the_first_screen_tells_the_story_and_then_the_tally(page) -> None:
    steps = page.locator(".story .step")
    # What is said is counted in the weights that are shown.
    arrays = read_tensors(COMMITTED["quick"] / "figure2" / "arrays.safetensors").arrays
    decay = decay_from_nu(arrays["pruned/nu"])
    count, memory = len(decay), int(np.sum(kinds(decay) == "memory"))
    assert [steps.nth(i).locator("figcaption").text_content() for i in range(steps.count())] == [
        "Untrained: 100 neurons",
        "Trained: 100 neurons",
        f"Pruned: {count} neurons",
        "The attention in them",
    ]
    said = f"Of the {count} neurons that pruning keeps, {memory} never forget"
    assert said in steps.nth(2).text_content()
    lowest = max(steps.nth(i).bounding_box()["y"] for i in range(steps.count()))
    tally = page.locator(".totals").bounding_box()
    assert lowest < tally["y"] and tally["y"] + tally["height"] < 900


# What stands at the left edge of the scrolled grid, and how far apart the labels' words are.
LABELS = """() => {
  const box = document.querySelector(".signs-box");
  box.scrollIntoView({ behavior: "instant" });
  box.scrollLeft = 10000;
  const left = box.getBoundingClientRect().left;
  const heads = [...box.querySelectorAll("tbody th, thead td")];
  const covered = heads.every((head) => {
    const { top, bottom, right } = head.getBoundingClientRect();
    return [left + 1, (left + right) / 2, right - 1].every((x) => {
      return document.elementFromPoint(x, (top + bottom) / 2) === head;
    });
  });
  const words = heads.slice(1).map((head) => {
    const range = document.createRange();
    range.selectNodeContents(head);
    return range.getBoundingClientRect();
  });
  const gaps = words.slice(1).map((word, i) => word.top - words[i].bottom);
  return { scrolled: box.scrollLeft, covered, gap: Math.min(...gaps) };
}"""


def test_the_labels_of_the_grid_stay_in_view_on_a_phone(chromium, address) -> None:
    page, _ = opened(chromium, address, viewport={"width": 400, "height": 800})
    seen = page.evaluate(LABELS)
    assert seen["scrolled"] > 0 and seen["covered"] and seen["gap"] >= 4, seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_it_fits_the_screen_has_contrast_and_stays_quiet(chromium, address, width, scheme) -> None:
    viewport = {"width": width, "height": 800}
    page, complaints = opened(chromium, address, viewport=viewport, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [chart for chart in page.evaluate(DRAWN) if not chart["marks"]] == []
    # Pictures for a person take half a minute, so they are made where someone asks for them.
    if os.environ.get("SCREENSHOTS"):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"report_{width}_{scheme}.png", full_page=True)
    words = ["--ink", "--muted", "--accent", "--good", "--bad", "--odd", "--negative"]
    marks = [f"--c{place}" for place in range(8)] + ["--positive", "--focus"]
    assert min(page.evaluate(CONTRAST, words)) >= 4.5
    assert min(page.evaluate(CONTRAST, marks)) >= 3
    page.context.close()
    assert complaints == []


# 4.5 to 1 is what WCAG asks of text, 3 to 1 of lines and marks.
CONTRAST = """names => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const code = style.getPropertyValue(name).trim();
    const parts = [1, 3, 5].map((i) => parseInt(code.slice(i, i + 2), 16) / 255);
    const flat = parts.map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * flat[0] + 0.7152 * flat[1] + 0.0722 * flat[2];
  };
  return names.map((name) => {
    const [low, high] = [light(name), light("--paper")].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  });
}"""


def test_the_theme_button_goes_round(page) -> None:
    themes = []
    for _ in range(3):
        page.locator("#theme").press("Enter")
        themes.append(page.evaluate("document.documentElement.dataset.theme"))
        themes.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert themes[::2] == ["light", "dark", "auto"]
    assert themes[1] == themes[5] != themes[3]


def test_verdicts_are_filtered_by_button_and_lead_to_their_sections(page) -> None:
    rows = page.locator("#verdicts tbody tr")
    assert rows.count() == len(SHOWN_CLAIMS)
    page.get_by_role("button", name="differs").press("Enter")
    visible = [rows.nth(i) for i in range(rows.count()) if rows.nth(i).is_visible()]
    assert 0 < len(visible) < len(SHOWN_CLAIMS)
    assert all("differs" in row.text_content() for row in visible)
    visible[0].get_by_role("link").press("Enter")
    assert "#claim-" in page.url


def test_hover_tells_values_the_legend_toggles_and_axes_turn_and_zoom(page) -> None:
    plot = chart(page, "figure3a")
    plot.scroll_into_view_if_needed()
    plot.locator(".dot").nth(3).hover(force=True)
    assert "neurons" in plot.locator(".chart-told").text_content()
    before = plot.locator("svg.plot .dot").count()
    button = plot.locator(".chart-legend button", has_text="students")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert plot.locator("svg.plot .dot").count() < before
    button.click()
    assert plot.locator("svg.plot .dot").count() == before
    first = ticks(plot)
    plot.get_by_role("button", name="log y").click()
    assert ticks(plot) != first
    plot.get_by_role("button", name="log y").click()
    assert ticks(plot) == first
    frame = plot.locator("svg.plot").bounding_box()
    page.mouse.move(frame["x"] + 150, frame["y"] + 60)
    page.mouse.down()
    page.mouse.move(frame["x"] + 300, frame["y"] + 160)
    page.mouse.up()
    assert ticks(plot) != first
    plot.get_by_role("button", name="reset").click()
    assert ticks(plot) == first


def ticks(plot) -> list[str]:
    return plot.locator(".axes text:not(.axis-name)").all_text_contents()


def told_after(page, shown, *keys: str) -> list[str]:
    """What a chart says after each key."""
    said = []
    for key in keys:
        page.keyboard.press(key)
        said.append(shown.locator(".chart-told").text_content())
    return said


def test_plots_are_read_by_keyboard_alone(page) -> None:
    plot = chart(page, "figure3a")
    plot.locator(".chart-tools button").last.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('plot')")
    said = told_after(page, plot, "ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp")
    assert all(said) and len(set(said)) >= 4
    first = ticks(plot)
    page.keyboard.press("+")
    assert ticks(plot) != first
    assert page.evaluate("document.activeElement.classList.contains('plot')")
    page.keyboard.press("0")
    assert ticks(plot) == first


def test_trained_layers_are_named_with_their_state_by_keys_and_by_mouse(page) -> None:
    plot = chart(page, "recall_memory")
    plot.scroll_into_view_if_needed()
    plot.locator("svg.plot").focus()
    said = told_after(page, plot, "ArrowRight", *["ArrowDown"] * 8)
    layers = {text.split(": ")[1] for text in said}
    assert {"Gated DeltaNet", "DeltaNet", "Mamba-2", "RWKV-7"} <= layers
    assert all("numbers of state" in text for text in said)
    plot.locator('.series[data-name="trained: Hyena"] polygon').first.hover(force=True)
    by_mouse = plot.locator(".chart-told").text_content()
    assert by_mouse.startswith("trained: Hyena: accuracy 0.185 with 130,205 numbers of state")


def test_block_pictures_and_the_film_are_read_by_keyboard(page) -> None:
    weights = chart(page, "figure2", 1)
    weights.locator(".panels").focus()
    said = told_after(page, weights, "ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight")
    assert said[0].startswith("λ [1, 1] (memory 1)")
    assert said[2].startswith("W_in_m [2, 1] (memory 2, x 1)")
    film = page.locator("[data-claim=figure2] figure", has=page.locator(".film-bar"))
    slider = film.locator("input[type=range]")
    slider.focus()
    last = film.locator(".film-name").text_content()
    page.keyboard.press("Home")
    assert film.locator(".film-name").text_content() == "token 1 of 16" != last
    assert slider.get_attribute("aria-valuetext") == "token 1 of 16"


def test_tab_reaches_everything_in_order(page) -> None:
    """From the top: the skip link first, and every control can be left again."""
    # With the name of a section in the address, a page would begin there.
    page.evaluate("history.replaceState(null, '', location.pathname)")
    page.reload()
    page.wait_for_selector("html[data-ready=yes]")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    stops = "a[href], button:not([hidden]), summary, [tabindex='0']"
    count = page.locator(stops).count()
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getBoundingClientRect().top + scrollY"))
    assert count > 100
    assert len(set(seen)) > 20 and seen[-1] > seen[0]


def test_names_for_those_who_cannot_see(page) -> None:
    problems = page.evaluate("""() => {
      const bad = [];
      const named = (one) => one.textContent.trim() || one.getAttribute("aria-label") ||
        one.title || (one.labels && one.labels.length);
      for (const one of document.querySelectorAll("button, a, select, input, [role=img]")) {
        if (!named(one)) bad.push(one.outerHTML.slice(0, 120));
      }
      const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
      if (new Set(ids).size !== ids.length) bad.push("repeated ids");
      const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((one) => one.tagName[1]);
      levels.forEach((level, i) => { if (i && level - levels[i - 1] > 1) bad.push("heading"); });
      for (const table of document.querySelectorAll(".wide table")) {
        if (!table.querySelector("th[scope]")) bad.push("table without headings");
      }
      return bad;
    }""")
    assert problems == []


@pytest.mark.parametrize("form", ["full", "compact", "minimal", "side"])
def test_the_explorer_in_the_report_agrees_with_python(page, form: str) -> None:
    page.select_option("[name=x-form]", form)
    page.select_option("[name=x-d]", "4")
    slider = page.locator("#explorer-root input[type=range]")
    slider.focus()
    page.keyboard.press("End")
    handle = "document.getElementById('explorer-root').explorer"
    state = json.loads(page.evaluate(f"JSON.stringify({handle}.state())"))
    xs = jnp.array(state["inputs"])
    assert state["token"] == len(xs) - 1
    expected = np.asarray(attention_of(state["attention"])(xs))
    outputs = np.array([step["network"]["output"] for step in state["steps"]])
    assert np.max(np.abs(outputs - expected)) <= 1e-10 * max(1, np.max(np.abs(expected)))


def test_it_prints(page) -> None:
    page.emulate_media(media="print")
    assert not page.locator(".chart-tools").first.is_visible()
    assert page.locator("svg.plot").first.is_visible()
    printed = page.pdf(format="A4")
    page.emulate_media(media="screen")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / "report.pdf").write_bytes(printed)
    assert printed.startswith(b"%PDF") and len(printed) > 100_000


def test_hostile_strings_do_nothing(chromium, tmp_path) -> None:
    nasty = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'"
    long = "long" * 3_000
    number = dict.fromkeys(("name", "value", "paper", "rule", "verdict", "seeds"), nasty)
    changes = {"scale": nasty, "verdict": nasty, "notes": [nasty, long]}
    changes |= {"numbers": [number, {"name": long, "rule": long}]}
    changes |= {"rows": [{nasty: nasty, long: long}]}
    changes |= {"provenance": {"commit": nasty, "device": long, "versions": {nasty: long}}}
    for place, name in enumerate(("table1", nasty, long)):
        put(tmp_path, str(place), {"experiment": name} | changes)
    path = tmp_path / "report.html"
    page_of(tmp_path, path)
    page, complaints = opened(chromium, path.as_uri(), viewport={"width": 360, "height": 800})
    assert page.get_by_text(nasty).count() > 5
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.context.close()
    assert complaints == []
