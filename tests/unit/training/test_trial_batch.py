"""A batch, or a step, of models, data and tasks of one's own is tried first: what cannot be trained is one line."""

import numpy as np
import pytest

from grsgd.cli import main
from grsgd.config import parse
from grsgd.errors import ConfigError
from grsgd.training.trial_batch import check_sums

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs=3):
        super().__init__()
        self.a = nn.Linear(6, outputs)
    def forward(self, x):
        return self.a(x)

class Tuple(Net):
    def forward(self, x):
        return self.a(x), None

class Nothing(Net):
    def forward(self, x):
        self.a(x)

class Lazy(Net):
    def __init__(self):
        super().__init__()
        self.a = nn.LazyLinear(3)

class NoSuper(nn.Module):
    def __init__(self):
        self.a = nn.Linear(6, 3)

class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

class Statistics(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6, dtype=torch.float64))
    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.mean(0), 0.5)
        return self.a(x)
"""
DATA = """
import torch
from torch.utils.data import Dataset, TensorDataset

def clusters(add=0, kind="int64"):
    def part(n):
        y = (torch.arange(n) % 3 + add).to(getattr(torch, kind))
        return TensorDataset(torch.randn(n, 6, generator=torch.Generator().manual_seed(n)), y)
    return part(30), part(12)

class Odd(Dataset):
    def __init__(self, how):
        self.how = how
    def __len__(self):
        return 24
    def __getitem__(self, i):
        x, y = torch.zeros(6), i % 3
        if self.how == "raises" and i == 20:
            raise OSError("cannot read it")
        if self.how == "stops" and i == 20:
            raise StopIteration
        return {"ragged": (x[i == 20:], y), "dict": {"x": x, "y": y}, "three": (x, y, i), "text": (x, "abc"[y])}.get(
            self.how, (x, y)
        )

def odd(how="ragged"):
    return Odd(how), Odd(how)

def arrays():
    return tuple(part.tensors for part in clusters())
"""
TASKS = """
import torch
from torch import nn
from grsgd import Metric, Task

class Sum(Task):
    def total_loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="sum")

class Mean(Task):
    def total_loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)

class Each(Task):
    def total_loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

class Number(Sum):
    def total_loss(self, outputs, targets):
        return float(super().total_loss(outputs, targets))

class Detached(Sum):
    def total_loss(self, outputs, targets):
        return super().total_loss(outputs, targets).detach()

class Share(Sum):
    def total_score(self, outputs, targets):
        return (outputs.argmax(1) == targets).float().mean() + 1

class Several(Sum):
    def total_score(self, outputs, targets):
        return torch.ones(3)

class Words(Sum):
    def total_score(self, outputs, targets):
        return {"right": 1}

class Squares(Sum):
    def total_score(self, outputs, targets):
        return torch.ones(2, 2)
