"""Messages in simulated time: who receives what and when, as the MPI standard says."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grsgd.algorithms.dpsgd import neighbour_exchange
from grsgd.comm.allreduce import ALLREDUCE, broadcast
from grsgd.comm.communicator import ANY_RANK, Communicator
from grsgd.comm.pollables import Compute, Delay, Signal, Until
from grsgd.models.shape_only import ShapeOnlyArray
from grsgd.simulator.driver import Deadlock, SimulatedDriver
from grsgd.simulator.network import MissingLink
from grsgd.testing.simulated import Ranks, network_of
from tests.support.seeded import seeded

SECOND = dict(bandwidth="8 bit", latency="0 s", eager_bytes=4)
"""A byte takes a second; five bytes are a long message."""


def numbers(*values, dtype=np.uint8):
    return np.array(values, dtype)


def nothing():
    yield from ()


def jobs(ranks: Ranks, **schedules):
    """Finish one schedule a rank, given as ``rank0 = ...``; the others do nothing."""
    return ranks.finish([schedules.get(f"rank{rank}") or nothing() for rank in range(len(ranks.comms))])


def sends(comm, *arrays, dest=1, tag=0, after=0.0):
    yield Delay(after)
    for array in arrays:
        yield comm.Isend(array, dest, tag)


def receives(comm, *sources, size=1, tag=0, after=0.0):
    """The first element of each message received, one after another."""
    yield Delay(after)
    seen = []
    for source in sources:
        array = np.zeros(size, np.uint8)
        yield comm.Irecv(array, source, tag)
        seen.append(int(array[0]))
    return seen


def times(driver, *pollables):
    """When each of them came true."""
    seen = []
    for pollable in pollables:
        yield pollable
        seen.append(driver.clock())
    return seen


# ---- order


@pytest.mark.parametrize("eager_bytes", [0, 100])
@pytest.mark.parametrize("sources", [[0] * 5, [ANY_RANK] * 5, [0, ANY_RANK, 0, ANY_RANK, ANY_RANK]])
@seeded
@given(seed=st.integers(0, 2**32))
def test_messages_of_one_pair_and_tag_keep_their_order(eager_bytes, sources, seed):
    """Whichever of them arrives first."""
    ranks = Ranks(2, network_of(eager_bytes=eager_bytes), random=np.random.default_rng(seed))
    a, b = ranks.comms
    sending = [a.Isend(numbers(k), 1) for k in range(5)]
    arrays = [np.zeros(1, np.uint8) for _ in range(5)]
    receiving = [b.Irecv(array, source) for array, source in zip(arrays, sources, strict=True)]
    ranks.settle()
    assert all(message.Test() for message in sending + receiving)
    assert [int(array[0]) for array in arrays] == list(range(5))


def test_any_order_between_pairs():
    """From any rank; within a pair in order."""
    orders = set()
    for seed in range(30):
        ranks = Ranks(3, random=np.random.default_rng(seed))
        _, _, seen = jobs(
            ranks,
            rank0=sends(ranks.comms[0], numbers(1), numbers(2), dest=2),
            rank1=sends(ranks.comms[1], numbers(3), dest=2),
            rank2=receives(ranks.comms[2], ANY_RANK, ANY_RANK, ANY_RANK),
        )
        orders.add(tuple(seen))
    assert orders == {(1, 2, 3), (1, 3, 2), (3, 1, 2)}


@pytest.mark.parametrize("eager_bytes", [0, 100])
@pytest.mark.parametrize("posted", [0.0, 9.0])
def test_any_rank_takes_what_has_arrived_first(eager_bytes, posted):
    """Whether the receive was posted before or after; not what was sent first, nor the lowest rank."""
    link = [{"from": 0, "to": 2, "latency": "5 s"}, {"from": 1, "to": 2, "latency": "1 s"}]
    ranks = Ranks(3, network_of(eager_bytes=eager_bytes, link=link))
    _, _, seen = jobs(
        ranks,
        rank0=sends(ranks.comms[0], numbers(10), dest=2),
        rank1=sends(ranks.comms[1], numbers(11), dest=2, after=1.0),
        rank2=receives(ranks.comms[2], ANY_RANK, ANY_RANK, after=posted),
    )
    assert seen == [11, 10]


@pytest.mark.parametrize("any_first", [True, False])
@pytest.mark.parametrize("posted", ["before", "after"])
@pytest.mark.parametrize("eager_bytes", [0, 100])
def test_receives_match_in_the_order_in_which_they_were_posted(any_first, posted, eager_bytes):
    """One from any rank and one from rank 0, both fit: the first message goes to the one that was posted first."""
    ranks = Ranks(2, network_of(latency="1 s", eager_bytes=eager_bytes))
    a, b = ranks.comms
    arrays = [np.zeros(1, np.uint8) for _ in range(2)]

    def post():
        sources = [ANY_RANK, 0] if any_first else [0, ANY_RANK]
        return [b.Irecv(array, source) for array, source in zip(arrays, sources, strict=True)]

    if posted == "before":
        post()
    for value in (1, 2):
        a.Isend(numbers(value), 1)
    ranks.settle()
    if posted == "after":
        post()
        ranks.settle()
    assert [int(array[0]) for array in arrays] == [1, 2]


def test_a_receive_from_a_rank_takes_no_other_ranks_message():
    ranks = Ranks(3)
    _, _, seen = jobs(
        ranks,
        rank0=sends(ranks.comms[0], numbers(10), dest=2, after=5.0),
        rank1=sends(ranks.comms[1], numbers(11), dest=2),
        rank2=receives(ranks.comms[2], 0, 1),
    )
    assert seen == [10, 11]


def duplicate(comm):
    return Communicator(comm.backend.dup())


def test_tags_and_groups_are_apart():
    ranks = Ranks(2)
    a, b = ranks.comms
    a2, b2 = duplicate(a), duplicate(b)
    a3, b3 = duplicate(a), duplicate(b)
    a4, b4 = duplicate(a2), duplicate(b2)
    other = ranks.fabric.communicators()
    ends = [(a, b), (a2, b2), (a3, b3), (a4, b4), tuple(other)]
    values = itertools.count(1)
    expected = []
    for (source, _), tag in itertools.product(ends, (0, 1)):
        expected.append(next(values))
        source.Isend(numbers(expected[-1]), 1, tag)
    received = []
    for (_, dest), tag in itertools.product(ends, (0, 1)):
        received.append(np.zeros(1, np.uint8))
        dest.Irecv(received[-1], ANY_RANK, tag)
    ranks.settle()
    assert [int(array[0]) for array in received] == expected


@seeded
@given(seed=st.integers(0, 2**32), n=st.integers(2, 5), count=st.integers(1, 30))
def test_every_message_is_received_once(seed, n, count):
    """Short and long, plain and synchronous, to and from random ranks, with receives from a rank and from any."""
    random = np.random.default_rng(seed)
    ranks = Ranks(n, network_of(bandwidth="1 kbit", eager_bytes=4), random=random)
    sent = [(int(random.integers(n)), int(random.integers(n)), int(random.integers(1, 9))) for _ in range(count)]

    def sender(rank):
        comm, sending = ranks.comms[rank], []
        for number, (source, dest, size) in enumerate(sent):
            if source == rank:
                yield Delay(random.exponential(1e-3))
                send = comm.Issend if random.random() < 0.5 else comm.Isend
                sending.append(send(np.full(size, number, np.uint8), dest))
        yield sending

    def receiver(rank):
        """One receive a message, in the order of sending; all from any rank from some message on."""
        comm, arrays = ranks.comms[rank], []
        sources = [source for source, dest, _ in sent if dest == rank]
        turn = random.integers(len(sources) + 1)
        for source in [*sources[:turn], *[ANY_RANK] * (len(sources) - turn)]:
            yield Delay(random.exponential(1e-3))
            arrays.append(np.zeros(8, np.uint8))
            yield comm.Irecv(arrays[-1], source)
        return [int(array[0]) for array in arrays]

    received = [ranks.drivers[rank].start(receiver(rank)) for rank in range(n)]
    ranks.finish([sender(rank) for rank in range(n)])
    ranks.settle()
    for rank in range(n):
        assert sorted(received[rank].value) == [k for k, (_, dest, _) in enumerate(sent) if dest == rank]
        for source in range(n):
            pair = [k for k in received[rank].value if sent[k][0] == source]
            assert pair == sorted(pair)
    assert ranks.fabric.under_way == {}


# ---- probes


@pytest.mark.parametrize("size", [1, 1000])
def test_probes_see_what_has_arrived(size):
    """A short message, or word of a long one."""
    ranks = Ranks(2, network_of(latency="5 s", eager_bytes=100))
    a, b = ranks.comms

    def probes():
        seen = []
        for _ in range(3):
            seen.append([b.Iprobe(0, 0), b.Iprobe(ANY_RANK, 0), b.Iprobe(0, 1), b.Iprobe(1, 0)])
            yield Delay(3.0)
        yield b.Irecv(np.zeros(size, np.uint8), 0)
        seen.append(b.Iprobe(ANY_RANK, 0))
        return seen

    _, seen = jobs(ranks, rank0=sends(a, np.zeros(size, np.uint8)), rank1=probes())
    no, yes = [False] * 4, [True, True, False, False]
    assert seen == [no, no, yes, False]


def test_probes_see_nothing_that_a_posted_receive_takes():
    ranks = Ranks(2)
    a, b = ranks.comms
    b.Irecv(np.zeros(1, np.uint8), 0)
    a.Isend(numbers(1), 1)
    ranks.settle()
    assert not b.Iprobe(0, 0) and not b.Iprobe(ANY_RANK, 0)


# ---- when a send is complete, and what it carries


def test_a_short_message_is_copied_when_it_is_sent():
    ranks = Ranks(2, network_of(latency="1 s"))
    x, y = numbers(1), numbers(0)
    sending = ranks.comms[0].Isend(x, 1)
    assert sending.Test()
    x[:] = 9
    ranks.comms[1].Irecv(y, 0)
    ranks.settle()
    assert y == 1


@pytest.mark.parametrize("written, content", [(1.0, 9), (6.5, 9), (7.5, 1)])
def test_a_long_message_is_copied_when_its_last_byte_has_left(written, content):
    """So that who writes to a buffer too early is found out: 5 bytes leave from 2 s, when the receive is posted."""
    ranks = Ranks(2, network_of(**SECOND | {"latency": "1 s"}))
    x = np.full(5, 1, np.uint8)

    def writes():
        sending = ranks.comms[0].Isend(x, 1)
        yield Delay(written)
        assert sending.Test() == (written > 7)
        x[:] = 9

    _, seen = jobs(ranks, rank0=writes(), rank1=receives(ranks.comms[1], 0, size=5, after=2.0))
    assert seen == [content]
    assert ranks.env.now == pytest.approx(8)


def test_a_long_message_leaves_when_a_receive_is_posted():
    """5 s for 5 bytes and 1 s of latency, from the moment at which the receive was posted at 20 s."""
    ranks = Ranks(2, network_of(**SECOND | {"latency": "1 s"}))
    a, b = ranks.comms
    x, y = np.full(5, 1, np.uint8), np.zeros(5, np.uint8)

    def receiver():
        yield Delay(20.0)
        yield b.Irecv(y, 0)
        return ranks.env.now

    (left,), arrived = ranks.finish([times(ranks.drivers[0], a.Isend(x, 1)), receiver()])
    assert left == pytest.approx(25)
    assert arrived == pytest.approx(26)
    assert y.tolist() == [1] * 5


def test_a_short_message_arrives_before_a_receive_is_posted():
    ranks = Ranks(2, network_of(**SECOND))
    y = np.zeros(4, np.uint8)

    def receiver():
        yield Delay(20.0)
        yield ranks.comms[1].Irecv(y, 0)
        return ranks.env.now

    (left,), arrived = ranks.finish([times(ranks.drivers[0], ranks.comms[0].Isend(numbers(1, 2, 3, 4), 1)), receiver()])
    assert (left, arrived) == (0.0, 20.0)
    assert y.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("size", [4, 5])
def test_a_synchronous_send_completes_after_the_receipt(size):
    """One latency later, however short the message; the receive is posted at 20 s."""
    ranks = Ranks(2, network_of(**SECOND | {"latency": "1 s"}))
    a, b = ranks.comms
    y = np.zeros(size, np.uint8)

    def receiver():
        yield Delay(20.0)
        yield b.Irecv(y, 0)
        return ranks.env.now

    (done,), received = ranks.finish([times(ranks.drivers[0], a.Issend(np.ones(size, np.uint8), 1)), receiver()])
    assert received == pytest.approx(20 if size == 4 else 26)
    assert done == pytest.approx(received + 1)
    assert y.tolist() == [1] * size


def test_a_synchronous_send_to_a_rank_that_does_not_receive_never_completes():
    ranks = Ranks(2)
    sending = ranks.comms[0].Issend(numbers(1), 1)
    ranks.settle()
    assert not sending.Test()


def test_messages_to_oneself():
    """They take no port's bandwidth, whatever their size."""
    ranks = Ranks(1, network_of(**SECOND | {"eager_bytes": 4}))
    (comm,) = ranks.comms

    def schedule():
        short, long = np.zeros(1, np.uint8), np.zeros(5, np.uint8)
        yield comm.Isend(numbers(7), 0), comm.Irecv(short, 0)
        yield comm.Irecv(long, ANY_RANK), comm.Issend(np.full(5, 8, np.uint8), 0)
        return short.tolist(), long.tolist(), ranks.env.now

    assert ranks.finish([schedule()]) == [([7], [8] * 5, 0.0)]


