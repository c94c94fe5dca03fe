"""All-reduces within hosts and then among them, in simulated time and in shared memory of this host.

On ranks: ``tests/mpi/ranks/test_hierarchical.py``.
"""

import numpy as np
import pytest

from grsgd.comm.allreduce import ALLREDUCE, by_hosts, hierarchical_allreduce, ring_allreduce, shared
from grsgd.comm.allreduce.by_hosts import some
from grsgd.comm.shared_memory import NoSharedMemory
from grsgd.comm.some_ranks import SomeRanks
from grsgd.models.flat import Flat
from grsgd.models.shape_only import ShapeOnlyArray
from grsgd.testing.simulated import Ranks, network_of
from tests.support.polled_ranks import Post

M, B = 4_000_000, 1e8
MEMORY = {"bandwidth": "inf bit", "latency": "0 s"}


def of_hosts(hosts: int, ranks: int, **options) -> Ranks:
    network = {"bandwidth": "800 mbit", "latency": "0 s", "memory": MEMORY} | options
    return Ranks(hosts * ranks, network_of(medium=f"hosts:{hosts}x{ranks}", **network))


def duration(ranks: Ranks, allreduce) -> float:
    ranks.finish([allreduce(comm, ShapeOnlyArray(M // 4, "float32")) for comm in ranks.comms])
    return ranks.env.now


@pytest.mark.parametrize("hosts, each", [(1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (4, 2)])
@pytest.mark.parametrize("size", [1, 5, 1001, 50_001])
def test_sums(hosts, each, size):
    """Bit for bit the same on all, and of two hosts those of each, in the order of ranks."""
    n = hosts * each
    xs = np.random.default_rng(n).standard_normal((n, size))
    mine, ranks = xs.copy(), of_hosts(hosts, each)
    ranks.finish([hierarchical_allreduce(comm, x, scale=0.3) for comm, x in zip(ranks.comms, mine, strict=True)])
    assert (mine == mine[0]).all()
    np.testing.assert_allclose(mine[0], xs.sum(0) * (0.3 if n > 1 else 1), rtol=1e-9, atol=1e-12)
    if hosts == 2:
        first, second = (np.add.reduce(part, 0) for part in (xs[:each], xs[each:]))
        np.testing.assert_array_equal(mine[0], (first + second) * 0.3)


@pytest.mark.parametrize("hosts, each", [(2, 2), (4, 2), (3, 4)])
def test_a_card_carries_as_much_as_if_its_host_were_a_rank(hosts, each):
    """2(h-1)/h M, and on a ring of all ranks 2(n-1)/n M, for it enters and leaves each host once."""
    n = hosts * each
    assert duration(of_hosts(hosts, each), hierarchical_allreduce) == pytest.approx(
        2 * (hosts - 1) / hosts * M / B, rel=0.01
    )
    assert duration(of_hosts(hosts, each), ring_allreduce) == pytest.approx(2 * (n - 1) / n * M / B, rel=0.05)


def test_where_each_rank_has_a_host_it_is_the_ring():
    network = network_of(bandwidth="1 gbit", latency="50 us")
    times = [duration(Ranks(4, network), ALLREDUCE[name]) for name in ("hierarchical", "ring")]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


@pytest.mark.parametrize("members", [[0, 1, 2, 4], [3, 0, 5, 4, 1], [0, 2]])
def test_hosts_of_unequal_numbers_of_ranks(members):
    """Of those with more, some sum no part, and have the sums all the same; in whichever order they are."""
    ranks = of_hosts(2, 3)
    xs = np.random.default_rng(0).standard_normal((6, 101))
    mine = xs.copy()
    ends = {rank: some(ranks.comms[rank], members) for rank in members}
    ranks.finish([hierarchical_allreduce(ends[rank], mine[rank]) if rank in ends else iter(()) for rank in range(6)])
    sums = [sum((xs[rank] for rank in members if rank // 3 == host), np.zeros(101)) for host in (0, 1)]
    for rank in members:
        np.testing.assert_array_equal(mine[rank], sums[0] + sums[1])


def test_some_ranks_are_a_group():
    ranks = Ranks(4)
    ends = {rank: SomeRanks(ranks.comms[rank].backend, [3, 1]) for rank in (1, 3)}
    assert [ends[rank].rank for rank in (3, 1)] == [0, 1] and ends[3].size == 2

    def talk(rank):
        x, y = np.full(2, float(rank)), np.zeros(2)
        other = 1 - ends[rank].rank
        yield ends[rank].Irecv(y, other, 5), ends[rank].Isend(x, other, 5)
        return y[0]

    def nothing():
        yield from ()

    assert ranks.finish([talk(rank) if rank in ends else nothing() for rank in range(4)]) == [None, 3.0, None, 1.0]
    with pytest.raises(NotImplementedError):
        ends[1].Iallreduce(np.zeros(1))
    for refused in (lambda: ends[1].Ibcast(np.zeros(1), 0), ends[1].dup, lambda: ends[1].subset([0])):
        with pytest.raises(NotImplementedError):
            refused()


def test_some_ranks_see_the_hosts_and_messages_of_these_ranks():
    post, comms = on_hosts("abc")
    end, other = SomeRanks(comms[2].backend, [2, 0]), SomeRanks(comms[0].backend, [2, 0])
    assert end.hosts == ["c", "a"] and end.shares_memory and not end.has_multicast and other.rank == 1
    assert not end.Iprobe(1, 5)
    other.Isend(np.ones(2), 0, 5)
    assert end.Iprobe(1, 5) and not end.Iprobe(1, 4) and list(post.messages[0, 2, 5][0]) == [1, 1]


# ---- ranks in one thread, with real shared memory


def on_hosts(hosts: str | None, ranks: int = 3) -> tuple[Post, list]:
    """Return the post and the communicators of one rank per letter of ``hosts``, or of ``ranks`` ranks."""
    post = Post(len(hosts or range(ranks)))
    return post, post.communicators_on_hosts(hosts)


def in_two_stages(xs, hosts: str, scale):
    """Return the sum of the sums of the hosts, each in the order of its ranks."""
    sums = [sum(xs[rank] for rank in range(len(xs)) if hosts[rank] == host) for host in sorted(set(hosts))]
    return sum(sums) * xs.dtype.type(scale)


@pytest.mark.parametrize("hosts", [None, "aabb", "abab", "aab", "ab", "aaabb", "abcabc"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_ranks_of_hosts_sum_through_memory(hosts, pieces, monkeypatch):
    """Several times, also with an array that is longer than a buffer: messages between hosts have the same bytes."""
    monkeypatch.setattr(by_hosts, "PIECE_BYTES", 512)
    post, comms = on_hosts(hosts)
    n, size = len(comms), 128 * pieces - 29
    random = np.random.default_rng(n)
    for repeat in range(3):
        xs = random.integers(-100, 100, (n, size)).astype(np.float32)  # any order has the same sum
        mine = xs.copy()
        post.finish([hierarchical_allreduce(comm, x, scale=0.5) for comm, x in zip(comms, mine, strict=True)])
        np.testing.assert_array_equal(mine, [in_two_stages(xs, hosts or "aaa", 0.5)] * n)
        sent = sum(comm.traffic.sent.sum() for comm in comms)
        count = len(set(hosts or "a"))
        among, within = 2 * (count - 1) * xs[0].nbytes, 2 * (n - count) * xs[0].nbytes
        assert sent == (repeat + 1) * (among + within)


def test_arrays_that_lie_in_shared_memory_are_summed_in_place_piece_by_piece(monkeypatch):
    monkeypatch.setattr(by_hosts, "PIECE_BYTES", 2**18)
    post, comms = on_hosts("aabb")
    xs = np.random.default_rng(0).integers(-100, 100, (4, 2**18)).astype(np.float32)
    moved = [None] * 4

    def move(rank):
        hosts = yield from by_hosts.hosts_of(comms[rank], 0)
        moved[rank] = yield from shared.in_shared_memory(hosts.local, Flat.of(xs[rank].copy()))

    post.finish(map(move, range(4)))
    for _ in range(2):
        before = np.array([flat.array for flat in moved])
        schedules = [hierarchical_allreduce(comm, flat.array) for comm, flat in zip(comms, moved, strict=True)]
        post.finish(schedules)
        np.testing.assert_array_equal([flat.array for flat in moved], [in_two_stages(before, "aabb", 1)] * 4)


def test_all_ranks_learn_that_one_host_has_no_shared_memory(monkeypatch):
    allocate, errors = by_hosts.allocate, []

    def refused(comm, nbytes, tag):
        if 2 in comm.members:
            raise NoSharedMemory("rank 2: it is full")
        return (yield from allocate(comm, nbytes, tag))

    def noting(schedule):
        try:
            yield from schedule
        except NoSharedMemory as error:
            errors.append(error.why)

    monkeypatch.setattr(by_hosts, "allocate", refused)
    post, comms = on_hosts("aabb")
    post.finish([noting(hierarchical_allreduce(comm, np.ones(8))) for comm in comms])
    assert errors == ["rank 2: it is full"] * 4
