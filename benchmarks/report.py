"""How fast the report is made and opened, on the results that come with the repository.

    python benchmarks/report.py

Made: the page alone, and with the figures for print. Opened: from the start of the navigation to
every chart drawn, in Chromium from the disk, beside a page with the same bytes that draws nothing.
Medians of several tries.
"""

import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from underhood.report.build import build
from underhood.results.files import find

ROOT = Path(__file__).parent.parent
FOLDERS = {"quick": ROOT / "results/reference/quick", "paper": ROOT / "results/paper"}
TRIES = 7
CHROMIUM = "/usr/bin/chromium"
SINCE_START = """() => new Promise((done) => requestAnimationFrame(() => setTimeout(() =>
    done(performance.now()), 0)))"""


def opened(browser, path: Path, ready: str) -> float:
    """Milliseconds until a page is ready and painted, the median of TRIES."""
    times = []
    for _ in range(TRIES):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(path.as_uri())
        page.wait_for_selector(ready, state="attached")
        times.append(page.evaluate(SINCE_START))
        page.close()
    return statistics.median(times)


def timed(results, path: Path, *, for_print: bool) -> tuple[float, int]:
    start = time.perf_counter()
    size = build(results, path, for_print=for_print).size
    return time.perf_counter() - start, size


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scale, source in FOLDERS.items():
            results = find(source)
            path, still = Path(folder) / f"{scale}.html", Path(folder) / "still.html"
            alone, size = timed(results, path, for_print=False)
            whole, _ = timed(results, path, for_print=True)
            # Without its last script nothing is drawn.
            text = path.read_text(encoding="utf-8")
            start, end = text.rindex('<script type="module">'), text.rindex("</script>")
            still.write_text(text[:start] + f"<!--{'x' * (end - start)}-->", encoding="utf-8")
            drawn, blank = opened(browser, path, "html[data-ready]"), opened(browser, still, "main")
            print(
                f"{scale}: {len(results.entries)} results, {size / 1e6:.2f} MB; page made in "
                f"{alone:.2f} s, with figures in {whole:.1f} s; opened in {drawn:.0f} ms, "
                f"{drawn / blank:.1f} times as long as without charts"
            )
        browser.close()


if __name__ == "__main__":
    main()
