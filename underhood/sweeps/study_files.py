"""A study as a Python file: it ends with `study = Study(...)`."""

import importlib.util
import sys
import traceback
from pathlib import Path

from underhood.common.errors import BadInput
from underhood.sweeps.study import Study

# Files are run under this name, so that they can tell, and pickled by value for workers.
MODULE = "underhood_study"


def load_study(path: Path) -> Study:
    """Run the file and take its `study`."""
    if not path.is_file():
        raise BadInput(f"There is no file {path}; a study is a Python file with study = Study(…).")
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is not a Python file; its name must end with .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        place = f"{path}{line_of(error, path)}"
        raise BadInput(f"{place}: {type(error).__name__}: {error}") from None
    study = getattr(module, "study", None)
    if not isinstance(study, Study):
        kind = "has no `study`" if study is None else f"has a study of kind {type(study).__name__}"
        raise BadInput(f"{path} {kind}; end it with study = Study(task, students, recipe, …).")
    return study


def line_of(error: BaseException, path: Path) -> str:
    """Return where in the file it went wrong."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    return f", line {lines[-1]}" if lines else ""
