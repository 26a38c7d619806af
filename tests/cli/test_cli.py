"""The command line: what it prints, what it refuses, and with which status."""

import errno
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from result_files import COMMITTED
from teachers import gated_rnn

import underhood as uh
import underhood.report.build
from underhood.cli.entry import main

pytestmark = pytest.mark.usefixtures("unhooked")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the commands below name."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def weights(name: str, **tensors: np.ndarray) -> None:
        good = {letter: rng.normal(size=(3, 3)) for letter in ("W_V", "W_K", "W_Q")}
        chosen = {key: value for key, value in {**good, **tensors}.items() if value is not None}
        safetensors.numpy.save_file(chosen, f"{name}.safetensors")

    weights("good")
    weights("biased", b_V=np.ones(3))
    weights("decaying", decay=np.array([1, 0.5, 0.0]))
    weights("singular", W_V=np.diag([1.0, 1, 0]), W_K=np.diag([1.0, 0, 0]))
    for name, *shape in (("vector", 3), ("cube", 2, 2, 2), ("mismatched", 3, 4)):
        weights(name, W_V=np.ones(shape))
    weights("keys", W_K=np.ones((2, 3)))
    weights("nan", W_K=np.full((3, 3), np.nan))
    weights("infinite", W_Q=np.full((3, 3), np.inf))
    for name, kind in (("integers", np.int64), ("truths", bool), ("complex", np.complex64)):
        weights(name, W_V=np.eye(3, dtype=kind))
    weights("half_missing", W_Q=None)
    weights("extra", W_O=np.eye(3))
    weights("bad_bias", b_V=np.ones(4))
    for name, *decay in (("bad", 1, 2.0, 0.5), ("nan", 1, np.nan, 0.5), ("short", 1.0)):
        weights(f"{name}_decay", decay=np.array(decay))
    safetensors.numpy.save_file({"layer.0.weight": np.eye(2)}, "foreign.safetensors")
    safetensors.numpy.save_file({}, "nothing.safetensors")
    whole = Path("good.safetensors").read_bytes()
    Path("truncated.safetensors").write_bytes(whole[:-8])
    Path("headless.safetensors").write_bytes(whole[:20])
    for name in ("empty", "exists"):
        Path(f"{name}.safetensors").touch()
    Path("text.safetensors").write_text("W_V: 1, 2, 3")
    Path("huge.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with open("objects.safetensors", "wb") as file:
        np.save(file, np.array([{}, []], dtype=object), allow_pickle=True)
    uh.save("rnn.safetensors", gated_rnn(3))
    uh.save("lstm.safetensors", uh.LSTM.init(d_in=2, hidden=2, key=jax.random.key(0)))
    for power in (-200, 120, 200, 300):
        scaled = {letter: 10.0**power * np.eye(3) for letter in ("W_V", "W_K", "W_Q")}
        safetensors.numpy.save_file(scaled, f"times1e{power}.safetensors")
    heads = [uh.LinearAttention(scale * np.eye(3), np.eye(3), np.eye(3)) for scale in (1, 0.9999)]
    cancelling = uh.MultiHead(heads, W_O=np.hstack([np.eye(3), -np.eye(3)]))
    uh.save("cancelling.safetensors", cancelling)
    os.mkfifo("pipe")
    os.symlink("good.safetensors", "link")
    os.symlink("nowhere", "dangling")
    os.mkdir("locked")
    os.mkdir("results")


REFUSED = {
    # What cannot be decompiled.
    "decompile absent.safetensors": "No such file",
    "decompile truncated.safetensors": "not a readable safetensors file",
    "decompile nan.safetensors": "NaN or infinite",
    "decompile bad_decay.safetensors": "decay must lie in [0, 1]",
    "decompile lstm.safetensors": "a DenseGatedRNN or a SideGatedRNN, not an LSTM",
    "decompile good.safetensors": "or a SideGatedRNN, not a LinearAttention",
    "decompile rnn.safetensors -o exists.safetensors": "--force",
    "decompile rnn.safetensors -o locked/deep/x": "locked/deep",
    "decompile rnn.safetensors --biases maybe": "use one of auto, yes, no.",
    "decompile rnn.safetensors --tolerance 2": "tolerance is 2",
    "decompile rnn.safetensors --time 0": "time is 0",
    "decompile rnn.safetensors --radius -1": "radius is -1",
    "decompile rnn.safetensors --radius nan": "radius is nan",
    "decompile rnn.safetensors --tolerence 1": "Did you mean '--tolerance'?",
    # Files that are not what they should be.
    "compile absent.safetensors -o x": "No such file",
    "compile . -o x": "Is a directory",
    "compile foreign.safetensors -o x": "layer.0.weight",
    "compile nothing.safetensors -o x": "it holds nothing",
    "compile truncated.safetensors -o x": "not a readable safetensors file",
    "compile headless.safetensors -o x": "not a readable safetensors file",
    "compile empty.safetensors -o x": "not a readable safetensors file",
    "compile text.safetensors -o x": "not a readable safetensors file",
    "compile huge.safetensors -o x": "not a readable safetensors file",
    "compile objects.safetensors -o x": "not a readable safetensors file",
    "compile half_missing.safetensors -o x": "need the tensors W_V, W_K and W_Q",
    "compile extra.safetensors -o x": "W_O",
    "compile lstm.safetensors -o x": "not an LSTM",
    # Weights that are not what they should be.
    "compile vector.safetensors -o x": "must be [d_v, d_in]",
    "compile cube.safetensors -o x": "must be [d_v, d_in]",
    "compile mismatched.safetensors -o x": "d_in is 4 in W_V",
    "compile keys.safetensors -o x": "d_k is 2 in W_K",
    "compile nan.safetensors -o x": "W_K holds NaN",
    "compile infinite.safetensors -o x": "W_Q holds NaN or infinite",
    "compile integers.safetensors -o x": "int64",
    "compile truths.safetensors -o x": "bool",
    "compile complex.safetensors -o x": "layers are real; give the two parts as separate rows",
    "compile times1e300.safetensors -o x": "too large for float64; scale them down",
    "compile times1e200.safetensors -o x --target lstm": "too large for float64; scale them down",
    "compile times1e200.safetensors -o x --target gru": "too large for float64; scale them down",
    "compile times1e120.safetensors -o x --json": "too large for float64; scale them down",
    "compile times1e-200.safetensors -o x --json": "too small for float64; scale them up",
    "compile bad_bias.safetensors -o x": "b_V has shape (4,)",
    "compile bad_decay.safetensors -o x": "decay must lie in [0, 1]",
    "compile nan_decay.safetensors -o x": "decay holds NaN",
    "compile short_decay.safetensors -o x": "d_v is 3",
    # Requests that cannot be met.
    "compile good.safetensors -o x --target transformer": "Unknown target 'transformer'",
    "compile good.safetensors -o x --target lsmt": "Did you mean 'lstm'?",
    "compile good.safetensors -o x --form tiny": "Unknown form 'tiny'",
    "compile good.safetensors -o x --dtype float16": "Unknown dtype 'float16'",
    "compile good.safetensors -o x --target lstm --order 0": "order is 0; give a whole number",
    "compile good.safetensors -o x --target lstm --order 99": "from 1 to 8",
    "compile good.safetensors -o x --target lstm --order two": "--order needs a whole number",
    "compile good.safetensors -o x --target lstm --epsilon -1": "epsilon is -1.0; give a number",
    "compile good.safetensors -o x --target lstm --epsilon nan": "epsilon is nan; give a number",
    "compile good.safetensors -o x --target lru --layers 1": "lru takes 2 layers, not 1",
    "compile good.safetensors -o x --length 0": "length is 0; give a whole number",
    "compile good.safetensors -o x --size nan": "size is nan; give a number above 0",
    "compile good.safetensors -o x --size 0": "size is 0.0; give a number above 0",
    "compile good.safetensors -o x --size 1e9 --target gru --dtype float32": "of size 1e+09",
    "compile cancelling.safetensors -o x --target lstm --dtype float32": "promises 0.01",
    "compile good.safetensors -o x --layers 3": "layers is 3; give a whole number from 1 to 2",
    "compile good.safetensors -o x --order 2": "The target gated_rnn is exact",
    "compile good.safetensors -o x --activation relu": "activation= belongs to",
    "compile good.safetensors -o x --target lru_in_out_mlp --activation relu": "piecewise linear",
    "compile good.safetensors -o x --target lru_in_out_mlp --activation gelo": "'gelu'?",
    "compile singular.safetensors -o x --form compact": "W_V (3×3) has rank 2",
    "compile biased.safetensors -o x --target side_gated_rnn": "Side gating has no constant",
    "compile decaying.safetensors -o x --target gru --layers 1": "the source must not decay",
    "compile rnn.safetensors -o x": "a gated RNN already",
    "compile rnn.safetensors -o x --target lstm --form full": "a gated RNN has its own",
    # Outputs that cannot be written.
    "compile good.safetensors -o exists.safetensors": "add --force",
    "compile good.safetensors -o results": "is a folder",
    "compile good.safetensors -o link": "link is a symbolic link; name a regular file",
    "compile good.safetensors --force -o link": "link is a symbolic link; name a regular file",
    "compile good.safetensors --force -o dangling": "dangling is a symbolic link; name a regular",
    "compile good.safetensors --force -o pipe": "pipe is a pipe; name a regular file",
    "compile good.safetensors --force -o /dev/full": "/dev/full is a device; name a regular file",
    "compile good.safetensors --force -o /dev/stdout": "/dev/stdout is a symbolic link; name a",
    "compile good.safetensors -o missing/x": "does not exist",
    # The command itself.
    "": "Name a command: discover, list, reproduce, ",
    "compile": "Missing SOURCE and -o/--output. See underhood compile --help.",
    "compile good.safetensors": "Missing -o/--output.",
    "compile good.safetensors -o x --taget lstm": "Did you mean '--target'?",
    "compile good.safetensors --outptu x": "Unknown option --outptu. Did you mean '--output'?",
    "compile good.safetensors more.safetensors -o x": "Unexpected argument 'more.safetensors'",
    "compile good.safetensors -o": "-o/--output needs a path",
    "compile good.safetensors -o x --epsilon small": "--epsilon needs a number",
    "inspect good.safetensors --no-picture": "Did you mean '--no-pictures'?",
    "reproduce table3 --tls_caa x": "Did you mean '--tls-ca'?",
    "decompose good.safetensors": "Did you mean 'decompile'?",
    "xyz": "Unknown command 'xyz'; use one of discover, list, reproduce, ",
    "--versoin": "--help, --version. Did you mean '--version'?",
    "--tyro-print-completion": "underhood cannot read this. See underhood --help.",
    "--tyro-print-completion dos": "Shell should be one `bash`",
    "inspect absent.safetensors": "No such file",
    "inspect pipe": "pipe is not a readable safetensors file: it is a pipe",
    "inspect /dev/zero": "/dev/zero is not a readable safetensors file: it is a device",
    "compile pipe -o x": "pipe is not a readable safetensors file: it is a pipe",
    "inspect truncated.safetensors": "not a readable safetensors file",
    "reproduce table4": "Did you mean 'table3'?",
    "reproduce table3 --scale huge": "Unknown scale 'huge'",
    "report absent": "does not exist",
    "report results": "holds no results",
    "report good.safetensors": "is a file; give the folder",
    "report results -o good.safetensors": "holds no results",
    "verify": "Missing FOLDER. See underhood verify --help.",
    "verify absent": "does not exist",
    "verify results": "holds no results",
    "verify good.safetensors": "is a file; give the folder",
    f"verify {COMMITTED['quick']} --only tabel2": "Did you mean 'table2'?",
    f"verify {COMMITTED['quick'] / 'table2'}": f"did you mean {COMMITTED['quick']}?",
}


@pytest.mark.parametrize("command", REFUSED)
def test_bad_input_is_one_line_and_status_2(command: str, folder, capsys) -> None:
    before = sorted(os.listdir())
    assert main(command.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith("underhood: ")
    assert REFUSED[command] in line
    assert sorted(os.listdir()) == before


def shown(capsys, *words: str) -> str:
    """What a command prints that succeeds."""
    capsys.readouterr()
    assert main([*words]) == 0
    return capsys.readouterr().out


def test_a_tyro_that_gives_no_reasons_still_gets_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "tyro._errors", None)
    assert main(["compile", "--taget", "lstm"]) == 2
    line = "underhood: underhood compile cannot read this. See underhood compile --help.\n"
    assert capsys.readouterr().err == line


def test_an_unwritable_folder_is_refused(folder, capsys, monkeypatch) -> None:
    def refuse(dir):
        raise PermissionError(str(dir))

    # Permissions do not bind root, so the system's answer is put in.
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert main(["compile", "good.safetensors", "-o", "locked/x"]) == 2
    assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["gated_rnn", "lstm", "mamba", "decayed_attention"])
