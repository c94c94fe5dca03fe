"""Batches of each rank by `loader`, on ranks that are threads."""

import multiprocessing
import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from grsgd.errors import SetupError
from grsgd.job import launch
from grsgd.own_loop import ranks
from grsgd.own_loop.distribute import distribute
from grsgd.own_loop.loader import loader
from grsgd.own_loop.ranks import shard
from tests.support.threads import on_threads

DATA = TensorDataset(torch.arange(23))


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(launch, "abort_on_error", lambda mpi: None)
    ranks._given.clear()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(23))


class Random(torch.utils.data.Dataset):
    """Each sample is its number and a random number."""

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return number, torch.rand(()).item()


def batches(monkeypatch, n, data=DATA, epochs=2, **options):
    """Per rank and epoch, the list of batches as lists of numbers."""

    def work(mpi):
        made = loader(data, 4, mpi, **options)
        return [[(batch[0] if data is DATA else batch).tolist() for batch in made] for _ in range(epochs)]

    return on_threads(monkeypatch, n, work)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_batches_are_those_of_the_distributed_sampler(n, drop_last, monkeypatch):
    for rank, epochs in enumerate(batches(monkeypatch, n, seed=5, drop_last=drop_last)):
        sampler = DistributedSampler(DATA, n, rank, seed=5, drop_last=drop_last)
        expected = DataLoader(DATA, batch_size=4, sampler=sampler, drop_last=drop_last)
        for epoch, found in enumerate(epochs):
            sampler.set_epoch(epoch)
            assert found == [batch.tolist() for (batch,) in expected]


def test_an_epoch_has_every_sample_in_another_order(monkeypatch):
    ranks = batches(monkeypatch, 3)
    for epoch in range(2):
        assert {sample for rank in ranks for batch in rank[epoch] for sample in batch} == set(range(23))
    assert ranks[0][0] != ranks[0][1]
    assert batches(monkeypatch, 1, shuffle=False)[0][0][0] == [0, 1, 2, 3]


def test_fixed_parts_are_those_of_shard(monkeypatch):
    parts = on_threads(monkeypatch, 2, lambda mpi: shard(DATA, mpi, 3, even=True).indices)
    for part, (first, second) in zip(parts, batches(monkeypatch, 2, seed=3, fixed_parts=True), strict=True):
        assert sorted(sum(first, [])) == sorted(sum(second, [])) == sorted(part) and first != second
    assert batches(monkeypatch, 2, fixed_parts=True) == batches(monkeypatch, 2, fixed_parts=True)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_stream_is_dealt_out(n, monkeypatch):
    found = batches(monkeypatch, n, Stream())
    for rank, (first, second) in enumerate(found):
        assert sum(first, []) == list(range(rank, 23, n)) and first == second


def test_a_script_goes_on_with_a_later_epoch(monkeypatch):
    def work(mpi):
        made, later = (loader(DATA, 4, mpi, fixed_parts=True) for _ in range(2))
        epochs = [[batch.tolist() for (batch,) in made] for _ in range(3)]
        later.epoch = 2
        return epochs[2], [batch.tolist() for (batch,) in later]

    for expected, found in on_threads(monkeypatch, 2, work):
        assert expected == found


@pytest.mark.parametrize("data", [DATA, Stream()], ids=["numbered", "stream"])
def test_worker_processes_read_the_same_samples(data, monkeypatch):
    (alone,), (helped,) = batches(monkeypatch, 1, data, 1), batches(monkeypatch, 1, data, 1, num_workers=2)
    assert sorted(sum(helped[0], [])) == sorted(sum(alone[0], []))
    assert data is not DATA or helped == alone


def test_random_numbers_of_workers_follow_the_seed_and_the_epoch(monkeypatch):
    def work(mpi):
        return [sum((x.tolist() for _, x in made), []) for made in [loader(Random(), 4, mpi, num_workers=2)] * 2]

    first, second = on_threads(monkeypatch, 1, work)[0]
    assert len({*first, *second}) == 16
    assert on_threads(monkeypatch, 1, work)[0] == [first, second]


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (range(1), {}, "loader(): 1 samples for 2 ranks"),
        ({}, {}, "loader(): dict is no map-style data set"),
        (DATA, {"sampler": None}, "loader(): sampler: loader() sets it; make a DataLoader yourself"),
        (Stream(), {"shuffle": True}, "loader(): an IterableDataset has no random order and no fixed parts"),
        (Stream(), {"fixed_parts": True}, "loader(): an IterableDataset has no random order and no fixed parts"),
    ],
)
def test_what_is_refused(data, options, words, monkeypatch):
    def work(mpi):
        with pytest.raises(SetupError, match=re.escape(words)):
            loader(data, 4, mpi, **options)

    on_threads(monkeypatch, 2, work)


def test_ranks_that_give_loader_other_data_are_refused(monkeypatch):
    def work(mpi):
        loader(range(20 + mpi.rank), 4, mpi)
        model = nn.Linear(2, 1)
        with pytest.raises(SetupError, match="the number of samples given to loader.. in call 1: 20 on rank 0; 21 on"):
            distribute(model, torch.optim.SGD(model.parameters(), 0.1), "dpsgd", mpi)

    on_threads(monkeypatch, 2, work)


def test_mpi_does_not_start_while_a_worker_imports_the_script(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SetupError, match="a worker process imports this script again: put its training"):
        launch.world()