def test_a_shorter_message_fills_the_beginning_of_a_buffer():
    ranks = Ranks(2)
    y = np.full(4, 9, np.uint8)
    ranks.comms[1].Irecv(y, 0)
    ranks.comms[0].Isend(numbers(1, 2), 1)
    ranks.settle()
    assert y.tolist() == [1, 2, 9, 9]


def test_bytes_are_bytes():
    """What is sent as one type may be received as another."""
    ranks = Ranks(2)
    y = np.zeros(16, np.uint8)
    ranks.comms[1].Irecv(y, 0)
    ranks.comms[0].Isend(np.array([1.5]), 1)
    ranks.settle()
    assert y[:8].view(np.float64)[0] == 1.5


@pytest.mark.parametrize("posted", ["before", "after"])
def test_a_message_too_long_for_its_buffer(posted):
    ranks = Ranks(3)
    expected = "rank 2 sends 5 bytes with tag 7 to rank 1, which has room for 4"

    def receiver():
        yield Delay(0.0 if posted == "before" else 2.0)
        yield ranks.comms[1].Irecv(np.zeros(4, np.uint8), 2, 7)

    with pytest.raises(RuntimeError, match=expected):
        jobs(ranks, rank1=receiver(), rank2=sends(ranks.comms[2], np.zeros(5, np.uint8), tag=7, after=1.0))


