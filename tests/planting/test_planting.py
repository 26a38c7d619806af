"""Planted networks compute the attention in their keys; grades and refusals."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import underhood as uh
from underhood.cli.entry import main
from underhood.planting import Planting, grade_folder, plant_folder, plant_network
from underhood.planting.answers import ROLE_KINDS
from underhood.planting.decoys import NO_DECOYS, run_network
from underhood.planting.grading import function_error
from underhood.planting.planting import CHECKED_LENGTH, CHECKED_SEQUENCES, PLANT_TARGETS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

pytestmark = pytest.mark.usefixtures("unhooked")


def definition(key, xs, decay):
    """Σ_h W_V (Σ_s λ^{t−s} x_s x_sᵀ) M x_t on a batch, term by term."""
    ys = np.zeros(xs.shape)
    for t in range(xs.shape[1]):
        for s in range(t + 1):
            for head in key["heads"]:
                V, M = np.array(head["W_V"]), np.array(head["M"])
                weights = np.einsum("nb,bc,nc->n", xs[:, s], M, xs[:, t])
                ys[:, t] += decay ** (t - s) * weights[:, None] * (xs[:, s] @ V.T)
    return ys


def read_back(folder, target, name="000"):
    weights = folder / "networks" / name / "model.safetensors"
    return uh.from_state_dict(weights, target) if "torch" in target else uh.load(weights)


CASES = [
    ("torch.LSTM", {"d": 2}),
    ("torch.GRU", {"d": 2, "decay": 0.8, "twins": 0}),
    ("gated_rnn", {"d": 3, "rank": 2, "heads": 2, "decay": 0.9}),
    ("side_gated_rnn", {"d": 1, "dead": 1}),
    ("lru", {"d": 2, "rank": 1}),
    ("lru_in_out", {"d": 2}),
]


@pytest.mark.parametrize(("target", "settings"), CASES, ids=[case[0] for case in CASES])
def test_a_network_from_its_file_computes_the_attention_in_its_key(target, settings, tmp_path):
    planting = Planting(target, seed=3, **settings)
    [planted] = plant_folder(planting, tmp_path / "new", count=1, decoys=0)
    key = json.loads((tmp_path / "new/keys/000.json").read_text())
    layer = read_back(tmp_path / "new", target)
    # The shape of the program that planting has compiled.
    xs = np.random.default_rng(1).normal(size=(CHECKED_SEQUENCES, CHECKED_LENGTH, planting.d))
    ys = run_network(layer, xs)
    expected = definition(key, xs, planting.decay)
    bound = 1e-8 if planted.built.epsilon else 1e-12
    assert np.max(np.abs(ys - expected)) <= bound * np.max(np.abs(expected))
    assert {role["kind"] for role in key["roles"]} <= set(ROLE_KINDS)
    assert key["rank"] == [[planting.rank or planting.d] * 2] * planting.heads
    # Every neuron of the built network is there, some twice, and the others are dead.
    was = Counter((role["layer"], role["was"]) for role in key["roles"])
    dead = sum(count for (_, number), count in was.items() if number < 0)
    assert len(key["roles"]) == layer.neurons and dead >= planting.dead
    # The padding of a torch layer is dead too, and has a place in the built network.
    assert sum(role["kind"] == "dead" for role in key["roles"]) >= dead
    assert all(count <= 2 for (_, number), count in was.items() if number >= 0)
    assert "roles" not in (tmp_path / "new/networks/000/README.md").read_text()


def test_roles_say_which_neurons_matter():
    """Without its dead neurons the network is the same, without any other it is not."""
    planted = plant_network(Planting("side_gated_rnn", d=2, twins=0, dead=3, seed=1))
    xs = np.random.default_rng(0).normal(size=(CHECKED_SEQUENCES, CHECKED_LENGTH, 2))
    ys, D = run_network(planted.layer, xs), np.asarray(planted.layer.D)
    for number, role in enumerate(planted.roles):
        without = planted.wiring.changed(D=D * (np.arange(D.shape[1]) != number))
        change = np.max(np.abs(run_network(without.layer(), xs) - ys))
        assert (change == 0) == (role.kind == "dead")


def test_the_same_seed_writes_the_same_networks_and_another_does_not(tmp_path):
    contents = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        plant_folder(Planting("gated_rnn", d=2, seed=seed), tmp_path / name, count=2, decoys=0.5)
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        assert len(files) == 2 + 3 * 2
        # The metadata of a safetensors file stand in any order.
        tensors = [path for path in files if path.suffix == ".safetensors"]
        weights = [(n, a.tobytes()) for p in tensors for n, a in sorted(load_file(p).items())]
        texts = [path.read_bytes() for path in files if path.suffix != ".safetensors"]
        contents.append((weights, texts))
    assert contents[0] == contents[1]
    assert contents[0][0] != contents[2][0]


def test_methods_are_graded(tmp_path, capsys, monkeypatch):
    """decompile solves all; probes by correlation solve no network with attention."""
    import planted_methods

    monkeypatch.setattr(planted_methods, "SEQUENCES", 4)
    folder = tmp_path / "planted"
    words = ["plant", "-o", str(folder), "--count", "4", "--decoys", "0.5", "--d", "2", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["decoys"] == 2
    facts = {}
    for method in planted_methods.METHODS:
        planted_methods.main(folder, tmp_path / method, method)
        assert main(["grade", str(folder), str(tmp_path / method), "--json"]) == 0
        facts[method] = json.loads(capsys.readouterr().out)
    assert facts["decompile"]["solved"] == 4
    assert facts["decompile"]["median error of W_V⊗M"] < 1e-12
    assert facts["decompile"]["neurons with the right role"] == 1
    naive = [row for row in facts["correlation"]["each"] if row["inside"] == "attention"]
    assert len(naive) == 2 and all(row["solved"] == "no" for row in naive)
    # A fit of the function knows nothing of neurons.
    assert facts["regression"]["median error of W_V⊗M"] < 1e-9
    assert facts["regression"]["neurons with the right role"] == 0
    assert main(["grade", str(folder), str(tmp_path / "decompile")]) == 0
    assert "decoy, shuffled" in capsys.readouterr().out


def test_the_error_sees_what_the_function_determines_and_no_more():
    rng = np.random.default_rng(0)
    V, M, other = rng.normal(size=(3, 3, 3))
    assert function_error([(2 * V, M / 2)], [(V, M)]) < 1e-15
    assert function_error([(V, M), (V, other)], [(V, M + other)]) < 1e-15
    assert function_error([], [(V, M)]) == 1
    assert function_error([(V, 1.1 * M)], [(V, M)]) == pytest.approx(0.1)
    # If both have rank 1, values and keys may change places.
    u, v, k, q = rng.normal(size=(4, 3))
    swapped = [(np.outer(u, k), np.outer(v, q))]
    assert function_error(swapped, [(np.outer(u, v), np.outer(k, q))]) < 1e-15


def test_answers_may_be_tensors_or_missing(tmp_path):
    folder, answers = tmp_path / "planted", tmp_path / "answers"
    plant_folder(Planting("gated_rnn", d=2), folder, count=2, decoys=0)
    answers.mkdir()
    [head] = json.loads((folder / "keys/001.json").read_text())["heads"]
    tensors = {f"heads.0.{name}": np.array(head[name]) for name in ("W_V", "M")}
    save_file(tensors, answers / "001.safetensors", {"verdict": "attention"})
    missing, given = grade_folder(folder, answers).each
    assert (missing.verdict, missing.error, missing.roles, missing.solved) == (False, 1, 0, False)
    assert (given.verdict, given.roles, given.solved) == (True, 0, True)


@pytest.fixture(scope="module")
def planted_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusals")
    plant_folder(Planting("gated_rnn", d=2), folder / "planted", count=1, decoys=0)
    (folder / "other").mkdir()
    (folder / "other/notes.txt").write_text("mine")
    (folder / "empty").mkdir()
    texts = ["[", "[1]", '{"verdict": "yes"}', '{"W_V": 1, "M": 2}', '{"heads": [{"W_V": [[1]]}]}']
    texts += ['{"roles": ["memory"]}', '{"roles": 3}', '{"answer": 1}']
    texts += [json.dumps({"roles": ["dead", "", "memroy"] + ["dead"] * 8})]
    for number, text in enumerate(texts):
        (folder / f"wrong{number}").mkdir()
        (folder / f"wrong{number}/000.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("plant", "--output"),
        ("plant -o new --target LSTM", "use one of torch.LSTM, torch.GRU, gated_rnn"),
        ("plant -o new --target torch.LTSM", "Did you mean 'torch.LSTM'?"),
        ("plant -o new --count 0", "count is 0"),
        ("plant -o new --d 0", "d is 0"),
        ("plant -o new --rank 4", "rank is 4; give a whole number from 1 to 3"),
        ("plant -o new --decay 0", "decay is 0"),
        ("plant -o new --decoys 1.5", "a share from 0 to 1"),
        ("plant -o new --target side_gated_rnn --decoys 0.5", "is a sum of heads"),
        ("plant -o other", "is not empty"),
        ("plant -o other --force", "is not empty"),
        ("plant -o planted", "add --force"),
        ("plant -o other/notes.txt", "is a file"),
        ("grade planted", "ANSWERS"),
        ("grade other empty", "holds no planted networks"),
        ("grade planted nowhere", "is no folder"),
        ("grade planted empty", "holds no answer"),
        ("grade planted wrong0", "cannot be read"),
        ("grade planted wrong1", "an answer is an object"),
        ("grade planted wrong2", "verdict is 'yes'"),
        ("grade planted wrong3", "W_V is a number; give 2×2"),
        ("grade planted wrong4", "W_V is 1×1; give 2×2"),
        ("grade planted wrong5", "names 1 roles for 11 neurons"),
        ("grade planted wrong6", "roles is a list"),
        ("grade planted wrong7", "an answer is an object"),
        ("grade planted wrong8", "role of neuron 2 in wrong8/000.json 'memroy'; use one of memory"),
    ],
)
def test_wrong_input_is_one_line(words, reason, planted_folder, monkeypatch, capsys):
    monkeypatch.chdir(planted_folder)
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert reason in printed.err and printed.err.count("\n") == 1 and not printed.out
    assert not Path("new").exists()
    assert Path("other/notes.txt").read_text() == "mine"


def test_an_interrupted_folder_is_replaced_with_force(tmp_path, monkeypatch):
    from underhood.planting import folders

    folder, planting = tmp_path / "planted", Planting("side_gated_rnn", d=1)

    def stop(planting, number, kind):
        if number == 2:
            raise KeyboardInterrupt
        return plant_network(planting, number, kind)

    monkeypatch.setattr(folders, "plant_network", stop)
    with pytest.raises(KeyboardInterrupt):
        plant_folder(planting, folder, count=4)
    assert not json.loads((folder / "index.json").read_text())["finished"]
    assert not list(folder.rglob(".*"))
    with pytest.raises(uh.BadInput, match="is not finished"):
        grade_folder(folder, tmp_path)
    monkeypatch.undo()
    plant_folder(planting, folder, count=1, force=True)
    assert [path.name for path in (folder / "networks").iterdir()] == ["000"]


def test_every_target_has_decoys_or_a_reason():
    assert set(NO_DECOYS) < set(PLANT_TARGETS)
    with pytest.raises(uh.BadInput, match="give dead=4"):
        plant_network(Planting("gated_rnn", dead=0), decoy="added")


def test_a_shuffle_that_cuts_every_path_is_drawn_again() -> None:
    for seed in range(1, 4):
        small = Planting("gated_rnn", d=1, twins=0, dead=0, seed=seed)
        decoy = plant_network(small, decoy="shuffled")
        xs = np.random.default_rng(0).normal(size=(4, 8, 1))
        outputs = run_network(decoy.layer, xs)
        assert np.all(np.isfinite(outputs)) and np.any(outputs)
