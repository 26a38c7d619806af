"""What all tests share: shapes checked at run time, float64 on request, repeatable draws."""

import atexit
import contextlib
import ctypes
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

# Before JAX is imported: the tests need no accelerator, and a device is slow to start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Most of the time of the tests is compilation. The processes of one run, also those that a test
# starts, share what they compile. The folder is new in every run: a result must not depend on
# what an earlier run left on the disk.
if "PYTEST_XDIST_WORKER" not in os.environ:
    PROGRAMS = tempfile.mkdtemp(prefix="underhood-programs-")
    atexit.register(shutil.rmtree, PROGRAMS, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    # They share the bytecode of the sources too, which Python compares with each source's date.
    # Without it every process spends one to three seconds compiling the package again.
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        sys.dont_write_bytecode = False

# Before JAX is imported too: XLA reads its options once.
from compilation import compiled_for_users, set_options, share_contexts

set_options()

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
from support.checking import check_package  # noqa: E402

share_contexts()

# Every function of the package checks the shapes and types that its annotations promise.
check_package()

from underhood.training.program_cache import forget_if_many, forget_programs  # noqa: E402

# The scripts that write the pages, as modules.
sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))

# No deadline, because the first example of a size compiles; no database and no fresh seed, so
# that every machine sees the same examples.
hypothesis.settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, print_blob=True
)
hypothesis.settings.load_profile("repeatable")


# A worker that runs half of the tests would keep 6 GB of programs, and map more memory than Linux
# allows. Counting 15,000 mappings takes 8 ms, so not after every test.
LOOK_EVERY, MOST_BYTES = 200, 2.5e9
programs_since_look = 0


@jax.monitoring.register_event_duration_secs_listener
def count_programs(event: str, duration: float, **_: object) -> None:
    global programs_since_look
    programs_since_look += event == "/jax/core/compile/backend_compile_duration"


def resident_bytes() -> int:
    """The memory of this process; 0 where the system does not tell."""
    statistics = Path("/proc/self/statm")
    pages = statistics.read_text().split()[1] if statistics.exists() else 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


# glibc returns a large array at once, and the next of the same size is cleared page by page again.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT = {M_TRIM_THRESHOLD: 1 << 27, M_TOP_PAD: 1 << 24, M_MMAP_THRESHOLD: 1 << 25}
with contextlib.suppress(OSError, AttributeError):
    for parameter, size in KEPT.items():
        ctypes.CDLL("libc.so.6").mallopt(parameter, size)


def return_memory() -> None:
    """Give memory that is free back to the system. glibc keeps most of it otherwise."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forget compiled programs before there are too many."""
    global programs_since_look
    if programs_since_look >= LOOK_EVERY:
        programs_since_look = 0
        if not forget_if_many() and resident_bytes() > MOST_BYTES:
            forget_programs()
            # Without this the next look would find as much memory, and forget again.
            return_memory()


# Garbage is looked for among what tests make. Modules and tests stay, so they are not looked at.
def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


# At its end pytest collects garbage ten times, for warnings in it. Once is enough for our objects.
def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.collect()
    gc.freeze()


# One per module, because hypothesis refuses fixtures that are made anew for every test.
@pytest.fixture(scope="module")
def x64():
    """float64 for a whole file: `pytestmark = pytest.mark.usefixtures("x64")`."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def as_users_compile():
    """Compile as outside the tests: `pytestmark = pytest.mark.usefixtures("as_users_compile")`."""
    with compiled_for_users():
        yield


@pytest.fixture
def unhooked():
    """The package as its users run it, for tests of what it says about input it refuses.

    The hook would answer first, with a TypeCheckError.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="module")
def chromium():
    """Debian's Chromium. CI must not pass by skipping: there a missing browser is a failure."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if sync_playwright is None or not CHROMIUM.exists():
        wanted = f"needs the package playwright and {CHROMIUM} (apt install chromium)"
        pytest.fail(wanted) if os.environ.get("CI") else pytest.skip(wanted)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield opened
        opened.close()
