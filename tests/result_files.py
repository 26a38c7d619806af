"""Results on disk, committed ones and such as tests make, and the page of a folder."""

import json
from pathlib import Path

import numpy as np
import safetensors.numpy

from underhood.report.build import build
from underhood.results.files import FORMAT, find

ROOT = Path(__file__).parents[1]
COMMITTED = {"quick": ROOT / "results/reference/quick", "paper": ROOT / "results/paper"}


def page_of(folder: Path, output: Path) -> str:
    build(find(folder), output, for_print=False)
    return output.read_text(encoding="utf-8")


def result(name: str = "table1", **changes) -> dict:
    number = {"name": "loss", "value": 1e-8, "paper": 4.97e-8, "seeds": 4}
    number |= {"rule": "median ≤ 1e-7", "verdict": "reproduced"}
    contents = {"format": FORMAT, "experiment": name, "scale": "quick", "verdict": "reproduced"}
    contents |= {"numbers": [number], "rows": [], "notes": [], "arrays": {}}
    contents["provenance"] = {"commit": "abc", "seeds": [0, 1, 2, 3], "seconds": 1.5}
    return contents | changes


def put(folder: Path, name: str, contents: dict | str, arrays: dict | None = None) -> Path:
    (folder / name).mkdir(parents=True, exist_ok=True)
    text = contents if isinstance(contents, str) else json.dumps(contents)
    (folder / name / "result.json").write_text(text)
    if arrays is not None:
        arrays = {key: np.array(array, order="C") for key, array in arrays.items()}
        safetensors.numpy.save_file(arrays, folder / name / "arrays.safetensors")
    return folder
