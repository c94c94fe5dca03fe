"""Each rank's part of the data, in loops that grsgd did not write: even parts, and what is refused."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from grsgd.errors import SetupError
from grsgd.job import launch
from grsgd.own_loop import ranks
from grsgd.own_loop.distribute import distribute
from grsgd.own_loop.ranks import shard
from grsgd.own_loop.recording import recording
from tests.support.threads import on_threads


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(launch, "abort_on_error", lambda mpi: None)
    ranks._given.clear()


def test_even_shards_have_the_same_length(monkeypatch):
    for n, samples in ((2, 127), (3, 11), (4, 4)):
        parts = on_threads(monkeypatch, n, lambda mpi, s=samples: shard(range(s), mpi, even=True).indices)
        assert {len(part) for part in parts} == {samples // n}
        assert len(set(sum(parts, []))) == samples // n * n
    plain = on_threads(monkeypatch, 2, lambda mpi: shard(range(10), mpi).indices)
    assert on_threads(monkeypatch, 2, lambda mpi: shard(range(10), mpi, even=True).indices) == plain



class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(20))

    def __len__(self):
        return 20


class Halves(list):
    __len__ = lambda self: 2.5  # noqa: E731


PAIRS = torch.utils.data.TensorDataset(torch.zeros(20, 2), torch.arange(20))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Stream(), "Stream is an IterableDataset, whose samples have no numbers"),
        (torch.utils.data.DataLoader(PAIRS), "a DataLoader: give shard[(][)] the data set, and the DataLoader what"),
        (PAIRS.tensors, "a tuple of 2 arrays of one length: give it torch.utils.data.TensorDataset of them"),
        ([np.zeros((9, 2)), np.zeros(9)], "a list of 2 arrays of one length"),
        ({"train": PAIRS}, "dict is no map-style data set: give it one with len[(][)] and"),
        (set(range(9)), "set is no map-style data set"),
        ((i for i in range(9)), "generator is no map-style data set"),
        (Halves(), "len[(][)] of Halves: 'float' object cannot be interpreted as an integer"),
        (range(2), "2 samples for 3 ranks: give it more samples, or start fewer ranks"),
    ],
)
def test_what_cannot_be_cut_into_shards(monkeypatch, data, words):
    def work(mpi):
        with pytest.raises(SetupError, match=rf"^shard[(][)]: {words}"):
            shard(data, mpi)

    on_threads(monkeypatch, 3, work)


@pytest.mark.parametrize("comm", [4, "ring", torch.nn.Linear(2, 1)])
def test_what_is_no_communicator(monkeypatch, comm):
    monkeypatch.setattr(ranks, "world", lambda: SimpleNamespace(rank=0, size=1))
    with pytest.raises(SetupError, match=r"^shard[(][)]: comm = .*: must be an mpi4py communicator"):
        shard(range(9), comm)


@pytest.mark.parametrize("data", [PAIRS, list(range(6)), torch.zeros(6, 2), [np.zeros(2)] * 3])
def test_what_can_be_cut_into_shards(monkeypatch, data):
    parts = on_threads(monkeypatch, 3, lambda mpi: shard(data, mpi).indices)
    assert sorted(sum(parts, [])) == list(range(len(data)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda rank: (range(10 + rank), 0), "the number of samples given to shard() in call 2: 10 on rank 0; 11 "),
        (lambda rank: (torch.full((9,), float(rank)), 0), "the digest of the samples given to shard() in call 2: "),
        (lambda rank: (range(10), rank), "the seed given to shard() in call 2: 0 on rank 0; 1 on rank 1: all ranks"),
    ],
)
def test_ranks_that_give_shard_other_data_are_refused(monkeypatch, tmp_path, given, words):
    def before(mpi):
        data, seed = given(mpi.rank)
        shard(range(5), mpi), shard(data, mpi, seed)
        model = nn.Linear(2, 1)
        with pytest.raises(SetupError, match=re.escape(words)):
            distribute(model, torch.optim.SGD(model.parameters(), 0.1), "dpsgd", mpi)

    def after(mpi):
        model = nn.Linear(2, 1)
        optimizer = distribute(model, torch.optim.SGD(model.parameters(), 0.1), "dpsgd", mpi)
        data, seed = given(mpi.rank)
        shard(range(5), mpi), shard(data, mpi, seed)
        with pytest.raises(SetupError, match=re.escape(words)), recording(tmp_path / "run.h5", optimizer):
            pass
        optimizer.finish()

    on_threads(monkeypatch, 2, before)
    on_threads(monkeypatch, 2, after)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda rank: {"seed": rank}, "the seed given to distribute(): 0 on rank 0; 1 on rank 1: all ranks"),
        (lambda rank: {"H": 4 + rank}, "the option H of local_sgd: 4 on rank 0; 5 on rank 1"),
        (lambda rank: {"model": [nn.Linear(2, 4), nn.Linear(5, 2)][rank]}, "the digest of the names and shapes of"),
    ],
)
def test_ranks_that_give_distribute_other_arguments_are_refused(monkeypatch, given, words):
    def work(mpi):
        options = {"model": nn.Linear(2, 1)} | given(mpi.rank)
        model = options.pop("model")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.raises(SetupError, match=re.escape(words)):
            distribute(model, optimizer, "local_sgd", mpi, **options)

    on_threads(monkeypatch, 2, work)


def test_shards_that_differ_and_were_made_late_are_warned_of(monkeypatch):
    def work(mpi):
        model = nn.Linear(2, 1)
        optimizer = distribute(model, torch.optim.SGD(model.parameters(), 0.1), "dpsgd", mpi)
        shard(range(10 + mpi.rank), mpi)
        optimizer.finish()

    with pytest.warns(UserWarning, match="trained on other data than meant: the ranks differ: the number of samples"):
        on_threads(monkeypatch, 2, work)
