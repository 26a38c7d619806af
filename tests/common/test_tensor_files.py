"""Files are written whole or not at all; safetensors are read in one place."""

import json
import os
import stat

import numpy as np
import pytest
import safetensors.numpy

from underhood.common.errors import BadInput
from underhood.common.files import as_json, check_writable, write_atomically
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
