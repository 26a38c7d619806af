"""CUDA kernels on the CPU: `emulation.h` runs their text with a thread per GPU thread."""

import ctypes
import os
import shutil

import numpy as np
import pytest

from underhood.layers.kernels import compiling


def compiler_of(name, folder):
    """Return a function that compiles kernels/NAME.cc for given sizes and loads it."""
    compiler = shutil.which("g++")
    if compiler is None:
        wanted = "needs g++ with C++20"
        pytest.fail(wanted) if os.environ.get("CI") else pytest.skip(wanted)

    def compiled(sizes):
        flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", *sizes.flags()]
        source = compiling.HERE / f"{name}.cc"
        return ctypes.CDLL(compiling.compiled_library([compiler, *flags], source, folder))

    return compiled


def pointer(array):
    """Return where a contiguous array begins; the caller keeps the array."""
    assert array.flags.c_contiguous and array.dtype == np.float32
    return array.ctypes.data_as(ctypes.c_void_p)