def test_no_link():
    link = [{"from": 0, "to": 1}, {"from": 0, "to": 3}, {"from": 1, "to": 2}]
    ranks = Ranks(4, network_of(medium="links", link=link, name="net.toml"))
    with pytest.raises(MissingLink, match="net.toml: no link from rank 0 to rank 2; links from 0: 1, 3"):
        jobs(ranks, rank0=sends(ranks.comms[0], numbers(1), dest=2))


# ---- arrays without content


def test_arrays_without_content_carry_their_prefixes():
    ranks = Ranks(2)
    x, y = ShapeOnlyArray(1000, np.uint8), ShapeOnlyArray(1000, np.uint8)
    x[:8].view(np.int64)[0] = 77
    ranks.comms[0].Isend(x, 1)
    x[:8].view(np.int64)[0] = 0
    message = ranks.comms[1].Irecv(y, 0)
    ranks.settle()
    assert message.Test()
    assert y[:8].view(np.int64)[0] == 77
    assert ranks.comms[0].traffic.sent[1] == 1000


def test_no_content_for_a_buffer_with_content():
    ranks = Ranks(2)
    ranks.comms[0].Isend(ShapeOnlyArray(100, np.uint8), 1)
    ranks.comms[1].Irecv(np.zeros(100, np.uint8), 0)
    with pytest.raises(TypeError, match="without content"):
        ranks.settle()


