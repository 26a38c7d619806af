"""The page's scripts and styles, each joined into one text that a hash identifies.

Scripts are ES modules that import one another by lines `import { name } from "./file.js";`. Here
they are joined in the order of their imports, without those lines and without the word `export`. So
top-level names must be unique over all files, which a test checks.
"""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)
STYLE_SHEETS = ("page.css", "explorer.css")


def asset(name: str) -> str:
    """Return the text of a file of `report/assets`."""
    return files("underhood.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def script(first: str = "page.js") -> str:
    """Return one module with all that a file needs, each part after what it imports."""
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
    return "\n".join(asset(name) for name in STYLE_SHEETS)


def policy_hash(text: str) -> str:
    """Return the name of an inline script or style in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def policy() -> str:
    """Return a policy that allows no request, and no script or style but ours."""
    ours = f"script-src '{policy_hash(script())}'; style-src '{policy_hash(style())}'"
    return f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"
