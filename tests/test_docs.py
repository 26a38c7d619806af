"""README and start page: their snippets run, and print what the page says they print."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))

from refresh import BLOCK, run_page  # noqa: E402

pytestmark = pytest.mark.usefixtures("unhooked")


def outputs(page: str) -> list[str]:
    """What the blocks print, numbers in scientific notation left out: they may round elsewhere."""
    blocks = [block.group(2) or "" for block in BLOCK.finditer(page)]
    return [re.sub(r"\d(\.\d+)?e-\d+", "…", block) for block in blocks]


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_snippets_print_what_the_page_says(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert len(outputs(page)) >= 3
    assert outputs(run_page(page, name)) == outputs(page)


def test_files_named_in_the_readme_exist() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)", page) + re.findall(r"`(underhood/\w+/)`", page)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
