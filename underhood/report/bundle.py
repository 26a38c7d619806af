"""The page's scripts and styles, each put together into one text that a hash can vouch for.

Scripts are ES modules that import one another by lines `import { name } from "./file.js";`. Here
they are laid end to end in the order of their imports, without those lines and without the word
`export`; so top-level names are unique over all files, which a test checks.
"""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)
STYLES = ("page.css", "explorer.css")


def asset(name: str) -> str:
    """A file of `report/assets`."""
    return files("underhood.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def script(first: str = "page.js") -> str:
    """One module with everything that a file needs, what is needed before what needs it."""
    parts: list[str] = []
    done: set[str] = set()

    def add(name: str) -> None:
        if name in done:
            return
        done.add(name)
        text = asset(name)
        for needed in IMPORT.finditer(text):
            add(needed[2])
        parts.append(EXPORT.sub("", IMPORT.sub("", text)))

    add(first)
    return "\n".join(parts)


@cache
def style() -> str:
    """All styles."""
    return "\n".join(asset(name) for name in STYLES)


def digest(text: str) -> str:
    """What a Content-Security-Policy names an inline script or style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def policy() -> str:
    """Nothing from anywhere, and no script or style but ours."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{digest(script())}'",
            f"style-src '{digest(style())}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
