"""underhood recall: what it prints, and what it refuses."""

import json

import pytest

from underhood.cli.entry import main

pytestmark = pytest.mark.usefixtures("unhooked")


def test_it_prints_the_split_and_the_accuracies(capsys):
    assert main(["recall", "--state", "300", "--answers", "64", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["numbers per key"], facts["numbers per value"]) == (100, 2)
    assert (facts["numbers carried"], facts["bytes"], facts["layers"]) == (300, 1200, 2)
    assert facts["neurons"] == 203 + 300
    assert [row["pairs"] for row in facts["sets"]] == [4, 8, 16, 32, 64, 128, 256]
    assert all(abs(row["run"] - row["formula"]) < 0.25 for row in facts["sets"])
    assert all(row["possible"] >= row["formula"] for row in facts["sets"])
    assert abs(facts["accuracy run"] - facts["accuracy by formula"]) < 0.08
    assert facts["nearest trained layer"].startswith("GLA, 4864 bytes")


def test_stacked_in_another_target_as_a_table(capsys):
    words = ["--state", "64", "--stacked", "--codes", "hash", "--target", "side_gated_rnn"]
    assert main(["recall", *words, "--answers", "16"]) == 0
    printed = capsys.readouterr().out
    assert "side_gated_rnn" in printed and "possible" in printed and "trained" not in printed


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "--state"),
        (["--state", "1"], "state is 1"),
        (["--state", "-3"], "--state is -3"),
        (["--state", "300", "--codes", "dence"], "Did you mean 'dense'?"),
        (["--state", "300", "--target", "lstm"], "stacked=True"),
        (["--state", "300", "--layers", "1"], "product of three signs"),
        (["--state", "300", "--answers", "0"], "--answers is 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(words, reason, capsys):
    assert main(["recall", *words]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err and printed.err.count("\n") == 1 and not printed.out
