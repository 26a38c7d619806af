"""Errors in one line, names, keys, threads and where numbers come from."""

import re

import jax
import numpy as np
import pytest

from underhood.common.arrays import key_problems, typed_key
from underhood.common.errors import (
    BadInput,
    check_name,
    in_words,
    kind_of,
    reason_of,
    refuse,
    with_article,
)
from underhood.common.provenance import commit, provenance, source_checksum, version
from underhood.common.threads import controller, one_thread


def test_all_problems_are_refused_in_one_line() -> None:
    refuse([], about="A layer")
    with pytest.raises(BadInput, match=r"^A layer: too wide; too deep\.$"):
        refuse(["too wide", "too deep"], about="A layer")


def test_unknown_names_are_refused_with_the_nearest() -> None:
    check_name("target", "lstm", ["gru", "lstm"])
    with pytest.raises(BadInput, match=r"Unknown target 'lsmt'; use one of gru, lstm\. Did you"):
        check_name("target", "lsmt", ["gru", "lstm"])
    for name in ("transformer", 3, None):
        with pytest.raises(BadInput) as caught:
            check_name("target", name, {"gru": 1})
        assert "Did you mean" not in str(caught.value)


def test_errors_in_words() -> None:
    assert in_words(OSError(2, "No such file", "a.json")) == "cannot use a.json: No such file."
    assert in_words(OSError("broken")) == "broken."
    assert in_words(ValueError("no")) == "no"
    assert reason_of(ValueError("a\n  b")) == "ValueError: a b"
    assert len(reason_of(ValueError("x" * 999))) == 500


def test_one_key_of_either_kind_is_a_key() -> None:
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        assert key_problems(key) == []
        assert jax.dtypes.issubdtype(typed_key(key).dtype, jax.dtypes.prng_key)
        np.testing.assert_array_equal(jax.random.key_data(typed_key(key)), jax.random.PRNGKey(0))
    for bad in (0, None, jax.random.split(jax.random.key(0)), np.zeros(2)):
        assert "give one key" in key_problems(bad)[0]


def test_provenance_says_what_ran() -> None:
    where = provenance()
    assert set(where) == {"commit", "source", "versions", "device"}
    assert where["versions"]["numpy"] == np.__version__
    assert where["device"].startswith(jax.default_backend())
    assert version("no such package") is None
    assert commit() is None or re.fullmatch(r"[0-9a-f]{40}\+?", commit())


def test_a_copy_without_its_history_can_be_told_its_commit(monkeypatch) -> None:
    monkeypatch.setenv("UNDERHOOD_COMMIT", "a" * 40)
    assert commit() == "a" * 40
    monkeypatch.setenv("UNDERHOOD_COMMIT", "")
    assert commit() != ""
    monkeypatch.setenv("UNDERHOOD_COMMIT", "main")
    with pytest.raises(BadInput, match="40 digits that git rev-parse HEAD prints"):
        commit()


def test_the_source_is_known_by_the_paths_and_contents_of_its_code(tmp_path) -> None:
    def checksum(**files: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            path = folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".py" if path.suffix == "" else path.suffix).write_text(text)
        return source_checksum(folder)

    same = checksum(a="x = 1", b__c="y = 2")
    assert re.fullmatch(r"[0-9a-f]{16}", same)
    assert checksum(b__c="y = 2", a="x = 1") == same
    assert checksum(**{"a": "x = 1", "b__c": "y = 2", "notes.txt": "z"}) == same
    edits = ({"a": "x = 1", "b__c": "y = 3"}, {"a": "x = 1", "c": "y = 2"}, {"a": "x = 1y = 2"})
    moved = {"a": "x = 1y", "b__c": " = 2"}
    assert same not in {checksum(**files) for files in (*edits, moved)}


def test_one_thread_limits_blas_while_it_runs() -> None:
    @one_thread
    def threads(extra: int) -> list[int]:
        """Counts."""
        return [pool["num_threads"] + extra for pool in controller().info()]

    assert threads.__doc__ == "Counts."
    blas = [pool["user_api"] == "blas" for pool in controller().info()]
    assert all(count == 1 for count, limited in zip(threads(extra=0), blas, strict=True) if limited)


def test_an_article_is_the_one_that_is_spoken() -> None:
    words = "a GRU, an LSTM, an LRU, a LinearAttention, an MLSTM, a MultiHead, an ndarray, an int"
    assert ", ".join(with_article(word.split()[1]) for word in words.split(", ")) == words
    assert kind_of([]) == "a list"
