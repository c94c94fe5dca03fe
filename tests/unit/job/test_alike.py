"""Inputs that each rank reads for itself: inputs that differ between ranks are refused in one line."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from grsgd.config import parse
from grsgd.data import base, load
from grsgd.data.digest import digest_of, digest_of_samples
from grsgd.data.map_style import dataset_of
from grsgd.data.memory import MemorySplit
from grsgd.data.pixels import GREY
from grsgd.data.text import dataset_of_text
from grsgd.errors import SetupError
from grsgd.job import alike
from tests.support.threads import on_threads

CONFIG = {
    "algorithm": {"name": "dpsgd"},
    "model": {"name": "mlp"},
    "data": {"name": "synthetic"},
    "train": {"epochs": 1},
}


def refused(monkeypatch, check, of_ranks: list) -> str | None:
    """Return the line with which all ranks refuse ``of_ranks``, one for each, or None."""

    def work(mpi):
        try:
            check(mpi, parse(CONFIG), of_ranks[mpi.rank])
        except SetupError as error:
            return str(error)

    lines = set(on_threads(monkeypatch, len(of_ranks), work))
    assert len(lines) == 1
    return lines.pop()


def clusters(n=12, shift=0.0, labels=lambda y: y):
    y = torch.arange(n) % 3
    part = TensorDataset(torch.linspace(0, 1, 6 * n).reshape(n, 6) + shift, labels(y))
    return dataset_of("mine.py:clusters", (part, part))


def text(content: bytes):
    return dataset_of_text("text", content, 4, "")


def images(images):
    split = MemorySplit(images, np.arange(len(images)) % 2, GREY)
    return base.Dataset("mine", split, split, (1, 2, 2), 2, "")


BLACK = np.zeros((8, 1, 2, 2), np.uint8)
GREYER = np.where(np.arange(8)[:, None, None, None] == 5, 1, BLACK)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (clusters(12), clusters(18), "the number of training samples: 12 on ranks 0, 2; 18 on rank 1: data.name = "),
        (clusters(), clusters(labels=lambda y: (y + 1) % 3), "the digest of the training labels: "),
        (clusters(), clusters(labels=lambda y: y + 1), "the digest of the training labels: "),
        (clusters(), clusters(shift=0.1), "the digest of the training samples: "),
        (clusters(labels=torch.Tensor.float), clusters(labels=lambda y: y + 0.5), "the digest of the training samples"),
        (text(b"abcd" * 50), text(b"abcd" * 46 + b"abce" * 4), "the digest of the test samples: "),
        (text(b"abcd" * 50), text(b"abcd" * 60), "the number of training samples: 44 on ranks 0, 2; 53 on rank 1"),
        (images(BLACK), images(GREYER), "the digest of the training samples: "),
    ],
)
def test_data_that_differ_between_ranks_are_refused(monkeypatch, one, other, words):
    assert words in refused(monkeypatch, alike.check_data, [one, other, one])
    assert refused(monkeypatch, alike.check_data, [one, one]) is None


class Random(Dataset):
    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return index + self.draw()


@pytest.mark.parametrize("draw", [lambda: torch.rand(2), np.random.rand])
def test_random_transforms_are_no_difference(draw):
    torch.rand(1), np.random.rand()
    state, after = torch.get_rng_state(), np.random.get_state()[1].copy()
    assert digest_of_samples(Random(draw)) == digest_of_samples(Random(draw)) is not None
    assert torch.equal(state, torch.get_rng_state()) and (after == np.random.get_state()[1]).all()
    assert digest_of_samples(Random(np.random.default_rng().random)) is None  # with a generator of its own


def test_a_digest_tells_values_shapes_and_order():
    values = [np.zeros(4), np.zeros((2, 2)), np.zeros(4, np.float32), {"x": 1}, {"x": 2}, (1, 2), (2, 1), "x", None]
    assert len({digest_of(value) for value in values}) == len(values)
    assert digest_of(torch.ones(2)) == digest_of(np.ones(2, np.float32)) == digest_of([np.ones(2, np.float32)])
    assert digest_of(torch.zeros((), dtype=torch.bfloat16)) == digest_of(np.zeros((), np.float32))


def test_models_that_differ_between_ranks_are_refused(monkeypatch):
    one, other = torch.nn.Linear(6, 3), torch.nn.Linear(6, 5)
    line = refused(monkeypatch, alike.check_model, [one, other])
    assert line.startswith("the ranks differ: the number of parameters: 21 on rank 0; 35 on rank 1: model.name = 'mlp'")
    assert "names and shapes" in refused(monkeypatch, alike.check_model, [one, torch.nn.Linear(2, 7)])


def test_configurations_that_differ_between_ranks_are_refused(monkeypatch):
    def check(mpi, _, config):
        alike.check_configuration(mpi, parse(CONFIG | config))

    line = refused(monkeypatch, check, [{"optimizer": {"lr": lr}} for lr in (0.1, 0.2, 0.1)])
    assert line.startswith("the ranks differ: optimizer.lr: 0.1 on ranks 0, 2; 0.2 on rank 1: all ranks must read")
    decayed = {"optimizer": {"name": "sgd", "weight_decay": 0.1}}
    line = refused(monkeypatch, check, [decayed, {}])
    assert line.startswith("the ranks differ: optimizer.weight_decay: 0.1 on rank 0; not there on rank 1: ")
    folders = [{"data": {"name": "synthetic", "dir": folder}} for folder in ("a", "b")]
    assert refused(monkeypatch, check, folders) is None
    assert "algorithm.topology: ring on rank 0; full on rank 1" in refused(
        monkeypatch, check, [{"algorithm": {"name": "dpsgd", "topology": name}} for name in ("ring", "full")]
    )


def test_stragglers_of_ranks_are_told_by_their_numbers():
    """Keys of the tables are numbers, not texts."""
    facts = alike.facts_of_configuration(parse(CONFIG | {"stragglers": {"slowdown": {"1": 4.0}}}))
    assert facts["stragglers.slowdown.1"] == "4.0"


def test_images_in_folders_differ_by_name(tmp_path):
    from PIL import Image

    def digest(*names):
        folder = tmp_path / "_".join(names)
        for part in ("train", "val"):
            (folder / part / "a").mkdir(parents=True)
            for name in names:
                Image.new("RGB", (3, 3)).save(folder / part / "a" / name)
        return load("imagefolder", folder, size=4).train.digest()

    assert digest("1.png", "2.png") != digest("1.png", "3.png")
