"""All-reduces through memory that the ranks share."""

import os
import tempfile
import time
import weakref

import numpy as np
import pytest
import torch

from coding.partition import part
from grsgd.comm import shared_memory
from grsgd.comm.allreduce import shared as shared_allreduce
from grsgd.comm.allreduce.shared import SHORT_BYTES, in_shared_memory
from grsgd.comm.allreduce.shared_sums import PIECE_BYTES
from grsgd.comm.driver import WaitTimeout
from grsgd.comm.shared_memory import NoSharedMemory
from grsgd.models.flat import Flat
from tests.support.real_ranks import models, start, take_step

LONG = SHORT_BYTES // 4 + 1
PIECE = PIECE_BYTES // 4
SIZES = [1, 2, 3, 7, LONG - 1, LONG, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5]


@pytest.fixture(autouse=True)
def folder(comm, monkeypatch):
    """Files of other jobs, of which some were killed before they had removed theirs, lie elsewhere."""
    own = tempfile.TemporaryDirectory(prefix="grsgd-tests-", dir=shared_memory.folder()) if comm.rank == 0 else None
    name = comm.backend.mpi.bcast(own and own.name)
    monkeypatch.setattr(shared_memory, "folder", lambda: name)
    yield
    comm.backend.mpi.Barrier()
    if own:
        own.cleanup()


def arrays(comm, size, dtype="float32", seed=0):
    """What each rank has, by rank: numbers whose sums depend on their order."""
    return [np.random.default_rng((seed, rank)).standard_normal(size).astype(dtype) for rank in range(comm.size)]


def in_order(xs, scale=1.0):
    """``scale`` times their sum, in the order of ranks; of one, itself."""
    total = xs[0].copy()
    for x in xs[1:]:
        total += x
    return total * total.dtype.type(scale) if len(xs) > 1 else total


def reduce(comm, driver, x, scale=1.0):
    driver.run(shared_allreduce.shared_allreduce(comm, x, scale=scale))


def shared(comm, driver, x) -> np.ndarray:
    return driver.run(in_shared_memory(comm, Flat.of(x))).array


def files() -> set[str]:
    return {name for name in os.listdir(shared_memory.folder()) if name.startswith("grsgd-shared-")}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
@pytest.mark.parametrize("size", SIZES)
def test_sums_are_taken_in_the_order_of_ranks(comm, driver, size, dtype):
    xs = arrays(comm, size, dtype)
    scale = 1.0 if dtype == "int64" else 1 / 3
    x = xs[comm.rank].copy()
    reduce(comm, driver, x, scale)
    np.testing.assert_array_equal(x, in_order(xs, scale))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [LONG, PIECE + 1])
def test_where_arrays_lie_in_shared_memory_sums_are_the_same(comm, driver, size, dtype):
    for seed in range(3):
        xs = arrays(comm, size, dtype, seed)
        x = shared(comm, driver, xs[comm.rank].copy())
        np.testing.assert_array_equal(x, xs[comm.rank])
        for _ in range(2):
            reduce(comm, driver, x, 0.3)
            xs = [in_order(xs, 0.3)] * comm.size
            np.testing.assert_array_equal(x, xs[0])


def test_a_part_of_an_array_in_shared_memory(comm, driver):
    xs = arrays(comm, 3 * LONG)
    x = shared(comm, driver, xs[comm.rank].copy())
    reduce(comm, driver, x[LONG : 2 * LONG + 1])
    expected = xs[comm.rank].copy()
    expected[LONG : 2 * LONG + 1] = in_order([other[LONG : 2 * LONG + 1] for other in xs])
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_with_ranks_that_are_late(comm, driver, seed):
    """No rank overwrites what another one still reads, whatever comes after what."""
    same, own = np.random.default_rng(seed), np.random.default_rng((seed, comm.rank))
    inside = shared(comm, driver, np.zeros(2 * PIECE, np.float32))
    for number in range(40):
        size, is_inside = int(same.choice([5, 100, LONG, 2 * PIECE])), bool(same.random() < 0.3)
        xs = arrays(comm, size, seed=(seed, number))
        x = inside[:size] if is_inside else np.empty(size, np.float32)
        x[:] = xs[comm.rank]
        if own.random() < 0.2:
            time.sleep(0.003)
        reduce(comm, driver, x)
        np.testing.assert_array_equal(x, in_order(xs))
        x[:] = np.nan


