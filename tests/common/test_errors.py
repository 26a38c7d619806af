"""Errors in one line, names, keys, threads and where numbers come from."""

import re

import jax
import numpy as np
import pytest

from underhood.common.errors import BadInput, check_name, in_words, reason_of, refuse
from underhood.common.keys import key_problems, typed_key
from underhood.common.provenance import commit, provenance, version
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
    assert in_words(OSError("broken")) == "cannot use: broken."
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
    assert set(where) == {"commit", "versions", "device"}
    assert where["versions"]["numpy"] == np.__version__
    assert where["device"].startswith(jax.default_backend())
    assert version("no such package") is None
    assert commit() is None or re.fullmatch(r"[0-9a-f]{40}\+?", commit())


def test_one_thread_limits_blas_while_it_runs() -> None:
    @one_thread
    def threads(extra: int) -> list[int]:
        """Counts."""
        return [pool["num_threads"] + extra for pool in controller().info()]

    assert threads.__doc__ == "Counts."
    blas = [pool["user_api"] == "blas" for pool in controller().info()]
    assert all(count == 1 for count, limited in zip(threads(extra=0), blas, strict=True) if limited)