# ---- broadcasts


@pytest.mark.parametrize("multicast", [True, False])
@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_broadcast_by_the_library(multicast, size, root, n):
    if root >= n:
        root = 0
    ranks = Ranks(n, network_of(**SECOND | {"latency": "1 s"}, multicast=multicast))

    def rounds(comm):
        seen = []
        for value in (1, 2):
            x = np.full(size, value if comm.rank == root else 0, np.uint8)
            yield comm.Ibcast(x, root)
            seen.append(x.tolist())
        return seen, ranks.env.now

    results = ranks.finish([rounds(comm) for comm in ranks.comms])
    for seen, _ in results:
        assert seen == [[1] * size, [2] * size]
    for comm in ranks.comms:
        assert comm.traffic.sent_once == (2 * size if comm.rank == root else 0) or n == 1
        assert comm.traffic.sent.sum() == (2 * size * (n - 1) if comm.rank == root else 0)
    if n > 1:
        copies = 1 if multicast else n - 1
        assert max(time for _, time in results) >= 2 * size * copies


def test_a_long_broadcast_waits_for_all_receives():
    ranks = Ranks(3, network_of(**SECOND | {"latency": "1 s"}, multicast=True))
    x = np.full(5, 1, np.uint8)

    def root():
        yield ranks.comms[0].Ibcast(x)
        x[:] = 9  # allowed from now on
        return ranks.env.now

    def other(comm, after):
        y = np.zeros(5, np.uint8)
        yield Delay(after)
        yield comm.Ibcast(y)
        return ranks.env.now, y.tolist()

    left, first, second = ranks.finish([root(), other(ranks.comms[1], 3.0), other(ranks.comms[2], 10.0)])
    assert left == pytest.approx(15)
    assert first == second == (pytest.approx(16), [1] * 5)


