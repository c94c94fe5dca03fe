"""Models that runs save: they are what was evaluated, and are found, tested and loaded again; simulated runs here."""

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import grsgd
from grsgd import load_run
from grsgd.cli import main
from grsgd.data import load
from grsgd.errors import ModelError, UsageError
from grsgd.models import zoo
from grsgd.models.replica import Replica
from grsgd.runs.run_file import save_run
from grsgd.training import loading
from grsgd.training.evaluation import Quality
from grsgd.training.loading import evaluate
from grsgd.training.saving import ModelFiles, save_state, state_of

CONFIG = """
device = "cpu"
[algorithm]
name = "dpsgd"
[model]
name = "mlp"
hidden = [8]
[data]
name = "digits"
batch_size = 16
only_train = 400
[optimizer]
lr = 0.5
[train]
epochs = 2
snapshots = 4
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a simulated run, ``run.h5``, of ``run.toml``, and its models, ``final.pt`` and ``best.pt``."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "run.toml").write_text(CONFIG)
    assert simulate(folder) == 0
    return folder


def simulate(folder: Path, *arguments, settings=(), ranks=3) -> int:
    files = ["--out", folder / "run.h5", "--save", folder / "final.pt", "--save-best", folder / "best.pt"]
    settings = [word for setting in settings for word in ("--set", setting)]
    return main(
        [str(word) for word in ["simulate", folder / "run.toml", "--ranks", ranks, *files, *settings, *arguments]]
    )


def accuracy(model: torch.nn.Module, name="digits", dtype=torch.float32, **options) -> float:
    """Of a model, by torch alone."""
    test = load(name, ".", **options).test
    (x, y), *_ = test.batches([range(len(test))])
    with torch.no_grad():
        return int((model.eval()(x.to(dtype)).argmax(1) == y).sum()) / len(y)


ALGORITHMS = {
    "dpsgd": ["train.evaluate_replicas=false"],
    "sgp": ["stragglers.slowdown={1=3.0}"],
    "gosgd": ["dtype=float64"],
    "easgd": ["algorithm.period=3"],
    "parameter_server": ["algorithm.strategy=asp"],
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_saved_models_are_those_that_were_evaluated(algorithm, folder, tmp_path):
    (tmp_path / "run.toml").write_text(CONFIG)
    assert simulate(tmp_path, settings=[f"algorithm.name={algorithm}", *ALGORITHMS[algorithm]]) == 0
    run = load_run(tmp_path / "run.h5")
    dtype = torch.float64 if algorithm == "gosgd" else torch.float32
    expected = zoo.build("mlp", (1, 8, 8), 10, hidden=[8]).to(dtype)
    for name, wanted in (
        ("final.pt", run.attributes["final_test_accuracy"]),
        ("best.pt", max([*run.curve["test_accuracy"], run.attributes["final_test_accuracy"]])),
    ):
        state = torch.load(tmp_path / name, weights_only=True)
        assert [(key, value.shape, value.dtype) for key, value in state.items()] == [
            (key, value.shape, value.dtype) for key, value in expected.state_dict().items()
        ]
        expected.load_state_dict(state)
        assert accuracy(expected, dtype=dtype) == wanted
    assert run.attributes["best_test_accuracy"] == wanted
    assert evaluate(tmp_path / "run.h5").value == run.attributes["final_test_accuracy"]
    assert evaluate(tmp_path / "run.h5", best=True).value == run.attributes["best_test_accuracy"]


def test_batch_norm_in_a_loaded_model_is_that_of_the_run(tmp_path):
    """The buffers are averages, too: with those of one rank, or of a new network, the accuracy would be another."""
    (tmp_path / "run.toml").write_text(CONFIG.replace('name = "mlp"\nhidden = [8]', 'name = "resnet20"'))
    assert (
        simulate(
            tmp_path, settings=["train.steps=4", "train.snapshots=1", "data.only_test=60", "optimizer.lr=0.05"], ranks=2
        )
        == 0
    )
    attributes = load_run(tmp_path / "run.h5").attributes
    assert evaluate(tmp_path / "run.h5").value == attributes["final_test_accuracy"]
    state = torch.load(tmp_path / "final.pt", weights_only=True)
    assert state["bn1.num_batches_tracked"] == 4 and state["bn1.running_mean"].abs().sum() > 0
    model = grsgd.load_model(tmp_path / "run.h5")
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_of_equally_good_models_the_earliest_is_the_best():
    models, model = ModelFiles(best="best.pt"), torch.nn.Linear(1, 1, bias=False)
    for weight, accuracy in ((1, 0.5), (2, 0.7), (3, 0.6), (4, 0.7)):
        torch.nn.init.constant_(model.weight, weight)
        models.evaluated(model, Quality(accuracy, 0, 0, 0))
    assert models._best_state["weight"] == 2


def test_weights_that_are_not_finite_are_told(tmp_path):
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, torch.inf)
    saved = ModelFiles(tmp_path / "model.pt").save(model, "epochs")
    assert saved.warnings == [f"{tmp_path / 'model.pt'}: some of its weights are not finite"] and not saved.problems


def test_evaluate_prints_one_line(folder, capsys):
    attributes = load_run(folder / "run.h5").attributes
    assert attributes["best_model_sha256"] != attributes["model_sha256"]
    final, best = (f"test accuracy {100 * attributes[f'{name}_test_accuracy']:.2f} %" for name in ("final", "best"))
    run, config, model = (str(folder / name) for name in ("run.h5", "run.toml", "final.pt"))
    for arguments, line in (
        ([run], final),
        ([run, "--best"], best),
        ([model, run], final),
        ([model, config], final),
        ([str(folder / "best.pt"), config], best),
        ([run, config, "--set", "data.only_test=60"], "60 samples of digits"),
    ):
        assert main(["evaluate", *arguments]) == 0
        out, err = capsys.readouterr()
        assert line in out and re.search(r", test loss \d\.\d{4}, ", out) and out.count("\n") == 1 and err == ""


def test_an_interrupted_test_is_one_line(folder, capsys, monkeypatch):
    monkeypatch.setattr(loading, "metric_and_loss", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert main(["evaluate", str(folder / "run.h5")]) == 130
    assert capsys.readouterr().err == "grsgd: error: interrupted (Ctrl-C) before all samples were tested\n"


def test_without_mpi_and_without_the_data(folder, tmp_path):
    """A run file knows the shape of its data: to load its model takes none."""
    run = load_run(folder / "run.h5")
    run.attributes["config"] = run.attributes["config"].replace('name = "digits"', 'name = "imagefolder"')
    save_run(tmp_path / "run.h5", run)
    code = (
        "import sys, grsgd, torch; torch.manual_seed(3); first = torch.rand(1); torch.manual_seed(3)\n"
        f"model = grsgd.load_model({str(tmp_path / 'run.h5')!r})\n"
        "assert torch.equal(torch.rand(1), first), 'random numbers were drawn'\n"
        "assert not model.training and model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)\n"
        "from grsgd.cli import main\n"
        f"assert main(['evaluate', {str(folder / 'run.h5')!r}]) == 0\n"
        "assert 'mpi4py.MPI' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr


def test_load_model_by_a_configuration(folder):
    state = torch.load(folder / "best.pt", weights_only=True)
    model = grsgd.load_model(folder / "best.pt", folder / "run.toml")
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_model_that_was_moved_with_its_run_file(folder, tmp_path):
    for name in ("run.h5", "final.pt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    run = load_run(tmp_path / "run.h5")
    run.attributes["model_file"] = "/nowhere/final.pt"
    save_run(tmp_path / "run.h5", run)
    assert evaluate(tmp_path / "run.h5").value == run.attributes["final_test_accuracy"]
    (tmp_path / "final.pt").unlink()
    with pytest.raises(ModelError, match="is not at /nowhere/final.pt or"):
        evaluate(tmp_path / "run.h5")


def test_another_model_than_the_run_has_saved(folder, tmp_path, capsys):
    run = load_run(folder / "run.h5")
    for name in ("final.pt", "best.pt"):
        state = {key: value + 1 for key, value in torch.load(folder / name, weights_only=True).items()}
        torch.save(state, tmp_path / name)
    run.attributes["model_file"] = str(tmp_path / "final.pt")
    save_run(tmp_path / "run.h5", run)
    assert main(["evaluate", str(tmp_path / "run.h5")]) == 2
    assert "is not the model that the run of" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "best.pt"), str(folder / "run.h5")]) == 0
    assert "warning" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="SHA-256"):
        grsgd.load_model(tmp_path / "best.pt", folder / "run.h5")


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("hacked",)


def files_of_others(folder: Path) -> dict:
    checkpoint = {"epoch": 3, "model": torch.load(folder / "final.pt", weights_only=True)}
    return {"list": [1.0], "checkpoint": checkpoint, "object": torch.nn.Linear(2, 2), "code": Hostile()}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("list", "is not a state dict, but of type list"),
        ("checkpoint", "is not a state dict: 'epoch' is of type int, not a tensor"),
        ("object", "is not a state dict: it holds other objects than tensors"),
        ("code", "is not a state dict: it holds other objects than tensors"),
        ("pickle", "is not a state dict: it holds other objects than tensors"),
        ("text", "is not a state dict: not a file of torch.save"),
        ("half", "is not a state dict: not a file of torch.save"),
        ("missing", "No such file"),
        ("folder", "is a directory"),
    ],
)
def test_what_is_not_a_model(kind, said, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pt"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Hostile()))
    elif kind in ("text", "half"):
        path.write_bytes(b"hello" if kind == "text" else (folder / "final.pt").read_bytes()[:3000])
    elif kind == "folder":
        path.mkdir()
    elif kind != "missing":
        torch.save(files_of_others(folder)[kind], path)
    refused(["evaluate", path, folder / "run.toml"], said, capsys)
    assert not (tmp_path / "hacked").exists()


def refused(arguments: list, said: str, capsys):
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.startswith("grsgd: error: ") and err.count("\n") == 1 and out == "", err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["model.hidden=[9]"],
            "1.weight is 8x64, expected 9x64; 1.bias is 8, expected 9; 3.weight is 10x8, expected",
        ),
        (
            ["model.hidden=[8, 8]"],
            "3.bias is 10, expected 8; 5.weight is missing; and 1 more",
        ),
        (["model.hidden=[]"], "the model has no 3.weight"),
        (["data.name=mnist-5k"], "1.weight is 8x64, expected 8x784"),
        (["data.nam=digits"], "unknown option nam"),
        (["model.name=vgg"], "vgg"),
    ],
)
def test_a_model_of_another_network(settings, said, folder, capsys):
    settings = [word for setting in settings for word in ("--set", setting)]
    refused(["evaluate", folder / "final.pt", folder / "run.toml", *settings], said, capsys)


def test_what_a_run_has_not_saved(folder, tmp_path, capsys):
    refused(["evaluate", folder / "final.pt"], "is not a run file: name the configuration", capsys)
    run = load_run(folder / "run.h5")
    del run.attributes["model_file"]
    save_run(tmp_path / "run.h5", run)
    refused(["evaluate", tmp_path / "run.h5"], "has saved its best model, not the final one", capsys)
    del run.attributes["best_model_file"]
    save_run(tmp_path / "run.h5", run)
    refused(["evaluate", tmp_path / "run.h5"], "has saved no model: train and simulate need --save MODEL.pt", capsys)
    with pytest.raises(UsageError, match="--save-best MODEL.pt"):
        grsgd.load_model(tmp_path / "run.h5", best=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--timing-only"], "--save with --timing-only"),
        (["--save", "missing/model.pt"], "missing/model.pt: there is no directory"),
        (["--save-best", "."], ".: is a directory"),
        (["--save", "one.pt", "--save-best", "./one.pt"], "--save-best one.pt: is the file of --save, too"),
        (["--out", "one.pt", "--save", "one.pt"], "--save one.pt: is the file of --out, too"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_training(arguments, said, tmp_path, capsys, monkeypatch):
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    refused(["simulate", "run.toml", "--save", "model.pt", *arguments], said, capsys)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["run.toml"]


def test_a_model_that_cannot_be_written_is_saved_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    state = torch.nn.Linear(2, 2).state_dict()
    place, _, problem = save_state(tmp_path / "gone" / "model.pt", state)
    assert "there is no directory" in problem and f"the model was saved as {place} instead" in problem
    assert torch.load(place, weights_only=True).keys() == state.keys()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
    place, _, problem = save_state(tmp_path / "gone" / "model.pt", state)
    assert place is None and "nor could the model be saved in" in problem


def test_a_run_that_diverged_replaces_no_model(folder, tmp_path, capsys):
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "final.pt").write_text("of another run")
    assert simulate(tmp_path, settings=["optimizer.lr=1e30"]) == 1
    assert (tmp_path / "final.pt").read_text() == "of another run"
    attributes = load_run(tmp_path / "run.h5").attributes
    assert attributes["model_file"] == str(tmp_path / "final.interrupted.pt")
    said = f"warning: {tmp_path / 'final.interrupted.pt'}: is the model of a run that diverged\n"
    assert said in capsys.readouterr().err
    assert evaluate(tmp_path / "run.h5").value == attributes["final_test_accuracy"]


def test_a_file_has_its_own_tensors_and_no_more(tmp_path):
    """In the replica a tensor is a part of a long array, which torch would save as a whole with each of them."""
    model = torch.nn.Sequential(*(torch.nn.Linear(50, 50) for _ in range(4)))
    model[0].bias.requires_grad_(False)
    replica = Replica(model)
    place, *_ = save_state(tmp_path / "model.pt", state_of(model))
    assert torch.load(place, weights_only=True).keys() == model.state_dict().keys()
    assert place.stat().st_size < 1.2 * replica.nbytes


def test_a_run_of_an_algorithm_whose_file_has_gone(folder, tmp_path):
    run = load_run(folder / "run.h5")
    run.attributes["config"] = run.attributes["config"].replace('name = "dpsgd"', 'name = "/nowhere/mine.py:Mine"')
    save_run(tmp_path / "run.h5", run)
    assert evaluate(tmp_path / "run.h5").value == run.attributes["final_test_accuracy"]