"""
RUN = """
[algorithm]
name = "dpsgd"
[model]
name = "mine.py:Net"
[data]
name = "mine.py:clusters"
batch_size = 4
[train]
steps = 2
snapshots = 2
"""


@pytest.fixture
def refusal(tmp_path, monkeypatch, capsys):
    """Returns what `grsgd simulate` of a configuration with these settings prints if it is refused, with ``--check``
    and without."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODELS + DATA + TASKS)
    (tmp_path / "run.toml").write_text(RUN)

    def run(*settings, check=True):
        words = [word for setting in settings for word in ("--set", setting)]
        code = main(["simulate", "run.toml", "--ranks", "2", "--out", "x.h5", *words, *["--check"] * check])
        *said, error = capsys.readouterr().err.splitlines() or [""]
        assert not said or (len(said) == 1 and said[0].startswith("grsgd: imports "))
        assert code == 0 or (code == 2 and error.startswith("grsgd: error: "))
        return error if code else None

    return run


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.name=mine.py:Tuple", "model.name = 'mine.py:Tuple': returns tuple, expected a tensor"),
        ("model.name=mine.py:Nothing", "model.name = 'mine.py:Nothing': returns NoneType, expected a tensor"),
        ("model.name=mine.py:Lazy", "a.weight has no shape yet (a lazy module)"),
        ("model.name=mine.py:NoSuper", "model.name = 'mine.py:NoSuper': mine.py, line 27: AttributeError: "),
        ("model.name=mine.py:Frozen", "mine.py:Frozen: no parameter requires a gradient"),
        ("model.outputs=2", "the targets of data.name = 'mine.py:clusters' go up to 2, counted from 0: expected 3 "),
        ("data.add=1", "the targets of data.name = 'mine.py:clusters' go up to 3, counted from 0: expected 4 numbers"),
        ("data.add=-1", "data.name = 'mine.py:clusters': a label is -1: labels of classification count from 0"),
        ("data.name=mine.py:arrays", "sample 0 is a Tensor, expected a pair (tensor, target), as of a TensorDataset"),
        ('data={name="mine.py:odd", how="dict"}', "sample 0 is a dict of 2, expected a pair"),
        ('data={name="mine.py:odd", how="three"}', "sample 0 is a tuple of 3, expected a pair"),
        ('data={name="mine.py:odd", how="text"}', "the target of sample 0 is 'a', expected numbers"),
        ('data={name="mine.py:odd", how="raises"}', "mine.py:odd: cannot read it"),
        ('data={name="mine.py:odd", how="stops"}', "sample 20: the data set raises StopIteration"),
        ("task.name=mine.py:Mean", "it must double. Return a sum over the samples (reduction=\"sum\"), not a mean"),
        ("task.name=mine.py:Each", "total_loss() returns a tensor of shape [8], expected a tensor of one number"),
        ("task.name=mine.py:Number", "total_loss() returns float, expected a tensor of one number with a gradient"),
        ("task.name=mine.py:Detached", "total_loss() returns a tensor without a gradient, expected"),
        ("task.name=mine.py:Share", "task.name = 'mine.py:Share': total_score() of a batch is 1."),
        ("task.name=mine.py:Several", "total_score() returns 3 sums, but value() takes the mean of one: write value("),
        ("task.name=mine.py:Words", "total_score() returns dict, expected a sum over the batch, or a tensor of sums"),
        ("task.name=mine.py:Squares", "total_score() returns an array of shape [2, 2], expected a sum over the batch"),
    ],
)
def test_what_cannot_be_trained_is_one_line(refusal, setting, words):
    assert words in refusal(setting)


@pytest.mark.parametrize("setting", ["model.name=mine.py:Tuple", "data.add=1", "task.name=mine.py:Mean"])
def test_a_run_refuses_it_too(refusal, setting):
    assert refusal(setting, check=False) == refusal(setting)


def test_check_takes_a_step_and_reads_samples(refusal):
    assert "mine.py, line 40: RuntimeError: expected dtype" in refusal("model.name=mine.py:Statistics")
    error = refusal("data.name=mine.py:odd", "data.how=ragged")
    assert "data.name = 'mine.py:odd': a batch of 4 training samples: RuntimeError: stack expects each tensor" in error


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8", "int16"])
def test_whole_numbers_of_any_size_are_classes(refusal, kind):
    assert refusal(f"data.kind={kind}", check=False) is None


def test_sums_and_random_losses_are_taken():
    config = parse(
        {
            "algorithm": {"name": "dpsgd"},
            "model": {"name": "mlp"},
            "data": {"name": "synthetic"},
            "train": {"steps": 1},
        }
    )
    once = np.array([10.0, 3.0, 8.0])
    check_sums(config, once, once, 2 * once)
    check_sums(config, once, np.array([12.0, 1.0, 8.0]), np.array([19.0, 9.0, 16.0]))  # random
    check_sums(config, once * np.nan, once * np.nan, once)
    for twice, what in (([10, 3, 8], "total_loss"), ([20, 3, 16], "total_score"), ([20, 6, 8], "count")):
        with pytest.raises(ConfigError, match=rf"{what}[(][)] of a batch is .* it must double"):
            check_sums(config, once, once, np.array(twice, float))
    with pytest.raises(ConfigError, match="total_loss"):
        check_sums(config, once, np.array([12.0, 1.0, 8.0]), np.array([11.0, 9.0, 16.0]))
