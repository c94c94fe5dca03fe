import numpy as np
import pytest

from grsgd.algorithms.allreduce_trial import choose_variant
from grsgd.comm.allreduce import ALLREDUCE, broadcast, ring_allreduce
from grsgd.comm.allreduce.pieces import chunks
from grsgd.models.flat import Flat


def same_everywhere(comm, array) -> bool:
    return len(set(comm.backend.mpi.allgather(array.tobytes()))) == 1


@pytest.mark.parametrize("variant", ALLREDUCE)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 1000, 700_001])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sum_is_right_and_bit_identical(comm, driver, variant, size, dtype):
    xs = [np.random.default_rng(rank).standard_normal(size).astype(dtype) for rank in range(comm.size)]
    x = xs[comm.rank].copy()
    driver.run(ALLREDUCE[variant](comm, x))
    assert np.allclose(x, np.sum(np.array(xs, "float64"), 0), atol=1e-5)
    assert same_everywhere(comm, x)


@pytest.mark.parametrize("variant", ALLREDUCE)
def test_same_in_foreground_and_background_and_again(comm, driver, variant):
    def reduced(run):
        x = np.random.default_rng(comm.rank).standard_normal(300_000).astype("float32")
        run(ALLREDUCE[variant](comm, x, scale=1 / comm.size))
        return x

    def behind(schedule):
        handle = driver.start(schedule)

        def wait():
            yield handle

        driver.run(wait())

    first = reduced(driver.run)
    assert np.array_equal(first, reduced(behind))
    assert np.array_equal(first, reduced(driver.run))


@pytest.mark.parametrize("size", [60, 61, 200_003])
def test_ring_bytes(comm, driver, size):
    """2(n-1)/n M from each rank, exactly when n divides the array, and 2(n-1) M in all in any case."""
    n = comm.size
    x = np.ones(size, "float32")
    driver.run(ring_allreduce(comm, x, piece_bytes=64 * 1024))
    sent = comm.traffic.sent
    assert comm.backend.mpi.allreduce(int(sent.sum())) == 2 * (n - 1) * x.nbytes
    if size % n == 0:
        assert sent.sum() * n == 2 * (n - 1) * x.nbytes
    if n > 1:
        assert sent[(comm.rank + 1) % n] == sent.sum() == comm.traffic.sent_once
    assert comm.traffic.headers.sum() == 0


@pytest.mark.ranks(2, 4)
def test_halving_doubling_bytes(comm, driver):
    x = np.ones(4096, "float32")
    driver.run(ALLREDUCE["halving-doubling"](comm, x))
    assert comm.traffic.sent.sum() * comm.size == 2 * (comm.size - 1) * x.nbytes


@pytest.mark.parametrize("size", [60, 61, 200_003])
def test_swing_bytes(comm, driver, size):
    """As few as a ring, for every n: 2(n-1) M in all, and 2(n-1)/n M from each rank when n divides the array."""
    x = np.ones(size, "float32")
    driver.run(ALLREDUCE["swing"](comm, x))
    sent = int(comm.traffic.sent.sum())
    assert comm.backend.mpi.allreduce(sent) == 2 * (comm.size - 1) * x.nbytes
    if size % comm.size == 0:
        assert sent * comm.size == 2 * (comm.size - 1) * x.nbytes


@pytest.mark.parametrize("piece_bytes", [4, 8, 100, 10**9])
def test_ring_in_pieces_of_any_size(comm, driver, piece_bytes):
    x = np.arange(23, dtype="float32") + comm.rank
    driver.run(ring_allreduce(comm, x, piece_bytes=piece_bytes))
    assert np.array_equal(x, np.arange(23) * comm.size + sum(range(comm.size)))


def test_several_at_once(comm, driver):
    """Collectives with tags of their own do not disturb each other."""
    arrays = [np.full(50_000, comm.rank + k, "float32") for k in range(3)]
    handles = [driver.start(ring_allreduce(comm, x, tag=k)) for k, x in enumerate(arrays)]

    def wait():
        yield handles

    driver.run(wait())
    for k, x in enumerate(arrays):
        assert np.all(x == sum(rank + k for rank in range(comm.size)))


def test_broadcast(comm, driver):
    x = np.full(1000, float(comm.rank))
    driver.run(broadcast(comm, x))
    assert np.all(x == 0)


def test_chunks_cover():
    assert [chunk.size for chunk in chunks(np.zeros(11), 4)] == [2, 3, 3, 3]


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_trial_chooses_the_same_on_all_ranks(comm, driver, size):
    name, why = driver.run(choose_variant(comm, driver, Flat.of(np.zeros(size, "float32"))))
    assert name in ALLREDUCE and why.startswith(f"variant = {name}: ")
    assert len(set(comm.backend.mpi.allgather(why))) == 1
    if comm.size > 1:
        assert all(f"{variant} " in why for variant in ALLREDUCE if variant != "hierarchical")
        assert "hierarchical: only of several hosts" in why
    assert not comm.shared
