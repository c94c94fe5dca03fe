"""Samples of a stream that each rank, and each worker process of a rank, keeps."""

from types import SimpleNamespace

import pytest
from torch.utils.data import IterableDataset

from grsgd.data import rank_stream
from grsgd.data.rank_stream import RankStream


class Stream(IterableDataset):
    epoch = None

    def __iter__(self):
        return iter(range(20))

    def set_epoch(self, epoch):
        self.epoch = epoch


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_each_sample_is_of_one_rank_and_one_worker(n, workers, monkeypatch):
    ranks = []
    for rank in range(n):
        kept = []
        for number in range(max(workers, 1)):
            info = SimpleNamespace(id=number, num_workers=workers) if workers else None
            monkeypatch.setattr(rank_stream, "get_worker_info", lambda info=info: info)
            kept += RankStream(Stream(), rank, n)
        assert sorted(kept) == list(range(rank, 20, n))
        ranks += kept
    assert sorted(ranks) == list(range(20))


def test_a_stream_learns_its_epoch():
    stream = Stream()
    part = RankStream(stream, 0, 1)
    for expected in (0, 1):  # as in a worker that lives on
        list(part)
        assert stream.epoch == expected
    part.set_epoch(7)
    list(part)
    assert stream.epoch == 7
