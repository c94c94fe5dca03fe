"""Loaders of unequal lengths, cut to the shortest one, on ranks that are threads."""

import pytest
from torch.utils.data import DataLoader, IterableDataset

from grsgd.comm.stop_signal import UnevenCalls
from grsgd.own_loop import even as module
from grsgd.own_loop.even import even, length_of
from grsgd.own_loop.roll_call import roll_call
from tests.support.own_loop import leaves_nothing
from tests.support.threads import on_threads

pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]


@pytest.fixture(autouse=True)
def anew():
    module.say.cache_clear()


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))

    def __len__(self):
        return 100  # a data set may be wrong


def epochs(monkeypatch, lengths, made, count=2):
    """What each rank gets in ``count`` epochs of ``made(length)``."""

    def work(mpi):
        loader = made(lengths[mpi.rank])
        return [list(even(loader() if callable(loader) else loader, mpi)) for _ in range(count)]

    return on_threads(monkeypatch, len(lengths), work)


MADE = {
    "a list": lambda length: list(range(length)),
    "a generator": lambda length: lambda: iter(range(length)),
    "a stream": lambda length: DataLoader(Stream(length), batch_size=None),
}


@pytest.mark.parametrize("lengths", [(4,), (3, 5), (5, 3), (4, 4), (5, 2, 4), (3, 0, 1)], ids=str)
@pytest.mark.parametrize("kind", MADE)
def test_all_ranks_get_the_batches_of_the_shortest_loader(kind, lengths, monkeypatch):
    found = epochs(monkeypatch, lengths, MADE[kind])
    assert found == [[list(range(min(lengths)))] * 2] * len(lengths)


def test_loaders_with_and_without_length_go_together(monkeypatch):
    found = on_threads(monkeypatch, 2, lambda mpi: list(even([7, 8, 9] if mpi.rank else iter([1, 2]), mpi)))
    assert found == [[1, 2], [7, 8]]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("a list", "2 steps per epoch, because rank 1 has no more batches; 7 of 13 batches of all ranks are dropped"),
        ("a stream", "2 steps in an epoch, because rank 1 has no more batches; ranks 0, 2 dropped batches"),
    ],
)
def test_dropped_batches_are_told_once(kind, line, monkeypatch, capsys):
    epochs(monkeypatch, (6, 2, 5), MADE[kind])
    assert capsys.readouterr().err == f"grsgd: even(): {line}\n"
    epochs(monkeypatch, (3, 3), MADE[kind])
    assert not capsys.readouterr().err


def test_only_a_length_that_is_certain_counts():
    assert length_of([1, 2]) == 2 and length_of(DataLoader([1, 2, 3], batch_size=2)) == 2
    assert length_of(iter([1])) is None and length_of(DataLoader(Stream(3))) is None


def test_another_call_of_a_rank_is_named(monkeypatch):
    def work(mpi):
        with pytest.raises(UnevenCalls, match=r"in even\(\)"):
            if mpi.rank:
                roll_call(mpi, "in another call", 20)
            next(even([1], mpi))

    on_threads(monkeypatch, 2, work)
