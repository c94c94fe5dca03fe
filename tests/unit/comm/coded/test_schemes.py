"""The schemes that add up blocks, on simulated ranks: sums, bytes, overflow, and packets that never come."""

import itertools
import re
from collections import Counter
from functools import partial
from math import comb
from types import SimpleNamespace

import numpy as np
import pytest

from coding.cost import Cost, cost_in_bytes
from coding.fixed_point import TOP, FixedPoint
from coding.plan import packet_plan
from grsgd.comm.coded.multicast import TRANSPORTS, Multicast, Unicast
from grsgd.comm.coded.scheme import MAX_PACKETS_IN_FLIGHT
from grsgd.comm.coded.schemes import SCHEMES
from grsgd.comm.coded.without_redundancy import LocalSum, PerBlock
from grsgd.simulator.driver import Deadlock
from grsgd.testing.simulated import Ranks, network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.random_blocks import SUMS_ARE_SENT

KINDS = SCHEMES | {
    "paper": partial(SCHEMES["coded"], enumeration="paper"),
    "per-block": PerBlock,
    "local-sum": LocalSum,
}
CASES = [(n, r) for n in range(1, 8) for r in range(1, n + 1)]
LIMIT = 10.0
LENGTH = 23
"""At least one word for everybody, and some more for some."""
ALL_TOGETHER = [
    (kind, transport, n, r)
    for kind in KINDS
    for transport in TRANSPORTS
    for n, r in CASES
    if kind != "paper" or n <= 6
]
in_all_cases = pytest.mark.parametrize(
    "kind, transport, n, r", exhaustive_unless(lambda kind, transport, n, r: n < 5 or (n, r) == (5, 3), ALL_TOGETHER)
)


class CountingTransport:
    """Counts sends; as a mix-in."""

    sends = 0

    def send(self, packet, content):
        self.sends += 1
        return super().send(packet, content)


COUNTING = {name: type(f"Counting{cls.__name__}", (CountingTransport, cls), {}) for name, cls in TRANSPORTS.items()}


class SchemeJob:
    """A scheme on n simulated ranks."""

    def __init__(self, kind, transport, n, r, length=LENGTH, random=None, spec=None, limit=LIMIT):
        self.n, self.length = n, length
        transports = [COUNTING[transport]] * n if isinstance(transport, str) else transport
        self.ranks = Ranks(n, spec, random)
        self.transports = [cls(comm) for cls, comm in zip(transports, self.ranks.comms, strict=True)]
        self.schemes = [
            KINDS[kind](transport, n, r, rank, length, FixedPoint(limit), np.empty)
            for rank, transport in enumerate(self.transports)
        ]
        (self.num_blocks,) = {scheme.num_blocks for scheme in self.schemes}
        for scheme in self.schemes:
            scheme.open()

    def add_up(self, blocks):
        """All ranks' totals of ``blocks``, int32 of shape [shares, length], one after the other below each other."""
        assert blocks.shape == (self.num_blocks, self.length)
        for scheme in self.schemes:
            scheme.block_buffers.fill(12345)
            for k, block in enumerate(scheme.blocks):
                scheme.block_buffer(k)[:] = blocks[block]
        self.ranks.finish([scheme.add_up() for scheme in self.schemes])
        return np.array([scheme.total.copy() for scheme in self.schemes])

    def rows(self):
        return [scheme.block_buffers.copy() for scheme in self.schemes]

    @property
    def traffic(self):
        return [comm.traffic for comm in self.ranks.comms]


def blocks_of(job, kind, random):
    """Random blocks; of the full range of int32 unless sums are sent, so that nearly every partial sum wraps round."""
    top = 2**31 // job.num_blocks if kind in SUMS_ARE_SENT else 2**31
    return random.integers(-top, top, (job.num_blocks, job.length)).astype(np.int32)