def test_compile_writes_a_network_and_says_what_it_is(target: str, folder, capsys) -> None:
    command = f"compile good.safetensors --target {target} -o out.safetensors --json"
    assert main(command.split()) == 0
    facts = json.loads(capsys.readouterr().out)
    layer = uh.load("out.safetensors")
    assert facts["neurons"] == layer.neurons
    assert facts["error"] <= 1e-9
    assert main(command.split()) == 2
    assert main([*command.split(), "--force"]) == 0


def test_compile_measures_a_table_and_warns_where_it_promises_nothing(folder, capsys) -> None:
    command = "compile good.safetensors --target lstm --dtype float32 --force -o out.safetensors"
    assert main([*command.split(), "--json"]) == 0
    said = capsys.readouterr()
    facts = json.loads(said.out, parse_constant=pytest.fail)
    errors = {(cell["length"], cell["size"]): cell["error"] for cell in facts["errors"]}
    assert set(errors) == {(time, size) for time in (32, 1024, 4096) for size in (1.0, 10.0)}
    assert errors[32, 1.0] <= facts["promised"] < errors[32, 10.0]
    assert said.err.startswith("underhood: the error is above 0.01 on 32 tokens of size 10, ")
    assert "add --length and --size" in said.err and said.err.count("\n") == 1
    asked = [*command.split(), "--length", "100", "--size", "10"]
    printed = shown(capsys, *asked)
    table = printed[printed.index("tokens ") :].splitlines()
    assert table[0].split() == ["tokens", "size", "1", "size", "10"]
    assert [int(line.split()[0]) for line in table[2:6]] == [32, 100, 1024, 4096]
    assert all(float(line.split()[2]) <= 0.01 for line in table[2:6])
    settings = json.loads(shown(capsys, "inspect", "out.safetensors", "--json"))
    assert (settings["length"], settings["size"]) == (100, 10.0)
    # Exact networks keep the promise everywhere.
    assert (
        main(["compile", "good.safetensors", "-o", "exact.safetensors", "--dtype", "float32"]) == 0
    )
    assert capsys.readouterr().err == ""


