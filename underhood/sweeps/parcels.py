"""What travels to another process: a study as one parcel of bytes.

A scheduler passes it on without looking inside. Functions of the study's own file go along, so
workers need not have that file. The version of the code goes along too: a worker with other sources
would give other results under the same address.
"""

import contextlib
import sys
import threading
from functools import lru_cache

from underhood.sweeps.study import MODULE, Study, code_version
from underhood.sweeps.units import Work

# cloudpickle keeps one list of modules for all threads.
REGISTERED = threading.Lock()


def wrapped(study: Study, work: Work) -> bytes:
    """Return a study, and what to do with its units, as bytes."""
    import cloudpickle

    module = sys.modules.get(MODULE)
    with REGISTERED, contextlib.ExitStack() as held:
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
            held.callback(cloudpickle.unregister_pickle_by_value, module)
        return bytes(cloudpickle.dumps((code_version(), study, work)))


@lru_cache(maxsize=4)
def unwrapped(parcel: bytes) -> tuple[Study, Work]:
    """Undo `wrapped`; the same parcel is unpacked once."""
    import cloudpickle

    version, study, work = cloudpickle.loads(parcel)
    if version != code_version():
        difference = "this worker has other sources of underhood than the client"
        raise RuntimeError(f"{difference}; install the same on both")
    return study, work
