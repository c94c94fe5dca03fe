"""All-reduces through shared memory, as far as it takes no ranks: their loops, what is refused, and simulated time.

On ranks: ``tests/mpi/ranks/test_shared_memory.py``.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grsgd.algorithms import ALGORITHMS
from grsgd.comm.allreduce import ALLREDUCE, OUTLIVES_DEATHS, THROUGH_MEMORY, Variant, shared, shared_cpu, shared_sums
from grsgd.comm.shared_memory import ALLOWED, header_bytes, host, map_row, row_of, total_bytes
from grsgd.errors import ConfigError
from grsgd.job import launch
from grsgd.models.flat import Flat
from grsgd.models.replica import Replica
from grsgd.models.shape_only import ShapeOnlyArray
from grsgd.testing.simulated import Ranks, network_of
from tests.support.polled_ranks import Post

WITH_VARIANTS = ("ring_allreduce", "local_sgd", "diloco", "lasgd")


def in_order(xs, scale):
    total = xs[0].copy()
    for x in xs[1:]:
        total += x
    return total * total.dtype.type(scale)


@pytest.mark.parametrize("loops", [shared_cpu, shared_sums])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_loops_sum_in_the_order_of_rows(loops, dtype, n, scale):
    """Where they are compiled and where not, and write nowhere else."""
    rows = np.random.default_rng(n).standard_normal((n, 100)).astype(dtype)
    begin, end = 13, 90
    expected = in_order(rows[:, begin:end], scale)
    total = np.zeros(end - begin, dtype)
    loops.sum_rows(rows, begin, end, rows.dtype.type(scale), total)
    np.testing.assert_array_equal(total, expected)
    before = rows.copy()
    loops.replace_rows(rows, begin, end, rows.dtype.type(scale), np.empty(8, dtype))
    before[:, begin:end] = expected
    np.testing.assert_array_equal(rows, before)


def test_all_have_reached_a_number_when_the_last_one_has():
    flags = np.zeros((3, 8), np.int64)
    for rank in (2, 0):
        shared_cpu.publish(flags, rank, 1, 5)
    assert not shared_cpu.reached(flags, 1, 1)
    shared_cpu.publish(flags, 1, 1, 4)
    assert shared_cpu.reached(flags, 1, 4) and not shared_cpu.reached(flags, 1, 5)
    assert not shared_cpu.reached(flags, 0, 1) and flags.sum() == 14


@pytest.mark.parametrize("ranks", [2, 5, 100])
@pytest.mark.parametrize("nbytes", [4, 4096, 2**20 + 8])
def test_rows_do_not_overlap(ranks, nbytes):
    """They begin where any element may, not all at one place of the caches, and are as long as they are to be."""
    bounds = [row_of(rank, ranks, nbytes) for rank in range(ranks)]
    assert bounds[0][0] == header_bytes(ranks) >= 64 * ranks and bounds[-1][1] == total_bytes(ranks, nbytes)
    assert all(end - begin >= nbytes and begin % 64 == 0 for begin, end in bounds)
    assert all(one[1] == other[0] for one, other in zip(bounds, bounds[1:], strict=False))
    assert len({begin % 4096 for begin, _ in bounds[:8]}) == min(ranks, 8)


def test_who_has_no_memory_is_called_as_in_the_job(tmp_path):
    """Among the ranks of a host, too, which have other numbers there."""
    some = SimpleNamespace(rank=1, size=2, members=(4, 6))
    there = {"path": str(tmp_path / "missing"), "host": host()}
    assert map_row(some, 100, there)[1].endswith("rank 6: No such file or directory")
    assert map_row(some, 100, there | {"host": "far"})[1].startswith("ranks 4 and 6 are on different hosts")


# ---- ranks in one thread, with real shared memory


def noting(schedule, x, sums: list):
    """Keep a copy of ``x`` at the moment in which a rank's schedule ends: the other ranks may still be at work."""
    yield from schedule
    sums.append(x.copy())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("nbytes", [8, 2 * shared.SHORT_BYTES])