def test_half_precision_files_are_read(folder, capsys) -> None:
    weights = {name: np.eye(3, dtype=ml_dtypes.bfloat16) for name in ("W_V", "W_K", "W_Q")}
    safetensors.numpy.save_file(weights, "brain.safetensors")
    half = {name: W.astype(np.float16) for name, W in weights.items()}
    safetensors.numpy.save_file(half, "half.safetensors")
    for name in ("brain", "half"):
        shown(capsys, "compile", f"{name}.safetensors", "-o", f"{name}_rnn.safetensors")
        facts = json.loads(shown(capsys, "inspect", f"{name}.safetensors", "--json"))
        assert facts["kind"] == "LinearAttention"


def test_a_full_disk_is_status_1_with_the_files_name(folder, capsys, monkeypatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shutil.copytree(COMMITTED["quick"] / "reverse", "done/reverse")
    before = sorted(os.listdir("done"))
    monkeypatch.setattr(os, "fsync", full)
    for command, name in (
        ("report done --no-figures", "done/report.html"),
        ("report done", "done/reverse/figure.pdf"),
        ("compile good.safetensors -o x.safetensors", "x.safetensors"),
    ):
        assert main(command.split()) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err == f"underhood: cannot use {name}: No space left on device.\n"
    assert sorted(os.listdir("done")) == before and not Path("x.safetensors").exists()


def test_reproduce_without_room_for_the_page_is_status_1(folder, capsys, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/report.html")

    monkeypatch.setattr(underhood.report.build, "build", full)
    assert main(["reproduce", "reverse", "--scale", "smoke", "--out", "out"]) == 1
    line = "the results are kept, but there is no page: OSError: [Errno 28] No space left on device"
    assert f"underhood: {line}: 'out/report.html'\n" in capsys.readouterr().err
    assert Path("out/reverse/result.json").exists()


@pytest.mark.parametrize("target", ["gated_rnn", "side_gated_rnn"])
def test_decompile_gives_the_attention_back(target: str, folder, capsys) -> None:
    shown(capsys, "compile", "good.safetensors", "-o", "built.safetensors", "--target", target)
    words = ("decompile", "built.safetensors")
    facts = json.loads(shown(capsys, *words, "-o", "found.safetensors", "--json"))
    assert facts["is_attention"] and facts["residual"] < 1e-12 and facts["bound"] < 1e-6
    attention, source = uh.load("found.safetensors"), uh.load("good.safetensors")
    xs = np.random.default_rng(1).normal(size=(10, 3))
    with jax.enable_x64(True):
        np.testing.assert_allclose(attention(jax.numpy.asarray(xs)), source(jax.numpy.asarray(xs)))
    printed = shown(capsys, *words)
    for expected in ("is_attention", "memory", "degree 3", "W_V  3×3", "M = W_KᵀW_Q  3×3", "■"):
        assert expected in printed


def test_decompile_says_where_there_is_no_attention(folder, capsys) -> None:
    assert main(["decompile", "rnn.safetensors", "-o", "x.safetensors", "--json"]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["is_attention"] is False
    assert said.err.startswith("underhood: not attention") and said.err.count("\n") == 1
    assert not Path("x.safetensors").exists()


def test_inspect_shows_arrays_roles_and_pictures_and_list_every_experiment(folder, capsys) -> None:
    shown(capsys, "compile", "good.safetensors", "-o", "out.safetensors")
    printed = shown(capsys, "inspect", "out.safetensors")
    for expected in ("GatedRNN", "W_in_m", "decay", "memory", "kv[0,0]", "query", "■", "·"):
        assert expected in printed
    facts = json.loads(shown(capsys, "inspect", "out.safetensors", "--json"))
    assert facts["arrays"]["D"] == [3, 6]
    assert facts["roles"][0] == ["memory", "kv[0,0]"]
    printed = shown(capsys, "list")
    assert all(name in printed for name in ("table3", "lstm_weights", "reverse"))


def test_inspect_shows_weights_of_another_framework(folder, capsys) -> None:
    layer = uh.LSTM.init(d_in=3, hidden=2, key=jax.random.key(0))
    safetensors.numpy.save_file(uh.to_state_dict(layer, "torch.LSTM"), "torch.safetensors")
    facts = json.loads(shown(capsys, "inspect", "torch.safetensors", "--json"))
    assert (facts["kind"], facts["read as"], facts["neurons"]) == ("LSTM", "torch.LSTM", 2)
    assert main(["compile", "torch.safetensors", "-o", "x"]) == 2
    assert "read by uh.from_state_dict, and shown by underhood inspect" in capsys.readouterr().err


def test_inspect_shows_attention_maps_of_a_layer(folder, capsys) -> None:
    shown(capsys, "compile", "good.safetensors", "--target", "kda", "-o", "kda.safetensors")
    printed = shown(capsys, "inspect", "kda.safetensors", "--map", "--length", "5")
    assert "map 0  5×5" in printed and "KDA" in printed and "convolution, norm" in printed
    uh.save("gru.safetensors", uh.MinGRU.init(d_in=3, hidden=9, d_out=3, key=jax.random.key(0)))
    printed = shown(capsys, "inspect", "gru.safetensors", "--map", "--length", "1")
    assert "9, the first 8 below" in printed and "map 7" in printed and "map 8" not in printed
    facts = json.loads(shown(capsys, "inspect", "good.safetensors", "--map", "--json"))
    assert np.array_equal(facts["values"], np.tril(facts["values"]))
    # The tokens of a file: attention's own map is q·k.
    xs = np.random.default_rng(0).normal(size=(4, 3))
    np.savetxt("tokens.txt", xs)
    given = ["inspect", "good.safetensors", "--map", "--tokens", "tokens.txt"]
    values = json.loads(shown(capsys, *given, "--json"))["values"]
    source = safetensors.numpy.load_file("good.safetensors")
    scores = np.tril((xs @ source["W_Q"].T) @ (xs @ source["W_K"].T).T)
    assert np.allclose(values, scores[None], rtol=1e-12)
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        shown(capsys, *given, "--output", f"maps.{kind}")
        assert Path(f"maps.{kind}").read_bytes().startswith(start)
    Path("empty.txt").write_text("\n")
    Path("commas.txt").write_text("1,2,3\n")
    np.save("array.npy", xs)
    for words, reason in {
        "--map --output maps.png": "exists; add --force",
        "--map --output maps.bmp": "must end in .pdf, .svg, .png",
        "--map --layer 2": "--layer is 2, and this LinearAttention is no stack",
        "--map --length 0": "--length is 0; give a whole number from 1 to 1024",
        "--map --seed -1": "--seed is -1; give a whole number from 0",
        "--map --json --output other.png": "leave one of them out",
        "--map --tokens absent.txt": "cannot use absent.txt: No such file",
        "--map --tokens empty.txt": "empty.txt holds no tokens; give 3 numbers a line",
        "--map --tokens array.npy": "array.npy is no text file; give 3 numbers a line",
        "--map --tokens commas.txt": "could not convert … give 3 numbers a line",
        "--output other.png": "--output belongs to --map",
        "--layer 1 --length 3": "--length and --layer belong to --map",
    }.items():
        assert main(["inspect", "good.safetensors", *words.split()]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert all(part in line for part in reason.split(" … ")), line
    np.savetxt("short.txt", xs[:, :2])
    assert main([*given[:-1], "short.txt"]) == 2
    assert "short.txt has 2 numbers in line 1; give 3" in capsys.readouterr().err
    Path("ragged.txt").write_text("1 2 3\n\n1 2 3\n4\n")
    assert main([*given[:-1], "ragged.txt"]) == 2
    assert "ragged.txt has 1 number in line 4; give 3" in capsys.readouterr().err
    assert main([*given, "--length", "5"]) == 2
    assert "--length of random tokens and --tokens do not go together" in capsys.readouterr().err
