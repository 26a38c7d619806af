"""Use an installed underhood as a stranger would; `make wheel` runs this."""

import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np

import underhood as uh

# Files that are no Python, one of each folder that has some.
DATA = ("py.typed", "report/assets/page.html", "report/assets/print.mplstyle")
DATA += ("recall/published.json", "analysis/scoring/baselines.json", "__init__.pyi")


def main() -> None:
    place = Path(uh.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"{place} is not the installed package"
    assert version("underhood") == uh.__version__
    for name in DATA:
        assert files("underhood").joinpath(name).read_bytes() or name == "py.typed", name
    rng = np.random.default_rng(0)
    attention = uh.LinearAttention(*rng.normal(size=(3, 3, 3)))
    built = uh.compile(attention)
    result = uh.decompile(built.layer)
    assert result.is_attention and result.residual < 1e-12, result.reason
    command = Path(sys.executable).with_name("underhood")
    for words, expected in (
        (["--version"], f"underhood {uh.__version__}\n"),
        (["--help"], "usage: underhood"),
        (["list"], "table1"),
    ):
        done = subprocess.run([command, *words], capture_output=True, text=True)
        assert done.returncode == 0 and expected in done.stdout, (words, done.stdout, done.stderr)
    print(f"smoke: underhood {uh.__version__} compiles, decompiles and answers")


if __name__ == "__main__":
    main()
