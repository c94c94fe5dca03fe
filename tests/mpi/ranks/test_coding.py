"""The schemes that add up blocks of a gradient, on real MPI: sums, bytes, late packets, and groups made and freed."""

import re
import time
from functools import partial

import numpy as np
import pytest

from coding.cost import Cost, cost_in_bytes
from coding.fixed_point import FixedPoint
from coding.plan import packet_plan
from grsgd.comm.coded.multicast import TRANSPORTS
from grsgd.comm.coded.schemes import SCHEMES
from grsgd.comm.coded.without_redundancy import LocalSum, PerBlock
from grsgd.comm.driver import MpiDriver, WaitTimeout
from tests.support.random_blocks import fill

KINDS = SCHEMES | {
    "paper": partial(SCHEMES["coded"], enumeration="paper"),
    "per-block": PerBlock,
    "local-sum": LocalSum,
}
LATE = 1
"""The rank that comes late."""


def make(comm, kind, transport, r, length):
    transport = TRANSPORTS[transport](comm)
    return KINDS[kind](transport, comm.size, r, comm.rank, length, FixedPoint(), np.empty)


def cost_of(kind, n, r, length) -> Cost:
    """What `coding.cost` says; the paper's enumeration, which it leaves out, by its plan."""
    if kind != "paper":
        return cost_in_bytes("ssgd-multicast" if kind == "local-sum" else kind, n, r, length)
    size = 4 * -(-length // r)
    receivers = [[packet.receivers for packet in packet_plan(n, r, "paper").sent(rank)] for rank in range(n)]
    return Cost(
        tuple(size * len(own) for own in receivers),
        tuple(size * sum(map(len, own)) for own in receivers),
        tuple(size * sum(rank in each for own in receivers for each in own) for rank in range(n)),
        tuple(map(len, receivers)),
    )


def check(comm, driver, kind, transport, r, length, steps=3):
    """Some steps of one scheme: all totals are right, and the bytes are those of `coding.cost`."""
    n, rank = comm.size, comm.rank
    scheme = make(comm, kind, transport, r, length)
    sent, sent_once = comm.traffic.sent.copy(), comm.traffic.sent_once
    scheme.open()
    for step in range(steps):
        expected = fill(scheme, kind, (n, r, length, step))
        driver.run(scheme.add_up())
        np.testing.assert_array_equal(scheme.total, expected)
        assert not scheme.overflow
    scheme.close()
    sent, sent_once = comm.traffic.sent - sent, comm.traffic.sent_once - sent_once
    received = np.zeros_like(sent)
    comm.backend.mpi.Allreduce(sent, received)
    assert sent[rank] == 0
    cost = cost_of(kind, n, r, length).times(steps)
    assert sent.sum() == cost.copies[rank]
    assert received[rank] == cost.received[rank]
    assert sent_once == (cost.sent if transport == "multicast" else cost.copies)[rank]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", KINDS)
def test_totals_and_bytes(comm, driver, kind, transport):
    """For every redundancy, of long vectors and of some that cannot be cut evenly."""
    for r in range(1, comm.size + 1):
        for length in (60 * 1000, 61, 2):
            check(comm, driver, kind, transport, r, length)


@pytest.mark.parametrize("kind", KINDS)
def test_packets_longer_than_mpi_sends_at_once(comm, kind):
    driver = MpiDriver(comm.rank, timeout=20, progress_mode="inline")
    check(comm, driver, kind, "multicast", min(2, comm.size), 1_000_001, steps=1)


@pytest.mark.parametrize(
    "kind, transport", [("coded", "multicast"), ("coded", "unicast"), ("grouped-direct", "multicast")]
)
def test_ranks_at_different_paces(comm, driver, kind, transport):
    """Whoever is ahead: a packet of one step is never taken for one of another."""
    random = np.random.default_rng(comm.rank)
    scheme = make(comm, kind, transport, min(2, comm.size), 1000)
    scheme.open()
    for step in range(40):
        expected = fill(scheme, kind, step)
        if random.random() < 0.2:
            time.sleep(0.003)
        driver.run(scheme.add_up())
        assert (scheme.total == expected).all()
    scheme.close()


class Keeping:
    """A transport that keeps all messages, and with them the arrays that they are to arrive in."""

    def __init__(self, transport):
        self.transport, self.messages = transport, []

    def __getattr__(self, name):
        return getattr(self.transport, name)

    def keep(self, messages, content):
        self.messages += [(message, content) for message in messages]
        return messages

    def send(self, packet, content):
        return self.keep(self.transport.send(packet, content), content)

    def receive(self, packet, content):
        return self.keep(self.transport.receive(packet, content), content)


@pytest.mark.ranks(2, 3, 4, 5)
@pytest.mark.parametrize(
    "kind, transport",
    [("coded", "multicast"), ("coded", "unicast"), ("grouped-direct", "multicast"), ("local-sum", "unicast")],
)
def test_a_late_packet_is_an_error_that_names_it(world, comm, kind, transport):
    """One rank does not take part for longer than the others have patience; in the end its packets do come."""
    r = min(2, comm.size - 1) if kind == "coded" else 1  # with which everybody lacks something of the late one's
    scheme = make(comm, kind, transport, r, 100)
    scheme.transport = Keeping(scheme.transport)
    scheme.open()
    expected = fill(scheme, kind, 0)

    def meet():
        yield world.Ibarrier()  # on a communicator of its own: the late rank comes to it first

    patient = MpiDriver(comm.rank, timeout=20, progress_mode="inline")
    patient.run(meet())
    error = None
    if comm.rank != LATE:
        driver = MpiDriver(comm.rank, timeout=1, progress_mode="inline")
        try:
            driver.run(scheme.add_up())
        except WaitTimeout as timeout:
            error = timeout
    patient.run(meet())

    def rest():
        for message, _ in scheme.transport.messages:
            yield message

    patient.run(scheme.add_up() if comm.rank == LATE else rest())
    scheme.close()
    if comm.rank == LATE:
        assert (scheme.total == expected).all()
        return
    found = re.fullmatch(
        rf"rank {comm.rank} waited 1 s for packet \d+ of rank (\d) in group \{{([\d, ]+)\}}: "
        r"(receive from|broadcast from|broadcast to|send to) (?:rank (\d)|any rank) \(\d+ bytes, tag \d+\)",
        str(error),
    )
    assert found, error
    sender, group, verb, peer = found.groups()
    assert {LATE, comm.rank} <= set(map(int, group.split(", "))), error
    if verb.endswith("from"):
        assert sender == peer, error
    if transport == "unicast":  # a broadcast may go by way of the rank that is late
        assert int(sender) == LATE, error


@pytest.mark.parametrize("kind", ["coded", "uncoded", "grouped-direct", "grouped-rs"])
def test_groups_are_made_and_freed_again_and_again(comm, driver, kind):
    """Were they not freed, MPI would run out of communicators, of which MPICH has 2048."""
    r = min(2, comm.size)
    for k in range(50):
        scheme = make(comm, kind, "multicast", r, 50)
        scheme.open()
        expected = fill(scheme, kind, k)
        driver.run(scheme.add_up())
        assert (scheme.total == expected).all()
        scheme.close()
        assert scheme.transport.groups == {}


@pytest.mark.ranks(3, 4, 5)
def test_subsets(comm, driver):
    """Of consecutive ranks: own ranks and messages, counted under the ranks of all."""
    n, rank = comm.size, comm.rank
    pairs = [(k, k + 1) for k in range(n - 1)]
    parts = {pair: comm.subset(pair) for pair in pairs if rank in pair}

    def talk():
        for pair, part in parts.items():
            assert (part.rank, part.size, part.members) == (pair.index(rank), 2, pair)
            x = np.full(10, float(rank))
            if part.rank == 0:
                message = part.Isend(x, 1, 5)
                assert str(message) == f"send to rank {pair[1]} (80 bytes, tag 5)"
            else:
                message = part.Irecv(x, 0, 5)
                assert str(message) == f"receive from rank {pair[0]} (80 bytes, tag 5)"
            yield message
            assert (x == pair[0]).all()

    driver.run(talk())
    expected = np.zeros(n)
    expected[rank + 1 :][:1] = 80
    assert (comm.traffic.sent == expected).all()
    assert comm.traffic.sent_once == expected.sum()
    for part in parts.values():
        assert part.traffic is comm.traffic
        part.free()
