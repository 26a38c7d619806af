"""What travels to a worker, and what is done there.

A study goes as one parcel of bytes, which the scheduler passes on without looking inside; functions
of the study's own file go along, so workers need not have it. The version of the code goes along
too: a worker with other sources would give something else under the same address.
"""

import hashlib
import sys
import threading
import time
from functools import lru_cache

from underhood.sweeps.study import Study, code_version
from underhood.sweeps.study_files import MODULE
from underhood.sweeps.units import Unit, Work

# cloudpickle keeps one list of modules for all threads.
REGISTERED = threading.Lock()


def wrapped(study: Study, own_work: Work) -> bytes:
    """A study, and what to do with its units."""
    import cloudpickle

    module = sys.modules.get(MODULE)
    if module is None:
        return bytes(cloudpickle.dumps((code_version(), study, own_work)))
    with REGISTERED:
        cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps((code_version(), study, own_work)))
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def perform(parcel: bytes, unit: Unit) -> tuple[dict[str, bytes], str, float]:
    """On the worker: a unit's files, the worker's name, and the seconds that it took."""
    from distributed import get_worker

    began = time.monotonic()
    study, own_work = unwrapped(hashlib.sha256(parcel).hexdigest(), parcel)
    files = own_work(study, unit, progress=False)
    return files, str(get_worker().name), time.monotonic() - began


@lru_cache(maxsize=4)
def unwrapped(digest: str, parcel: bytes) -> tuple[Study, Work]:
    """The same parcel is unpacked once."""
    import cloudpickle

    version, study, own_work = cloudpickle.loads(parcel)
    if version != code_version():
        raise RuntimeError(
            "this worker has other sources of underhood than the client; install the same on both"
        )
    return study, own_work
