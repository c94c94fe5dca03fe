"""All-reduces round a ring: where pieces lie, the short cut of two ranks, and that nothing is allocated on the way.

On ranks: ``tests/mpi/ranks/test_allreduce.py``.
"""

import itertools
import tracemalloc

import numpy as np
import pytest

from grsgd.comm import allreduce
from grsgd.comm.allreduce import ALLREDUCE, SHORT_BYTES, ring_plan
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.testing.simulated import Ranks

SHORT = SHORT_BYTES // 4


@pytest.mark.parametrize("n", range(2, 6))
def test_pieces_of_a_ring_cover_the_array_once(n):
    """Of any size, in pieces of any size; and each rank receives all chunks but one of its own, twice."""
    for size, longest in itertools.product(range(1, 14), (1, 2, 3, 5, 100)):
        plans = [ring_plan(rank, n, size, longest) for rank in range(n)]
        assert all(plan.places == plans[0].places for plan in plans)
        chunks = plans[0].places
        places = [place for chunk in chunks for place in chunk]
        assert [i for place in places for i in range(size)[place]] == list(range(size))
        assert max(place.stop - place.start for place in places) == plans[0].longest <= longest
        sizes = [sum(place.stop - place.start for place in chunk) for chunk in chunks]
        assert max(sizes) - min(sizes) <= 1
        for rank, plan in enumerate(plans):
            assert [step for step, _, _ in plan.arrivals] == sorted(step for step, _, _ in plan.arrivals)
            for part in (0, n - 1):
                came = [(chunk, k) for step, chunk, k in plan.arrivals if part <= step < part + n - 1]
                missing = (rank + (part > 0)) % n  # the one that this rank begins with, and the one that it has summed
                assert sorted(came) == [(c, k) for c in range(n) if c != missing for k in range(len(chunks[c]))]


def reduced(name: str, xs: np.ndarray, **options):
    """Return what two simulated ranks have after an all-reduce, and their communicators."""
    ranks, mine = Ranks(2), xs.copy()
    ranks.finish([ALLREDUCE[name](comm, x, scale=0.3, **options) for comm, x in zip(ranks.comms, mine, strict=True)])
    return mine, ranks.comms


@pytest.mark.parametrize("name", ["ring", "halving-doubling"])
@pytest.mark.parametrize("size", [1, 2, 7, SHORT - 1, SHORT, SHORT + 1])
def test_two_ranks_have_the_same_sums_with_and_without_the_short_cut(name, size, monkeypatch):
    """Bit for bit, and as many bytes; in one message each instead of two. And so has a ring in pieces."""
    xs = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
    found, comms = reduced(name, xs)
    monkeypatch.setattr(allreduce, "SHORT_BYTES", 0)
    expected, before = reduced(name, xs)
    assert found.tobytes() == expected.tobytes() and found[0].tobytes() == found[1].tobytes()
    sent = [sum(comm.traffic.sent.sum() for comm in each) for each in (comms, before)]
    assert sent[0] == sent[1] == 2 * xs[0].nbytes
    pieces, comms_of_pieces = reduced("ring", xs, piece_bytes=1024)
    assert pieces.tobytes() == expected.tobytes()
    assert [comm.traffic.sent.tolist() for comm in comms_of_pieces] == [comm.traffic.sent.tolist() for comm in before]
    if 1 < size <= SHORT:
        assert [sum(comm.traffic.messages.sum() for comm in each) for each in (comms, before)] == [2, 4]


class Come:
    """A message that is there."""

    def Test(self):
        return True


class Pretended:
    """One of two ranks; the messages of the other one are always there."""

    rank, size, lost = 0, 2, ()

    def Isend(self, array, dest, tag):
        return Come()

    Irecv = Isend


@pytest.mark.parametrize("name", ["ring", "halving-doubling"])
@pytest.mark.parametrize("size", [SHORT, 16 * SHORT])
def test_no_memory_is_allocated_again(name, size):
    """Beyond some objects of Python: scratch memory is kept, and what is known of an array of this size."""
    comm, driver = Communicator(Pretended()), MpiDriver(progress_mode="inline")
    x = np.zeros(size, np.float32)
    driver.run(ALLREDUCE[name](comm, x, scale=0.5))
    tracemalloc.start()
    try:
        for _ in range(10):
            driver.run(ALLREDUCE[name](comm, x, scale=0.5))
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20_000 and kept < 5_000