def test_a_short_broadcast_waits_for_nobody():
    ranks = Ranks(2, network_of(**SECOND))

    def root():
        x = numbers(1, 2)
        yield ranks.comms[0].Ibcast(x)
        x[:] = 9
        return ranks.env.now

    def other():
        y = numbers(0, 0)
        yield Delay(10.0)
        yield ranks.comms[1].Ibcast(y)
        return ranks.env.now, y.tolist()

    assert ranks.finish([root(), other()]) == [0.0, (10.0, [1, 2])]


def test_broadcasts_of_several_groups_and_roots_are_apart():
    ranks = Ranks(3, random=np.random.default_rng(5))
    duplicates = [duplicate(comm) for comm in ranks.comms]

    def rank(number):
        arrays = [np.full(2, 10 * number + k, np.uint8) for k in range(4)]
        comm, duplicate = ranks.comms[number], duplicates[number]
        yield [
            comm.Ibcast(arrays[0], 0),
            duplicate.Ibcast(arrays[1], 1),
            comm.Ibcast(arrays[2], 2),
            duplicate.Ibcast(arrays[3], 0),
        ]
        return [int(array[0]) for array in arrays]

    assert ranks.finish([rank(k) for k in range(3)]) == [[0, 11, 22, 3]] * 3


# ---- reductions


@pytest.mark.parametrize("variant", ALLREDUCE)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("eager_bytes", [0, 65536])
def test_allreduce(variant, n, eager_bytes):
    """The same sums on all ranks, whatever the order of arrivals."""
    xs = np.random.default_rng(n).standard_normal((n, 1001))
    results = []
    for seed, scale in enumerate((0.5, 1.0, 2.0)):
        ranks = Ranks(n, network_of(eager_bytes=eager_bytes), random=np.random.default_rng(seed))
        mine = xs.copy()
        ranks.finish([ALLREDUCE[variant](comm, x, scale=scale) for comm, x in zip(ranks.comms, mine, strict=True)])
        assert (mine == mine[0]).all()
        results.append(mine[0] / (scale if n > 1 else 1))
    np.testing.assert_allclose(results[0], xs.sum(0), atol=1e-12)
    assert (results == results[0]).all()