@pytest.mark.parametrize("n", [2, 3])
def test_ranks_of_a_host_sum_through_memory(n, nbytes, dtype):
    """Twice, whichever rank comes last: no rank ends before its sum is whole, and none overtakes another one."""
    post = Post(n)
    comms = post.communicators_on_hosts()
    random, size = np.random.default_rng(n), nbytes // np.dtype(dtype).itemsize
    for last_comes_first in (False, True, False):
        xs = random.standard_normal((n, size)).astype(dtype)
        mine, sums = xs.copy(), []
        schedules = [
            noting(shared.shared_allreduce(comm, x, scale=0.5), x, sums) for comm, x in zip(comms, mine, strict=True)
        ]
        post.finish(schedules[::-1] if last_comes_first else schedules)
        np.testing.assert_array_equal(sums, [in_order(xs, 0.5)] * n)


@pytest.mark.parametrize("n", [2, 3])
def test_arrays_in_shared_memory_are_summed_in_place(n):
    post = Post(n)
    comms = post.communicators_on_hosts()
    xs = np.random.default_rng(n).standard_normal((n, 2**18)).astype(np.float32)
    moved = [None] * n

    def move(rank):
        moved[rank] = yield from shared.in_shared_memory(comms[rank], Flat.of(xs[rank].copy()))

    post.finish(map(move, range(n)))
    for first in range(n):
        sums = []
        before = np.array([flat.array for flat in moved])
        order = [*range(first, n), *range(first)]
        post.finish(
            noting(shared.shared_allreduce(comms[rank], moved[rank].array), moved[rank].array, sums) for rank in order
        )
        np.testing.assert_array_equal(sums, [in_order(before, 1.0)] * n)


@pytest.mark.parametrize("ranks, is_short", [(2, True), (3, False)])
def test_every_rank_sums_whole_arrays_up_to_a_size(ranks, is_short):
    x = np.zeros(shared.SHORT_BYTES // 8, np.float32)
    assert shared.is_short(SimpleNamespace(size=ranks), x) == is_short


def test_a_rank_waits_until_the_last_one_has_entered():
    post = Post(3)
    comms = post.communicators_on_hosts()
    warm = [np.ones(4, np.float32) for _ in comms]
    post.finish([shared.shared_allreduce(comm, x) for comm, x in zip(comms, warm, strict=True)])
    for late in range(3):
        schedules = [shared.shared_allreduce(comm, np.ones(4, np.float32)) for comm in comms]
        with pytest.raises(TimeoutError, match=f"^ranks {late}, which have not begun an all-reduce"):
            post.finish(schedules, polls=5, late=late)
        post.finish([shared.shared_allreduce(comms[late], np.ones(4, np.float32))])


# ---- in simulated time


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [1, 2, 7, 1001])
@pytest.mark.parametrize("eager_bytes", [0, 65536])
def test_simulated_ranks_sum_in_the_same_order(n, size, eager_bytes):
    xs = np.random.default_rng(size).standard_normal((n, size)).astype(np.float32)
    ranks = Ranks(n, network_of(eager_bytes=eager_bytes), random=np.random.default_rng(0))
    mine = xs.copy()
    ranks.finish([ALLREDUCE["shared"](comm, x, scale=0.3) for comm, x in zip(ranks.comms, mine, strict=True)])
    np.testing.assert_array_equal(mine, [in_order(xs, 0.3) if n > 1 else xs[0]] * n)
    assert sum(comm.traffic.sent.sum() for comm in ranks.comms) == 2 * (n - 1) * 4 * size


