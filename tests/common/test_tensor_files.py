"""Files are written whole or not at all; safetensors are read in one place."""

import contextlib
import errno
import json
import os
import socket
import stat
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from underhood.cli.arguments import check_writable
from underhood.common.errors import BadInput
from underhood.common.files import as_json, write_atomically
from underhood.common.tensors import UnreadableTensors, read_tensors, tensor_shapes


def test_json_has_no_infinity_and_keeps_letters() -> None:
    assert json.loads(as_json({"λ": [1, None]})) == {"λ": [1, None]}
    assert "λ".encode() in as_json("λ") and as_json(1).endswith(b"\n")
    with pytest.raises(ValueError, match="JSON"):
        as_json(float("inf"))


def test_outputs_that_cannot_be_written_are_refused(tmp_path) -> None:
    file = tmp_path / "a.json"
    check_writable(file, replace=False)
    file.write_text("x")
    check_writable(file, replace=True)
    absent = tmp_path / "no" / "a"
    for path, reason in ((tmp_path, "is a folder"), (file, "--force"), (absent, "does not exist")):
        with pytest.raises(BadInput, match=reason):
            check_writable(path, replace=False)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"first")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="missing"):
        write_atomically(tmp_path / "missing" / "a", b"")


def irregular(folder) -> dict:
    """Paths in a folder that are no regular files, and what a message calls each."""
    os.mkfifo(folder / "pipe")
    (folder / "inner").mkdir()
    (folder / "file").write_text("kept")
    (folder / "link").symlink_to("file")
    (folder / "dangling").symlink_to("absent")
    (folder / "full").symlink_to("/dev/full")
    server = socket.socket(socket.AF_UNIX)
    # The path of a socket is short, so it is named from inside.
    with contextlib.chdir(folder):
        server.bind("socket")
    server.close()
    links = dict.fromkeys(("link", "dangling", "full"), "a symbolic link")
    return {"pipe": "a pipe", "inner": "a folder", "socket": "a socket", **links}


def test_nothing_but_a_regular_file_is_replaced(tmp_path) -> None:
    kinds = irregular(tmp_path)
    modes = {name: (tmp_path / name).lstat().st_mode for name in kinds}
    paths = [(tmp_path / name, kind) for name, kind in kinds.items()]
    paths += [(Path("/dev/full"), "a device"), (Path("/dev/stdout"), "a symbolic link")]
    for path, kind in paths:
        for write in (partial(write_atomically, data=b"x"), partial(check_writable, replace=True)):
            with pytest.raises(BadInput, match=f"{path} is {kind}; name a regular file"):
                write(path)
    assert {name: (tmp_path / name).lstat().st_mode for name in kinds} == modes
    assert (tmp_path / "file").read_text() == "kept"
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_only_a_regular_file_is_read(tmp_path) -> None:
    kinds = irregular(tmp_path)
    # A link is followed: what it points to counts.
    for path, kind in (
        (tmp_path / "pipe", kinds["pipe"]),
        (tmp_path / "socket", kinds["socket"]),
        (tmp_path / "full", "a device"),
        (Path("/dev/null"), "a device"),
    ):
        with pytest.raises(UnreadableTensors, match=f"^it is {kind}$"):
            read_tensors(path)
    (tmp_path / "file").write_bytes(safetensors.numpy.save({"W": np.ones(2)}))
    np.testing.assert_array_equal(read_tensors(tmp_path / "link").arrays["W"], np.ones(2))


def test_a_full_disk_names_the_file(tmp_path, monkeypatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(tmp_path / "a", b"x")
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_tensors_come_back(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    arrays = {"W": np.arange(6.0).reshape(2, 3), "empty": np.zeros((0, 2)), "one": np.ones(())}
    path.write_bytes(safetensors.numpy.save(arrays, {"format": "test"}))
    tensors = read_tensors(path)
    assert tensors.metadata == {"format": "test"}
    assert tensors.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors.arrays[name], array)
    assert tensor_shapes(path) == {"W": [2, 3], "empty": [0, 2], "one": []}
    path.write_bytes(safetensors.numpy.save(arrays))
    assert read_tensors(path).metadata == {}


def file_of(kind: str, numbers: np.ndarray) -> bytes:
    """A safetensors file with one tensor W, whose header names any kind of numbers."""
    data = numbers.tobytes()
    entry = {"dtype": kind, "shape": list(numbers.shape), "data_offsets": [0, len(data)]}
    header = json.dumps({"W": entry}).encode()
    return len(header).to_bytes(8, "little") + header + data


def test_half_precision_becomes_float32(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    exact = np.array([[1.0, -0.5, 3.25], [0.0, 2.0**-14, -1024.0]])
    kinds = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64}
    for kind, dtype in kinds.items():
        path.write_bytes(file_of(kind, exact.astype(dtype)))
        array = read_tensors(path).arrays["W"]
        assert array.dtype == (np.float64 if kind == "F64" else np.float32), kind
        np.testing.assert_array_equal(array, exact)
    path.write_bytes(file_of("F8_E4M3", exact.astype(ml_dtypes.float8_e4m3fn)))
    with pytest.raises(UnreadableTensors, match="W holds F8_E4M3 numbers; convert them to F32"):
        read_tensors(path)


@pytest.mark.parametrize("content", [b"", b"text", b"\xff" * 40, b"\x02" + b"\0" * 7 + b"{}x"])
def test_damaged_tensors_are_one_line(tmp_path, content) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(UnreadableTensors) as caught:
        read_tensors(path)
    assert str(caught.value) and "\n" not in str(caught.value)
    assert tensor_shapes(path) == {}
    for bad, error in (("absent", FileNotFoundError), (".", IsADirectoryError)):
        with pytest.raises(error, match=str(tmp_path)):
            read_tensors(tmp_path / bad)
    assert tensor_shapes(tmp_path / "absent") == {}