def test_several_allreduces_of_the_library_at_once():
    ranks = Ranks(3, random=np.random.default_rng(2))

    def rank(comm):
        arrays = [np.full(10, comm.rank + k, float) for k in range(3)]
        yield [comm.Iallreduce(array) for array in arrays]
        return [array[0] for array in arrays]

    assert ranks.finish([rank(comm) for comm in ranks.comms]) == [[3.0, 6.0, 9.0]] * 3
    assert ranks.comms[0].traffic.sent[1] > 0


# ---- schedules


def test_background_schedules_go_on_behind_a_computation():
    ranks = Ranks(2, network_of(latency="1 s"))
    driver = ranks.drivers[0]
    driver.compute_seconds = lambda rank, step: 10.0 + step

    def echo(comm, dest, rounds):
        x = np.zeros(1)
        for _ in range(rounds):
            yield comm.Isend(x, dest), comm.Irecv(x, dest)
        return ranks.env.now

    def trains():
        exchange = driver.start(echo(ranks.comms[0], 1, 5))
        first, second = Compute(lambda: "loss"), Compute(lambda: "loss")
        yield first
        yield second
        return exchange.Test(), exchange.value, first.seconds, second.seconds, second.value, ranks.env.now

    result, _ = ranks.finish([trains(), echo(ranks.comms[1], 0, 5)])
    assert result == (True, 5.0, 10.0, 11.0, "loss", 21.0)
    assert driver.wait_seconds == 0


def test_waiting_counts_in_the_foreground_only():
    ranks = Ranks(2, network_of(latency="3 s"))
    driver = ranks.drivers[0]

    def background():
        yield ranks.comms[0].Irecv(np.zeros(1), 1, 1)

    def waits():
        driver.start(background())
        yield Delay(1.0)
        yield ranks.comms[0].Irecv(np.zeros(1), 1)

    jobs(ranks, rank0=waits(), rank1=sends(ranks.comms[1], np.zeros(1), dest=0))
    assert driver.wait_seconds == pytest.approx(2.0)


def test_states_of_a_rank_are_seen_as_soon_as_they_change():
    ranks = Ranks(1)
    (driver,) = ranks.drivers
    signal, state = Signal("go"), []
    order = []

    def first():
        yield Until(lambda: state, "a state")
        order.append(("first", ranks.env.now))
        signal.set()

    def second():
        yield signal
        order.append(("second", ranks.env.now))
        return 5

    handles = driver.start(first()), driver.start(second())

    def main():
        yield Delay(4.0)
        state.append(1)
        yield handles
        return handles[1].value

    assert ranks.finish([main()]) == [5]
    assert order == [("first", 4.0), ("second", 4.0)]


def test_two_schedules_may_wait_for_the_same():
    ranks = Ranks(2, network_of(latency="1 s"))
    message = ranks.comms[1].Irecv(np.zeros(1), 0)
    handles = [ranks.drivers[1].start(times(ranks.drivers[1], message)) for _ in range(3)]
    ranks.comms[0].Isend(np.zeros(1), 1)
    ranks.settle()
    assert [handle.value for handle in handles] == [[1.0]] * 3


def test_each_rank_has_its_random_stream():
    """As if it had a process of its own, whatever the others draw in between."""
    def draws(ranks, count):
        for _ in range(count):
            compute = Compute(lambda: torch.rand(1).item())
            yield compute
            ranks.append(compute.value)

    streams = []
    for counts in ((3, 0), (3, 2)):
        job = Ranks(2)
        for seed, driver in enumerate(job.drivers):
            driver.random_state = torch.Generator().manual_seed(seed).get_state()
        streams.append([[], []])
        job.finish([draws(stream, count) for stream, count in zip(streams[-1], counts, strict=True)])
    assert streams[0][0] == streams[1][0]
    assert len(set(streams[0][0])) == 3
    assert streams[1][0][:2] != streams[1][1]


# ---- what goes wrong