@pytest.mark.parametrize("n", [2, 3])
def test_nothing_is_received_into_an_array_that_is_still_being_sent(n):
    ranks = Ranks(n, network_of(bandwidth="1 mbit", eager_bytes=0))

    def watched(end):
        send, receive, sent = end.Isend, end.Irecv, []

        def sending(array, dest, tag):
            sent.append((array, send(array, dest, tag)))
            return sent[-1][1]

        def receiving(array, source, tag):
            assert all(message.Test() or not np.shares_memory(array, other) for other, message in sent)
            return receive(array, source, tag)

        end.Isend, end.Irecv = sending, receiving

    for comm in ranks.comms:
        watched(comm.backend)
    ranks.finish([ALLREDUCE["shared"](comm, np.ones(1000)) for comm in ranks.comms])


def test_arrays_without_content_of_any_length():
    for size in range(30):
        ranks = Ranks(3)
        ranks.finish([ALLREDUCE["shared"](comm, ShapeOnlyArray(size, "float32"), scale=0.5) for comm in ranks.comms])
        assert sum(comm.traffic.sent.sum() for comm in ranks.comms) == 2 * 2 * 4 * size


def test_simulated_arrays_stay_where_they_are():
    ranks = Ranks(2)
    flats = [Flat.of(np.zeros(10**5)) for _ in ranks.comms]
    moved = ranks.finish(
        [shared.in_shared_memory(comm, flat) for comm, flat in zip(ranks.comms, flats, strict=True)]
    )
    assert all(one is other for one, other in zip(flats, moved, strict=True))


# ---- options


def test_variants_have_their_names():
    assert {*ALLREDUCE, "auto"} == set(Variant.__args__)
    assert OUTLIVES_DEATHS == set(ALLREDUCE) - {"mpi", "shared", "hierarchical"}
    assert ALLOWED.split(", ") == [name for name in ALLREDUCE if name not in THROUGH_MEMORY]


@pytest.mark.parametrize("name", WITH_VARIANTS)
@pytest.mark.parametrize("variant", Variant.__args__)
def test_traits_of_variants(name, variant):
    algorithm = ALGORITHMS[name]
    traits = algorithm.traits_of(algorithm.Options(variant=variant))
    assert traits.one_host == (variant == "shared") and traits.host_memory == (variant in THROUGH_MEMORY)
    assert bool(traits.survives_deaths) == (variant in OUTLIVES_DEATHS)


def test_what_shares_no_memory_is_refused():
    mpi, cpu, gpu = SimpleNamespace(size=4), torch.device("cpu"), torch.device("cuda")
    algorithm = ALGORITHMS["ring_allreduce"]
    options = {variant: algorithm.Options(variant=variant) for variant in Variant.__args__}
    for variant in options:
        launch.check_place(mpi, algorithm, options[variant], 4, cpu)
        if variant != "shared":
            launch.check_place(mpi, algorithm, options[variant], 2, cpu)
        if variant not in THROUGH_MEMORY:
            launch.check_place(mpi, algorithm, options[variant], 2, gpu)
    with pytest.raises(ConfigError, match='"shared": only 2 of 4 ranks are on this host, .*; allowed: ring, .*hiera'):
        launch.check_place(mpi, algorithm, options["shared"], 2, cpu)
    for variant in THROUGH_MEMORY:
        allowed = "ring, h.*, tree, swing, bine, mpi"
        with pytest.raises(ConfigError, match=f"the arrays lie in the memory of GPUs; allowed: {allowed}$"):
            launch.check_place(mpi, algorithm, options[variant], 4, gpu)


def test_gradients_that_move():
    """Autograd goes on to add to them there."""
    replica = Replica(torch.nn.Linear(3, 2))
    replica.model(torch.ones(1, 3)).sum().backward()
    before = replica.grads.array.copy()
    assert before.any()
    moved = Flat.of(replica.grads.array.copy())
    replica.move_gradients(moved)
    replica.model(torch.ones(1, 3)).sum().backward()
    np.testing.assert_array_equal(moved.array, 2 * before)
    assert replica.grads is moved and all(p.grad.data_ptr() for p in replica.trained)
    replica.zero_gradients()
    assert not moved.array.any()
