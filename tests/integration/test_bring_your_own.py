"""Models, data, optimizers and topologies of the user's own: the documented example, and what can be wrong."""

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import grsgd
from grsgd import data, outside
from grsgd.cli import main
from grsgd.config import load
from grsgd.data.map_style import MapStyleSplit
from grsgd.errors import DataError
from grsgd.models import zoo
from tests.support.said import complaint

WHAT = ("model", "data", "task", "schedule", "optimizer")
DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "bring-your-own.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the document's file and configuration."""
    text = DOCUMENT.read_text()
    (tmp_path / "mine.py").write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    (tmp_path / "run.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simulate(*settings, out="run.h5") -> int:
    return main(["simulate", "run.toml", "--ranks", "4", "--out", out, *(w for s in settings for w in ("--set", s))])


def test_the_example_is_trained_reported_and_evaluated(folder, capsys):
    assert simulate() == 0
    run = grsgd.load_run("run.h5")
    assert run.attributes["final_test_error"] < 0.1 and run.attributes["input_shape"] == [6]
    assert run.attributes["metric"] == "error" and not run.attributes["metric_higher_is_better"]
    assert run.units["curve/test_error_min"] == ("1", "test error, the least of a single replica, a fraction")
    assert run.attributes["classes"] == 3 and run.attributes["train_samples"] == 900
    text = (folder / "mine.py").read_text()
    assert [run.attributes[f"{what}_code_source"] for what in WHAT] == [text] * len(WHAT)
    assert main(["report", "run.h5"]) == 0
    assert "mine.py:clusters/mine.py:Net" in capsys.readouterr().out
    assert simulate("train.steps=2", "data.alpha=0.5", out="other.h5") == 0


def test_another_file_is_another_experiment(folder, capsys):
    simulate("train.steps=2", out="first.h5")
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + "# changed\n")
    outside._file.cache_clear()  # as in another process
    simulate("train.steps=2", "seed=1", out="second.h5")
    capsys.readouterr()
    assert main(["report", "--group", "first.h5", "second.h5"]) == 0
    assert capsys.readouterr().out.count("| dpsgd") == 2


def test_it_lies_beside_the_configuration(folder, monkeypatch):
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    config = load("../run.toml")
    assert (config.model.name, config.data.name) == ("../mine.py:Net", "../mine.py:clusters")
    assert config.optimizer.name == "../mine.py:Sign" and config.algorithm_options.topology == "../mine.py:star"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.name=mine.py:Nope", "model.name = 'mine.py:Nope': 'mine.py:Nope': mine.py has no name 'Nope'; there "),
        ("model.nope=3", "model.name = 'mine.py:Net': model mine.py:Net: unknown option nope; allowed: width"),
        ("model.name=mine.py:star", "model.name = 'mine.py:star': "),
        ("model.name=nope", "resnet50, gpt, FILE.py:NAME and PACKAGE.MODULE:NAME"),
        (
            "data.name=nope.py:x",
            "data.name = 'nope.py:x': nope.py: No such file or directory, neither in the working directory nor in",
        ),
        ("data.name=nope.x:y", "data.name = 'nope.x:y': there is no module nope"),
        ("data.name=mine.py:Net", "data.name = 'mine.py:Net': not a function that returns (train, test)"),
        ("data.nope=3", "mine.py:clusters: unknown option nope; allowed: samples, spread"),
        ("data.seed=3", "data.seed: unknown option; data are generated with the seed of the run"),
        ("data.directory=x", "mine.py:clusters: unknown option directory; allowed: samples, spread"),
        ("data.spread=wide", "data.spread = 'wide': expected a number"),
        ("data.augment=true", "augment is on: a data set of your own changes samples by its own transforms only"),
        ("task.name=mine.py:star", "task.name = 'mine.py:star': is no subclass of grsgd.tasks.Task"),
        ("task.name=nope", "task.name = unknown task 'nope'; there are classification, language_modelling, regression"),
        ("task.nope=1", "task.nope: unknown key; allowed: name"),
        ("train.target_accuracy=0.9", "train.target_accuracy: the metric of the task is error: use train.target"),
        ("schedule.name=mine.py:nope", "'mine.py:nope': mine.py has no name 'nope'"),
        ("schedule.name=mine.py:star", "schedule.name = 'mine.py:star': TypeError: star() takes 1 positional argument"),
        ("train={seconds=1.0}", "schedule.name = 'mine.py:linear': TypeError: unsupported operand"),
        ("schedule.name=nope", "schedule.name: 'nope' is unknown; allowed: constant, step, cosine, FILE.py:NAME"),
        ("optimizer.name=mine.py:star", "optimizer.name = 'mine.py:star': not a torch.optim.Optimizer"),
        ("optimizer.nope=1", "optimizer.nope: unknown key; allowed: lr, scale, decay_norms, clip"),
        ("algorithm.topology=mine.py:nope", "algorithm dpsgd: 'mine.py:nope': mine.py has no topology 'nope'; there "),
    ],
)
def test_what_is_wrong_is_one_line(setting, words, folder, capsys):
    assert simulate(setting) == 2
    error = complaint(capsys)
    assert words in error and error.count("\n") == 1, error


def test_a_script_that_ends_does_not_end_the_run_as_a_success(folder, capsys):
    (folder / "script.py").write_text("import sys\nsys.exit(0)\n")
    assert simulate("model.name=script.py:Net") == 2
    assert "'script.py:Net': script.py, line 2: SystemExit: 0\n" in complaint(capsys)


