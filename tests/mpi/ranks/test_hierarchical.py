"""All-reduces within hosts and then among them: ranks of this host, of which some are told that they are on another."""

import time

import numpy as np
import pytest

from grsgd.comm import shared_memory
from grsgd.comm.allreduce import by_hosts, hierarchical_allreduce, in_place
from grsgd.comm.allreduce.shared import SHORT_BYTES
from grsgd.comm.shared_memory import NoSharedMemory
from grsgd.models.flat import Flat

LONG, PIECE = SHORT_BYTES // 4 + 1, by_hosts.PIECE_BYTES // 4
PLACEMENTS = {"first half": lambda rank, n: rank < n // 2, "alternating": lambda rank, n: rank % 2, "one": lambda *_: 0}


@pytest.fixture(params=PLACEMENTS)
def placed(request, comm, monkeypatch):
    """The host of each rank."""
    where = [f"host {int(PLACEMENTS[request.param](rank, comm.size))}" for rank in range(comm.size)]
    for module in (by_hosts, shared_memory):
        monkeypatch.setattr(module, "host", lambda: where[comm.rank])
    return where


def arrays(comm, size, dtype="float32", seed=0):
    return [np.random.default_rng((seed, rank)).standard_normal(size).astype(dtype) for rank in range(comm.size)]


def by_host(where, xs, scale=1.0):
    """The sums of both hosts, each in the order of ranks, added up: of two numbers the order is the same."""
    sums = {}
    for host, x in zip(where, xs, strict=True):
        sums[host] = sums[host] + x if host in sums else x
    total = sum(sums.values())
    return total * total.dtype.type(scale) if len(xs) > 1 else total


def reduce(comm, driver, x, scale=1.0):
    driver.run(hierarchical_allreduce(comm, x, scale=scale))


def shared(comm, driver, x) -> np.ndarray:
    return driver.run(in_place(comm, Flat.of(x), "hierarchical")).array


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 3, 1000, LONG, PIECE, 2 * PIECE + 7])
def test_sums_of_hosts_are_summed(comm, driver, placed, size, dtype):
    xs = arrays(comm, size, dtype)
    for x in (xs[comm.rank].copy(), shared(comm, driver, xs[comm.rank].copy())):
        reduce(comm, driver, x, 1 / 3)
        np.testing.assert_array_equal(x, by_host(placed, xs, 1 / 3))


def test_any_sequence_with_ranks_that_are_late(comm, driver, placed):
    same, own = np.random.default_rng(1), np.random.default_rng((1, comm.rank))
    inside = shared(comm, driver, np.zeros(2 * LONG, np.float32))
    for number in range(30):
        size, is_inside = int(same.choice([2, 100, LONG, 2 * LONG])), bool(same.random() < 0.3)
        xs = arrays(comm, size, seed=number)
        # Where the arrays of a host lie is that host's own affair.
        x = inside[:size] if is_inside and placed[comm.rank] == placed[0] else np.empty(size, np.float32)
        x[:] = xs[comm.rank]
        if own.random() < 0.2:
            time.sleep(0.003)
        reduce(comm, driver, x)
        np.testing.assert_array_equal(x, by_host(placed, xs))
        x[:] = np.nan


def test_between_two_hosts_goes_what_a_ring_of_two_sends(comm, driver, placed):
    size = 120 * LONG
    reduce(comm, driver, np.ones(size, np.float32))
    sent = comm.traffic.sent
    beyond = sum(int(sent[rank]) for rank in range(comm.size) if placed[rank] != placed[comm.rank])
    within = int(sent.sum()) - beyond
    everyone = comm.backend.mpi
    assert everyone.allreduce(beyond) == (2 * 4 * size if len(set(placed)) == 2 else 0)
    assert everyone.allreduce(within) == 2 * 4 * size * (comm.size - len(set(placed)))


@pytest.mark.ranks(2, 3, 4, 5)
def test_no_room_on_one_host(comm, driver, monkeypatch):
    """All ranks learn of it, those on other hosts as well."""
    where = [f"host {int(rank > 1)}" for rank in range(comm.size)]
    for module in (by_hosts, shared_memory):
        monkeypatch.setattr(module, "host", lambda: where[comm.rank])

    def full(*_):
        raise OSError(28, "No space left on device")

    if comm.rank == 1:
        monkeypatch.setattr(shared_memory.os, "posix_fallocate", full)
    with pytest.raises(NoSharedMemory, match="rank 1: No space left on device; allowed: variant = ring, "):
        reduce(comm, driver, np.ones(10))