def cost_of(kind, transport, n, r, length) -> Cost:
    """What `coding.cost` says; the paper's enumeration, which it leaves out, by its plan."""
    if kind == "paper":
        plan, size = packet_plan(n, r, "paper"), 4 * -(-length // r)
        sent = [list(plan.sent(rank)) for rank in range(n)]
        received = [sum(rank in packet.receivers for own in sent for packet in own) for rank in range(n)]
        return Cost(
            tuple(size * len(own) for own in sent),
            tuple(size * sum(len(packet.receivers) for packet in own) for own in sent),
            tuple(size * count for count in received),
            tuple(map(len, sent)),
        )
    # One send a packet, whichever transport: only of the multicast's cost `sent` counts it once.
    return cost_in_bytes({"local-sum": "ssgd-multicast"}.get(kind, kind), n, r, length)


# ---- sums


@in_all_cases
def test_totals_are_plain_sums(kind, transport, n, r):
    """Whichever message overtakes which, step after step, for any length."""
    for length in (LENGTH, 12, 2):
        random = np.random.default_rng((n, r, length))
        job = SchemeJob(kind, transport, n, r, length, random)
        for _ in range(3 if length == LENGTH else 1):
            blocks = blocks_of(job, kind, random)
            expected = blocks.sum(0, dtype=np.int64)
            totals = job.add_up(blocks)
            assert totals.dtype == (np.int32 if (kind, n) == ("local-sum", 1) else np.int64)  # one block is its sum
            np.testing.assert_array_equal(totals, np.tile(expected, (n, 1)))
            if kind not in SUMS_ARE_SENT:
                for scheme, rows in zip(job.schemes, job.rows(), strict=True):
                    np.testing.assert_array_equal(rows, blocks[scheme.blocks].reshape(-1))
            assert not any(scheme.overflow for scheme in job.schemes)
        assert not job.ranks.fabric.under_way
        for scheme in job.schemes:
            scheme.close()


def test_random_blocks_do_wrap_round():
    """Or the test above would show little: most true totals have no place in int32."""
    job = SchemeJob("coded", "multicast", 5, 2)
    blocks = blocks_of(job, "coded", np.random.default_rng(0))
    expected = blocks.sum(0, dtype=np.int64)
    assert (np.abs(expected) > TOP).mean() > 0.3
    assert np.abs(job.add_up(blocks)).max() > TOP


@pytest.mark.parametrize("eager_bytes", [0, 65536])
@pytest.mark.parametrize("in_flight", exhaustive_unless(lambda count: count < 3, [1, 2, 3]))
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", KINDS)
def test_few_packets_at_a_time_suffice(kind, transport, in_flight, eager_bytes, monkeypatch):
    """Nobody waits for ever, even where a message leaves only when its receivers are ready."""
    monkeypatch.setattr("grsgd.comm.coded.scheme.MAX_PACKETS_IN_FLIGHT", in_flight)
    for n, r in [(2, 1), (3, 2), (4, 2), (5, 2), (5, 3)]:
        random = np.random.default_rng((n, r))
        spec = network_of(bandwidth="1 mbit", latency="1 ms", eager_bytes=eager_bytes)
        job = SchemeJob(kind, transport, n, r, random=random, spec=spec)
        assert all(len(scheme._spare) <= in_flight for scheme in job.schemes)
        for _ in range(2):
            blocks = blocks_of(job, kind, random)
            assert (job.add_up(blocks) == blocks.sum(0, dtype=np.int64)).all()


def test_large_packets_are_few_at_a_time(monkeypatch):
    """Memory for packets under way has a bound in bytes, or is that of one packet for each rank."""
    scheme = SchemeJob("coded", "multicast", 7, 3, length=60_000).schemes[0]
    assert len(scheme._spare) == MAX_PACKETS_IN_FLIGHT < len(scheme.packets), "packets of 80 KB are not large"
    monkeypatch.setattr("grsgd.comm.coded.scheme.MAX_BYTES_IN_FLIGHT", 4 * 12 * 3)
    assert {len(scheme._spare) for scheme in SchemeJob("coded", "multicast", 5, 2, length=24).schemes} == {5}
    monkeypatch.setattr("grsgd.comm.coded.scheme.MAX_BYTES_IN_FLIGHT", 4 * 12 * 7)
    job = SchemeJob("coded", "multicast", 5, 2, length=24)
    assert {len(scheme._spare) for scheme in job.schemes} == {7}
    assert SchemeJob("coded", "multicast", 5, 2, length=2400).schemes[0]._spare[0].size == 1200
    random = np.random.default_rng(0)
    blocks = blocks_of(job, "coded", random)
    assert (job.add_up(blocks) == blocks.sum(0, dtype=np.int64)).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_vector(kind, transport):
    job = SchemeJob(kind, transport, 4, 2, length=0)
    assert job.add_up(np.zeros((job.num_blocks, 0), np.int32)).shape == (4, 0)
    assert all(traffic.sent.sum() == traffic.sent_once == 0 for traffic in job.traffic)


# ---- who computes what


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"paper"}))
@pytest.mark.parametrize("n, r", CASES)
def test_blocks_and_samples(kind, n, r):
    """All blocks are computed, by as many ranks as the scheme says, and cut the batch into equal parts, or nearly."""
    job = SchemeJob(kind, "unicast", n, r)
    q = -(-n // r)
    copies = Counter(block for scheme in job.schemes for block in scheme.blocks)
    assert sorted(copies) == list(range(job.num_blocks))
    if kind.startswith("grouped"):
        assert job.num_blocks == q
        assert set(copies.values()) <= {n // q, -(-n // q)}
    else:
        assert job.num_blocks == comb(n, r)
        assert set(copies.values()) == {1 if kind in ("per-block", "local-sum") else r}
    for batch in (8 * job.num_blocks, 8 * job.num_blocks + job.num_blocks // 2):
        samples = {}
        for scheme in job.schemes:
            assert scheme.blocks == sorted(scheme.blocks)
            own = scheme.samples(batch)
            assert len(own) == len(scheme.blocks)
            for block, part in zip(scheme.blocks, own, strict=True):
                assert samples.setdefault(block, part) == part
        parts = [samples[block] for block in range(job.num_blocks)]
        assert (parts[0][0], parts[-1][1]) == (0, batch)
        assert all(left[1] == right[0] for left, right in zip(parts, parts[1:], strict=False))
        assert {end - begin for begin, end in parts} <= {8, 9}
    if kind in ("per-block", "local-sum"):
        counts = [len(scheme.blocks) for scheme in job.schemes]
        assert max(counts) - min(counts) <= 1


# ---- bytes


@in_all_cases
def test_counted_bytes_are_the_loads(kind, transport, n, r):
    for length in (420, 23, 29, 3):  # 420 is a multiple of all of 1 to 7
        job = SchemeJob(kind, transport, n, r, length)
        cost = cost_of(kind, transport, n, r, length)
        for step in (1, 2):
            job.add_up(np.zeros((job.num_blocks, length), np.int32))
            expected = cost.times(step)
            copies = [int(traffic.sent.sum()) for traffic in job.traffic]
            assert copies == list(expected.copies)
            assert np.sum([traffic.sent for traffic in job.traffic], axis=0).tolist() == list(expected.received)
            once = [traffic.sent_once for traffic in job.traffic]
            assert once == (list(expected.sent) if transport == "multicast" else copies)
            assert [counting.sends for counting in job.transports] == [step * count for count in cost.packets]
            assert all(traffic.sent[rank] == 0 for rank, traffic in enumerate(job.traffic))
            assert not any(traffic.headers.any() for traffic in job.traffic)
        if length >= n:  # else some packets are empty
            receivers = [
                sum(len(packet.receivers) for packet in scheme.packets if packet.sender == scheme.rank)
                for scheme in job.schemes
            ]
            assert [int(traffic.messages.sum()) for traffic in job.traffic] == [2 * count for count in receivers]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("n, r, factor", [(4, 2, 1), (5, 3, 4), (6, 3, 10), (6, 4, 39)])
def test_the_papers_enumeration_sends_repeats(transport, n, r, factor):
    job = SchemeJob("paper", transport, n, r, length=r)
    job.add_up(np.zeros((job.num_blocks, r), np.int32))
    assert sum(transport.sends for transport in job.transports) == factor * n * comb(n - 1, r)


def test_unicast_of_local_sums_is_the_load_of_its_name():
    job = SchemeJob("local-sum", "unicast", 4, 2)
    job.add_up(np.zeros((job.num_blocks, LENGTH), np.int32))
    cost = cost_in_bytes("ssgd-unicast", 4, 2, LENGTH)
    assert [traffic.sent_once for traffic in job.traffic] == list(cost.sent)


def test_a_network_with_multicast_carries_a_packet_once():
    """Counting is one thing; on the wire, too, a broadcast leaves a port once and reaches all receivers."""
    seconds = {}
    for transport in TRANSPORTS:
        job = SchemeJob("coded", transport, 4, 3, 30_000, spec=network_of(bandwidth="8 mbit", multicast=True))
        job.add_up(np.zeros((job.num_blocks, 30_000), np.int32))
        seconds[transport] = job.ranks.env.now
    # Each rank sends one packet of 40 kB to three: once is 40 ms, receiving three of them takes 120 ms.
    assert seconds["multicast"] == pytest.approx(0.12, rel=0.02)
    assert seconds["unicast"] == pytest.approx(0.12, rel=0.02)
    seconds = {}
    for transport in TRANSPORTS:
        job = SchemeJob("coded", transport, 4, 3, 30_000, spec=network_of(bandwidth="8 mbit", medium="shared"))
        job.add_up(np.zeros((job.num_blocks, 30_000), np.int32))
        seconds[transport] = job.ranks.env.now
    assert seconds["multicast"] == pytest.approx(4 * 0.04, rel=0.02)
    assert seconds["unicast"] == pytest.approx(4 * 0.12, rel=0.02)


# ---- range


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sums_beyond_the_range_are_noted(transport):
    """Four blocks of 6 in a range of 10: two of them make 12. The result is wrong, equally everywhere, and known."""
    encoded = np.empty(1, np.int32)
    FixedPoint(LIMIT).encode(np.array([6.0]), encoded)
    length = 12
    for kind, n, r, where in [("grouped-rs", 8, 2, length), ("local-sum", 2, 1, 0), ("local-sum", 4, 2, 2 * length)]:
        job = SchemeJob(kind, transport, n, r, length)
        blocks = np.full((job.num_blocks, length), encoded[0], np.int32)
        blocks[:, 0] = 1
        totals = job.add_up(blocks)
        assert (totals == totals[0]).all()
        assert (totals[:, 0] == job.num_blocks).all()
        beyond = [scheme.overflow for scheme in job.schemes]
        words = where * (length - 1) // length
        assert sum(each.count for each in beyond) == words
        assert {each.not_finite for each in beyond} == {0}
        assert {each.limit for each in beyond} == {LIMIT}
        largest = max(each.largest for each in beyond)
        if words:
            added = 4 if kind == "grouped-rs" else 2  # the ranks of local-sum have 1, 2, 1 and 2 of 6 blocks
            assert largest == pytest.approx(6 * added, rel=1e-6)
            assert any(f"beyond the range of 10: {each.count}" in str(each) for each in beyond)
        else:
            assert largest == 0
            assert (totals == 2 * blocks[0].astype(np.int64)).all()  # two sums that fit are added in int64
        again = job.add_up(blocks)
        assert (again == totals).all()
        assert sum(scheme.overflow.count for scheme in job.schemes) == 2 * words


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - SUMS_ARE_SENT))
def test_blocks_at_the_end_of_the_range_add_up(kind):
    """Where single blocks are sent nothing can be out of range."""
    job = SchemeJob(kind, "multicast", 5, 2)
    blocks = np.full((job.num_blocks, LENGTH), TOP, np.int32)
    assert (job.add_up(blocks) == job.num_blocks * TOP).all()
    assert not any(scheme.overflow for scheme in job.schemes)


# ---- packets that never come


def leaving_out(cls, wanting):
    """A transport that does not send its k-th packet if ``wanting(k)``; ``forgotten``: those packets."""

    class Forgetful(CountingTransport, cls):
        def __init__(self, comm):
            super().__init__(comm)
            self.forgotten = []

        def send(self, packet, content):
            if not wanting(self.sends):
                return super().send(packet, content)
            self.forgotten.append(packet)
            self.sends += 1
            return []

    return Forgetful


LOSSES = [
    (kind, transport, n, r, chosen)
    for kind in KINDS
    for transport in TRANSPORTS
    for n, r, chosen in [(2, 1, 0), (3, 1, 0), (4, 2, 0), (4, 2, 2), (5, 3, 1)]
    if cost_of(kind, transport, n, r, 24).packets[1] > chosen
    and not (kind == "paper" and r == 3)  # where a repeat may be lost
]


def lose(kind, transport, n, r, wanting):
    """Have rank 1 leave packets out; returns the first of them, and what is said of it."""
    transports = [TRANSPORTS[transport]] * n
    transports[1] = leaving_out(transports[1], wanting)
    random = np.random.default_rng(0)
    job = SchemeJob(kind, transports, n, r, 24, random)
    with pytest.raises(Deadlock) as caught:
        job.add_up(blocks_of(job, kind, random))
    forgotten = job.transports[1].forgotten
    first = forgotten[0]
    for receiver in first.receivers:
        assert f"rank {receiver} waits for packet" in str(caught.value), "one that lacks a packet has finished"
    return forgotten, str(caught.value)


@pytest.mark.parametrize("kind, transport, n, r, chosen", LOSSES)
def test_a_late_packet_is_named(kind, transport, n, r, chosen):
    """Rank 1 stops sending in the middle of a step."""
    forgotten, error = lose(kind, transport, n, r, lambda k: k >= chosen)
    names = {f"packet {p.number} of rank 1 in group {{{', '.join(map(str, p.group))}}}": p for p in forgotten}
    waits = re.findall(r"rank (\d) waits for (packet [^:]*): (?:receive|broadcast) from rank 1 \(", error)
    assert any(packet in names and int(rank) in names[packet].receivers for rank, packet in waits), error


@pytest.mark.parametrize("kind, transport, n, r, chosen", LOSSES)
def test_without_a_single_packet_its_receivers_do_not_finish(kind, transport, n, r, chosen):
    """Even if all later ones come."""
    _, error = lose(kind, transport, n, r, lambda k: k == chosen)
    assert re.search(r"waits for packet \d+ of rank 1 in group \{[\d, ]*1[\d, ]*\}", error)


def test_a_packets_name():
    for cls, how in [(Multicast, "broadcast from"), (Unicast, "receive from")]:
        job = SchemeJob("coded", [cls, leaving_out(cls, lambda k: k >= 0), cls, cls], 4, 2)
        with pytest.raises(Deadlock, match=rf"packet \d of rank 1 in group \{{\d, \d, \d\}}: {how} rank 1 \(48 bytes"):
            job.add_up(np.zeros((job.num_blocks, LENGTH), np.int32))


# ---- groups of ranks


def test_a_subset_counts_under_its_parents_ranks():
    ranks = Ranks(5)
    parts = [ranks.comms[rank].subset((1, 3, 4)) for rank in (1, 3, 4)]
    assert [part.rank for part in parts] == [0, 1, 2]
    assert {part.size for part in parts} == {3}
    assert {part.members for part in parts} == {(1, 3, 4)}
    x = np.arange(5.0)

    def at(rank):
        if rank not in (1, 3, 4):
            return
        part = parts[(1, 3, 4).index(rank)]
        content = x.copy() if rank == 3 else np.zeros(5)
        broadcast = part.Ibcast(content, 1)
        assert str(broadcast) == (
            "broadcast to any rank (40 bytes, tag 0)" if rank == 3 else "broadcast from rank 3 (40 bytes, tag 0)"
        )
        yield broadcast
        assert (content == x).all()
        if rank == 4:
            send = part.Isend(x, 0, 7)
            assert str(send) == "send to rank 1 (40 bytes, tag 7)"
            yield send
            yield part.Issend(x, 0, 7, header=8)
        if rank == 1:
            receive = part.Irecv(content, 2, 7)
            assert str(receive) == "receive from rank 4 (40 bytes, tag 7)"
            yield receive
            yield part.Irecv(content, 2, 7)

    ranks.finish([at(rank) for rank in range(5)])
    traffic = [comm.traffic for comm in ranks.comms]
    assert traffic[3].sent.tolist() == [0, 40, 0, 0, 40]
    assert traffic[3].messages.tolist() == [0, 1, 0, 0, 1]
    assert traffic[3].sent_once == 40
    assert traffic[4].sent.tolist() == [0, 72, 0, 0, 0]
    assert traffic[4].headers.tolist() == [0, 8, 0, 0, 0]
    assert traffic[4].sent_once == 72
    assert all(traffic[rank].sent.sum() == 0 for rank in (0, 1, 2))
    assert all(part.traffic is traffic[rank] for part, rank in zip(parts, (1, 3, 4), strict=True))


def test_an_allreduce_in_a_subset_counts_under_its_parents_ranks():
    ranks = Ranks(4)
    parts = {rank: ranks.comms[rank].subset((1, 2, 3)) for rank in (1, 2, 3)}

    def at(rank):
        if rank in parts:
            x = np.full(6, float(rank))
            yield parts[rank].Iallreduce(x)
            assert (x == 6).all()

    ranks.finish([at(rank) for rank in range(4)])
    assert [comm.traffic.sent.tolist() for comm in ranks.comms] == [
        [0, 0, 0, 0],
        [0, 0, 64, 0],
        [0, 0, 0, 64],
        [0, 64, 0, 0],
    ]


def test_a_subset_of_a_subset():
    ranks = Ranks(6)
    inner = {rank: ranks.comms[rank].subset((1, 3, 4, 5)).subset((1, 3)) for rank in (3, 5)}
    assert {part.members for part in inner.values()} == {(3, 5)}

    def at(rank):
        x = np.full(2, float(rank))
        if rank == 5:
            yield inner[5].Isend(x, 0)
        if rank == 3:
            yield inner[3].Irecv(x, 1)
            assert (x == 5).all()

    ranks.finish([at(rank) for rank in range(6)])
    assert ranks.comms[5].traffic.sent.tolist() == [0, 0, 0, 16, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_messages_of_different_subsets_do_not_mix(seed):
    """The same two ranks, the same tag, in three groups, two of them of the same ranks: whoever is asked first."""
    ranks = Ranks(3, random=np.random.default_rng(seed))
    order = np.random.default_rng(seed).permutation(4)

    def at(rank):
        comm = ranks.comms[rank]
        groups = [comm, comm.subset((0, 1)), comm.subset((0, 1)), comm.subset((0, 1, 2))]
        if rank == 0:
            yield [group.Isend(np.full(3, float(k)), 1) for k, group in enumerate(groups)]
            yield [group.Ibcast(np.full(3, float(10 + k)), 0) for k, group in enumerate(groups)]
        else:
            for k in order:
                x = np.zeros(3)
                yield groups[k].Irecv(x, 0)
                assert (x == k).all()
            for k in order:
                x = np.zeros(3)
                yield groups[k].Ibcast(x, 0)
                assert (x == 10 + k).all()

    def third():
        comm = ranks.comms[2]
        x = np.zeros(3)
        part = comm.subset((0, 1, 2))
        yield comm.Ibcast(x, 0), part.Ibcast(x, 0)

    ranks.finish([at(0), at(1), third()])


def test_groups_are_made_once_and_freed():
    """Only groups of three or more ranks that are not all of them need a communicator."""
    for n, r, expected in [(4, 2, comb(3, 2)), (4, 3, 0), (4, 1, 0), (6, 2, comb(5, 2))]:
        job = SchemeJob("coded", "multicast", n, r)
        for scheme in job.schemes:
            made = [comm for comm in scheme.transport.groups.values() if comm is not scheme.transport.comm]
            assert len(made) == expected
        before = [dict(scheme.transport.groups) for scheme in job.schemes]
        for _ in range(2):
            job.add_up(np.zeros((job.num_blocks, LENGTH), np.int32))
        assert [scheme.transport.groups for scheme in job.schemes] == before
        for scheme in job.schemes:
            freed = []
            for comm in scheme.transport.groups.values():
                comm.free = lambda freed=freed: freed.append(1)
            scheme.close()
            assert scheme.transport.groups == {}
            assert len(freed) == expected


def test_groups_are_made_in_one_order_whatever_that_of_the_packets():
    """Of ranks that make two groups in opposite orders each would wait for the other."""
    packets = list(packet_plan(5, 2).sent(0))
    made = []
    for order in (packets, packets[::-1]):
        groups = []
        comm = SimpleNamespace(size=5, subset=groups.append)
        Multicast(comm).open(order)
        made.append(groups)
    assert made[0] == made[1] and len(made[0]) == len(packets)


def test_the_time_of_encoding_and_decoding_is_counted_and_none_without_a_clock():
    """By a clock that advances a second at each look."""
    job = SchemeJob("coded", "multicast", 4, 2)
    blocks = np.zeros((job.num_blocks, LENGTH), np.int32)
    job.add_up(blocks)
    assert [scheme.coding_seconds for scheme in job.schemes] == [0.0] * 4
    for scheme in job.schemes:
        scheme.clock = itertools.count().__next__
    job.add_up(blocks)
    packets = [len(scheme.packets) for scheme in job.schemes]
    assert [scheme.coding_seconds for scheme in job.schemes] == packets
