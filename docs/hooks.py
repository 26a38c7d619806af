"""Links from the pages to files of the repository that are not pages.

Pages are also read in the repository itself, so they link to `../results/paper/NAME/figure.png` and
`../examples/NAME.py`. In the site, pictures become images at the same place, and a link to an
example leads to the page of examples. Any other file outside docs/ is named instead of linked.
"""

import os
import re
from collections.abc import Container
from pathlib import Path
from typing import Any

PICTURES = ("results/paper/*/figure.png", "results/reference/quick/*/figure.png")
# ![text](target) or [text](target), where the target leaves its folder.
LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pictures of the results to the site."""
    # Here, so that the tests need no mkdocs.
    from mkdocs.structure.files import File

    root = root_of(config)
    for picture in sorted(path for pattern in PICTURES for path in root.glob(pattern)):
        path = picture.relative_to(root).as_posix()
        files.append(File.generated(config, path, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any, **_: Any) -> str:
    """Point links that leave docs/ to where the site has their files."""
    return rewritten(markdown, page.file.src_uri, root_of(config), files.src_uris)


def root_of(config: Any) -> Path:
    """Return the root of the repository."""
    return Path(config.config_file_path).resolve().parent


def rewritten(markdown: str, page: str, root: Path, site: Container[str]) -> str:
    """Return the page with its links rewritten; `page` and the paths in `site` start in docs/."""
    docs = root / "docs"
    here = (docs / page).parent

    def place(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        file = Path(os.path.normpath(here / target))
        if file.is_relative_to(docs) or not file.is_relative_to(root) or not file.exists():
            # Another page; or a broken link, which a strict build then reports.
            return link.group(0)
        path = file.relative_to(root).as_posix()
        if path in site or path.startswith("examples/"):
            shown = docs / (path if path in site else "examples.md")
            return f"{image}[{text}]({Path(os.path.relpath(shown, here)).as_posix()})"
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    return re.sub(LINK, place, markdown)