def test_plug_ins_are_found_by_name_and_listed(folder, monkeypatch, capsys):
    (folder / "my_networks.py").write_text((folder / "mine.py").read_text())
    points = [
        EntryPoint("wide", "my_networks:Net", "grsgd.models"),
        EntryPoint("three", "my_networks:clusters", "grsgd.data"),
        EntryPoint("mine", "my_networks:Mine", "grsgd.algorithms"),
    ]
    monkeypatch.setattr(outside, "entry_points", lambda group: [point for point in points if point.group == group])
    outside.plugins.cache_clear()
    try:
        assert sum(p.numel() for p in zoo.build("wide", (6,), 3, width=2).parameters()) == 6 * 2 + 2 + 2 * 3 + 3
        assert len(data.load("three", folder, samples=30).train) == 30
        for command, said in (("models", "\nwide "), ("algorithms", "\nplug-in     mine "), ("data", "| three ")):
            assert main([command, *["list"] * (command == "data")]) == 0
            assert said in capsys.readouterr().out
    finally:
        outside.plugins.cache_clear()


def test_a_model_is_given_what_it_asks_for():
    def make(classes, shape, extra=1):
        return nn.Linear(shape[0] * extra, classes)

    network = zoo.RegisteredModel(make, 1, "here", ((1, 28, 28), 10))
    assert network.options() == {"extra": 1} and network.build((6,), 3, {"extra": 2}).weight.shape == (3, 12)


class Counting(TensorDataset):
    """Counts how often a sample is read."""

    read = 0

    def __getitem__(self, index):
        self.read += 1
        return super().__getitem__(index)


def test_labels_are_known_or_read_once():
    samples = Counting(torch.zeros(5, 2), torch.tensor([0, 2, 1, 1, 0]))
    split = MapStyleSplit(samples)
    assert split.labels.tolist() == split.labels.tolist() == [0, 2, 1, 1, 0] and samples.read == 5
    samples.targets = [1, 1, 1, 1, 2]
    assert MapStyleSplit(samples).labels.tolist() == [1, 1, 1, 1, 2] and samples.read == 5


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_those_that_are_asked_for(workers):
    split = MapStyleSplit(TensorDataset(torch.arange(10.0)[:, None], torch.arange(10)))
    batches = split.batches(iter([np.array([3, 1]), np.array([9])]), workers=workers)
    assert [(x.flatten().tolist(), y.tolist()) for x, y in batches] == [([3.0, 1.0], [3, 1]), ([9.0], [9])]
    endless = split.batches((np.array([number % 10]) for number in range(10**9)), workers=workers)
    assert next(endless)[1].tolist() == [0]
    endless.close()


def test_samples_must_be_tensors():
    with pytest.raises(DataError, match="a sample is int, expected a tensor: give the data set a transform"):
        data.map_style.dataset_of("mine", ([(1, 0)], [(1, 0)]))


PAIRS = re.search(r"```python\n(import numpy as np\n\nfrom grsgd.alg.*?)```", DOCUMENT.read_text(), re.DOTALL)[1]


@pytest.mark.parametrize(
    "file, before, after, error",
    [
        ("mine.py", "self.layers(x)", "self.layers(x[:, 1:])", "^grsgd: error: mine.py, line 17: RuntimeError"),
        ("mine.py", "loss(outputs", "loss(outputs[1:]", "^grsgd: error: mine.py, line 38: RuntimeError"),
        ("mine.py", "centres = 2", "1 / 0; centres = 2", "mine.py:clusters: mine.py, line 23: ZeroDivisionError: "),
        ("pairs.py", "self.x.like()", "np.empty_like(self.x.array)", "error: pairs.py, line 18: TypeError: with"),
        ("pairs.py", "yield self", "return self", "step.. returned tuple: yield the objects that it waits for"),
        ("pairs.py", ", self.comm.Isend(self.x.array, j)", "", "'pairs.py:Pairs': .*rank 0 waits for receive"),
        ("pairs.py", "permutation(self", "permutations(self", "^grsgd: error: pairs.py, line 25: AttributeError"),
    ],
)
def test_check_finds_faults_in_files(folder, capsys, file, before, after, error):
    """In one line, with the file and its line."""
    (folder / "pairs.py").write_text(PAIRS)
    text = (folder / file).read_text()
    assert before in text
    (folder / file).write_text(text.replace(before, after))
    change = ["--set", "algorithm.name=pairs.py:Pairs"] if file == "pairs.py" else []
    assert main(["simulate", "run.toml", "--ranks", "4", "--check", *change]) == 2
    said = complaint(capsys)
    assert re.search(error, said) and said.count("\n") == 1, said


def test_the_documented_algorithm_is_checked_and_trained(folder, capsys):
    (folder / "pairs.py").write_text(PAIRS)
    change = ["--set", "algorithm.name=pairs.py:Pairs", "--set", "algorithm.period=2"]
    assert main(["simulate", "run.toml", "--ranks", "5", "--check", *change]) == 0
    assert main(["simulate", "run.toml", "--ranks", "5", "--out", "run.h5", *change]) == 0
    assert grsgd.load_run("run.h5").attributes["final_test_error"] < 0.1


def test_a_buffer_that_is_a_row_of_a_table_is_refused(folder, capsys):
    """It could not be averaged with the others, nor kept in snapshots, and stay a row."""
    before, row = "super().__init__()", "self.register_buffer('row', self.table[0])"
    text = (folder / "mine.py").read_text()
    (folder / "mine.py").write_text(text.replace(before, f"{before}; self.table = torch.zeros(2, 3); {row}", 1))
    assert simulate("train.steps=2") == 2
    assert "error: the model's buffer 'row' shares its memory with another object" in capsys.readouterr().err


def test_data_of_the_wrong_kind_are_one_line(folder, capsys):
    assert main(["simulate", "run.toml", "--ranks", "2", "--out", "run.h5", "--set", "data.name=mine.py:Net"]) == 2
    assert "'mine.py:Net': not a function" in (said := complaint(capsys)) and said.count("\n") == 1
