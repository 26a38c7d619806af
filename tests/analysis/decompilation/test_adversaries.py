"""No adversary gets a false verdict, and networks of ordinary scale nearly always get one."""

import equinox as eqx
import numpy as np
import pytest
from adversaries import adversaries, compiled

import underhood as uh

pytestmark = pytest.mark.usefixtures("x64")


# One test, because the second part needs all verdicts, whichever process computes them.
def test_no_verdict_is_false_and_few_are_undecided():
    cases = {case.name: case for case in adversaries()}
    undecided = []
    for name, case in cases.items():
        result = uh.decompile(case.network, **case.options)
        assert result.verdict in (case.truth, "undecided"), (name, result.reason)
        assert result.is_attention == (result.verdict == "attention"), name
        reasoned = result.verdict == "attention" or result.reason.startswith(result.verdict)
        assert reasoned, (name, result.reason)
        undecided += [name] if result.verdict == "undecided" else []
    ordinary = [name for name, case in cases.items() if case.ordinary]
    among = [name for name in ordinary if name in undecided]
    print(f"\nundecided: {len(undecided)} of {len(cases)}, of ordinary scale {len(among)} of ")
    print(f"{len(ordinary)}: {undecided}")
    assert len(cases) >= 40 and len(among) < 0.1 * len(ordinary)


@pytest.mark.parametrize(("scale", "lost"), [(1e160, "overflow"), (1e-160, "underflow")])
def test_what_cannot_be_run_in_float64_is_undecided(scale, lost):
    rnn = compiled()
    weights = {name: np.asarray(getattr(rnn, name)) for name in ("W_in_m", "W_in_x")}
    outer = {name: np.asarray(getattr(rnn, name)) for name in ("W_out_m", "W_out_x", "decay")}
    weights["W_in_m"] = weights["W_in_m"] * scale
    network = uh.GatedRNN(**weights, **outer, D=np.asarray(rnn.D) / scale)
    result = uh.decompile(network)
    assert result.verdict == "undecided" and lost in result.reason
    # D alone may have any scale that it can hold.
    assert uh.decompile(
        uh.GatedRNN(
            **dict(weights, W_in_m=np.asarray(rnn.W_in_m)), **outer, D=np.asarray(rnn.D) * scale
        )
    ).is_attention


def test_weights_that_are_denormal_prove_nothing():
    rnn = compiled()
    tiny = eqx.tree_at(lambda network: network.D, rnn, np.asarray(rnn.D) * 1e-322)
    assert uh.decompile(tiny).verdict == "undecided"