def test_several_at_once(comm, driver):
    """Those with tags of their own do not disturb each other, begun in whichever order."""
    xs = [arrays(comm, size, seed=size) for size in (10, LONG, 2 * PIECE)]
    mine = [x[comm.rank].copy() for x in xs]
    order = np.random.default_rng(comm.rank).permutation(len(xs))
    handles = [driver.start(shared_allreduce.shared_allreduce(comm, mine[k], tag=int(k))) for k in order]

    def wait():
        yield handles

    driver.run(wait())
    for x, of_all in zip(mine, xs, strict=True):
        np.testing.assert_array_equal(x, in_order(of_all))


@pytest.mark.parametrize("size", [3, 11, LONG])
def test_what_is_read_and_written_is_counted_as_sent(comm, driver, size):
    """The part that another rank reads, and the sum that this one writes to it: 2(n-1) M in all."""
    reduce(comm, driver, np.ones(size, np.float32))
    sizes = [end - begin for begin, end in (part(rank, comm.size, size) for rank in range(comm.size))]
    expected = [4 * (theirs + sizes[comm.rank]) for theirs in sizes]
    expected[comm.rank] = 0
    np.testing.assert_array_equal(comm.traffic.sent, expected)
    assert comm.backend.mpi.allreduce(int(comm.traffic.sent.sum())) == 2 * (comm.size - 1) * 4 * size


def test_nothing_is_left_of_files_and_memory_is_free_when_it_is_not_used(comm, driver):
    x = shared(comm, driver, np.ones(LONG, np.float32))
    for size in (10, LONG, 2 * PIECE):
        reduce(comm, driver, np.ones(size, np.float32))
    comm.backend.mpi.Barrier()
    assert not files()
    if comm.size == 1:
        return
    assert len(comm.shared) == 2
    kept = [weakref.ref(comm.shared[tags_or_vectors]) for tags_or_vectors in comm.shared if tags_or_vectors == 0]
    comm.shared.clear()  # as `free` does
    assert kept[0]() is None
    x += 1  # what still lies in the memory keeps it
    np.testing.assert_array_equal(x, 2)


@pytest.mark.ranks(2, 3, 4, 5)
def test_ranks_on_several_hosts(comm, driver, monkeypatch):
    monkeypatch.setattr(shared_memory, "host", lambda: f"host {comm.rank == 1}")
    error = "ranks 0 and 1 are on different hosts, which share no memory; allowed: variant = ring, h"
    with pytest.raises(NoSharedMemory, match=error):
        reduce(comm, driver, np.ones(10))
    assert not files()


@pytest.mark.ranks(2, 3, 4, 5)
@pytest.mark.parametrize("without", [0, 1])
def test_no_room(comm, driver, monkeypatch, without):
    """All ranks learn of it; what was to lie in shared memory stays where it is."""

    def full(*_):
        raise OSError(28, "No space left on device")

    if comm.rank == without:
        monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoSharedMemory, match=f"rank {without}: No space left on device; allowed: variant = ring"):
        reduce(comm, driver, np.ones(10))
    x = np.ones(LONG, np.float32)
    assert shared(comm, driver, x) is x
    assert not files()


@pytest.mark.ranks(2, 3, 4, 5)
def test_a_wait_names_the_ranks_that_are_missing(comm, driver):
    reduce(comm, driver, np.ones(10))
    comm.backend.mpi.Barrier()
    if comm.rank != 1:
        driver.timeout = 1.0
        with pytest.raises(WaitTimeout, match="for ranks 1, which have not begun an all-reduce through shared"):
            reduce(comm, driver, np.ones(10))
    comm.backend.mpi.Barrier()


@pytest.mark.ranks(2, 3, 4, 5)
def test_arrays_in_different_places_are_refused_by_all(comm, driver):
    x = np.ones(LONG, np.float32)
    inside = shared(comm, driver, x)
    with pytest.raises(RuntimeError, match="different places of shared memory"):
        reduce(comm, driver, inside if comm.rank else x)


@pytest.mark.parametrize(
    "name, options", [("ring_allreduce", {}), ("local_sgd", {"H": 2}), ("diloco", {"H": 2}), ("lasgd", {"warmup": 9})]
)
def test_algorithms_whose_vectors_lie_in_shared_memory(world, driver, monkeypatch, name, options):
    """They take the same steps, up to the rounding of sums in another order."""
    monkeypatch.setattr(shared_allreduce, "SHORT_BYTES", 4)  # models of tests are small
    found = {}
    for variant in ("tree", "shared"):
        algorithm = start(world, driver, name, variant=variant, **options)
        for step in range(6):
            take_step(algorithm, step)
        driver.run(algorithm.drain())
        found[variant] = models(world, algorithm)
        if variant == "shared" and world.size > 1:
            assert shared_allreduce.VECTORS in algorithm.comm.shared
    np.testing.assert_allclose(found["shared"], found["tree"], rtol=1e-12)
    assert torch.isfinite(algorithm.x.tensor).all()