def test_a_deadlock_names_who_waits_for_what():
    ranks = Ranks(3)

    def waits(comm, source):
        yield Delay(2.0)
        yield comm.Irecv(np.zeros(1), source, 3)

    with pytest.raises(Deadlock) as caught:
        jobs(ranks, rank0=waits(ranks.comms[0], 1), rank2=waits(ranks.comms[2], ANY_RANK))
    assert str(caught.value) == (
        "no rank can go on at 2 s: rank 0 waits for receive from rank 1 (8 bytes, tag 3); "
        "rank 2 waits for receive from any rank (8 bytes, tag 3)"
    )


def test_a_deadlock_of_many_ranks_names_some():
    ranks = Ranks(9)
    with pytest.raises(Deadlock) as caught:
        ranks.finish([times(driver, Signal("news")) for driver in ranks.drivers])
    assert str(caught.value).endswith("rank 4 waits for news; and 4 more")


def test_a_deadlock_in_the_background_says_so():
    ranks = Ranks(1)
    (driver,) = ranks.drivers

    def gossip():
        yield Signal("a word from rank 1")

    with pytest.raises(Deadlock, match="rank 0 waits for background schedule gossip, which waits for a word from rank"):
        ranks.finish([times(driver, driver.start(gossip()))])


@pytest.mark.parametrize("background", [False, True])
def test_what_a_rank_raises_carries_its_number(background):
    ranks = Ranks(2)

    def fails():
        yield Delay(1.5)
        raise ValueError("no")

    def starts():
        yield ranks.drivers[1].start(fails())

    with pytest.raises(ValueError, match="no") as caught:
        jobs(ranks, rank1=starts() if background else fails())
    assert caught.value.__notes__ == ["on simulated rank 1 at 1.5 s"]


def test_tree_broadcast():
    ranks = Ranks(6, random=np.random.default_rng(0))
    arrays = [np.full(100, comm.rank) for comm in ranks.comms]
    ranks.finish([broadcast(comm, x) for comm, x in zip(ranks.comms, arrays, strict=True)])
    assert not np.any(arrays)


@pytest.mark.parametrize("nbytes, short", [(99, True), (100, True), (101, False)])
def test_messages_up_to_the_limit_are_stored(nbytes, short):
    """And may be written to at once, whether or not they are received."""
    ranks = Ranks(3, network_of(eager_bytes=100))
    array = np.ones(nbytes, np.uint8)
    found = []

    def posts():
        sent = [ranks.comms[0].Isend(array, 1), ranks.comms[0].Ibcast(array)]
        found.extend(message.Test() for message in sent)
        array[:] = 2
        yield sent

    def takes(rank):
        got = [np.zeros(nbytes, np.uint8) for _ in range(1 + (rank == 1))]
        yield Delay(1.0)
        if rank == 1:
            yield ranks.comms[rank].Irecv(got[1], 0)
        yield ranks.comms[rank].Ibcast(got[0])
        return [set(each.tolist()) for each in got]

    values = ranks.finish([posts(), takes(1), takes(2)])[1:]
    assert found == [short] * 2
    assert all(each == ({1} if short else {2}) for value in values for each in value)


def test_an_exchange_ends_when_what_it_sends_may_be_written():
    """Along a directed ring, round which the receiver is late and the source is not."""
    ranks = Ranks(3, network_of(eager_bytes=0))
    models = [numbers(rank + 1, rank + 1) for rank in range(3)]
    incoming = [np.zeros(2, np.uint8) for _ in range(3)]

    def rank(i):
        yield Delay(float(i == 1))
        yield from neighbour_exchange(ranks.comms[i], models[i], [(i + 1) % 3], {(i - 1) % 3: incoming[i]})
        models[i][:] = 0

    ranks.finish([rank(i) for i in range(3)])
    assert [array.tolist() for array in incoming] == [[3, 3], [1, 1], [2, 2]]


@pytest.mark.parametrize("amount", [1.0, 0.5, 3.0])
def test_a_computation_takes_its_amount_of_time(amount):
    """1 is a gradient."""
    ranks = Ranks(1, driver=lambda env, rank: SimulatedDriver(env, rank, lambda rank, step: 2.0))
    compute = Compute(lambda: "done", amount)
    assert ranks.finish([times(ranks.drivers[0], compute)]) == [[2.0 * amount]]
    assert compute.seconds == 2.0 * amount and compute.value == "done"
