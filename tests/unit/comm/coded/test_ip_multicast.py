"""The exchange of packets by IP multicast, on ranks in one thread and a network that does what it likes."""

import numpy as np
import pytest

from coding.cost import cost_in_bytes
from grsgd.algorithms.cssgd import CSSGDOptions
from grsgd.algorithms.ssgd import SSGDOptions
from grsgd.algorithms.transport_trial import choose_transport
from grsgd.comm import tags
from grsgd.comm.coded import ip_multicast, multicast_link, packets, repairs
from grsgd.comm.coded.asking import ANSWER_SECONDS, SILENT_SECONDS
from grsgd.comm.coded.control import Control, ControlKind, Told
from grsgd.comm.coded.datagrams import HEAD_BYTES, IP_BYTES, KEY_BYTES, RUN_BYTES, Name, Seal
from grsgd.comm.coded.ip_multicast import SHARE, UNREAD_SECONDS, IpMulticast
from grsgd.comm.coded.multicast_link import Settings, seconds_between
from grsgd.comm.coded.repairs import Repairs
from grsgd.comm.coded.sockets import Interface, NoMulticast, find_interface, interfaces, lies_in
from grsgd.comm.pollables import Until
from grsgd.errors import ConfigError
from grsgd.testing.simulated import network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.multicast_job import KINDS, PART, RATE, SEAL, Job
from tests.support.polled_ranks import Post, PostSockets
from tests.support.training import simulation

FORGER = Seal(bytes(RUN_BYTES), bytes([1] * KEY_BYTES))


class Hostile:
    """Loses, repeats, delays, cuts off, damages, and forges datagrams, and brings old ones again."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.kept: list[bytes] = []
        self.altered = self.count = 0

    def __call__(self, datagram: bytes) -> list[bytes]:
        random, fate = self.random, self.random.integers(12)
        self.count += 1
        self.kept.append(datagram)
        old = self.kept.pop(random.integers(len(self.kept))) if len(self.kept) > 30 else datagram
        if fate == 0:
            return []
        if fate == 1:
            return [datagram, datagram]
        if fate == 2:
            return [old, datagram]
        if fate == 3:
            return [old]  # in its place: it comes late, or never
        if fate == 4:
            self.altered += 1
            return [datagram[: random.integers(HEAD_BYTES, len(datagram))]]
        if fate == 5:
            self.altered += 1
            changed = bytearray(datagram)
            changed[random.integers(HEAD_BYTES - 16, len(datagram))] ^= random.integers(1, 256)
            return [bytes(changed), datagram]
        if fate == 6:
            self.altered += 1
            name = SEAL.name_of(memoryview(datagram))
            content = random.bytes(len(datagram) - HEAD_BYTES)
            return [FORGER.head(name, content) + content, datagram]
        if fate == 7:
            return [random.bytes(random.integers(0, 200)), datagram]
        return [datagram]


CASES = [(kind, n, r) for kind in KINDS for n in range(2, 7) for r in range(1, n + 1)]


@pytest.mark.parametrize(
    "kind, n, r", exhaustive_unless(lambda kind, n, r: n in (2, 3) or (n, r) in ((4, 2), (5, 3)), CASES)
)
def test_sums_are_those_of_all_blocks_whatever_happens_to_datagrams(kind, n, r, monkeypatch):
    for length in (1000, 23, 1):
        job = Job(monkeypatch, kind, n, r, length, Hostile(n * r))
        job.check(np.random.default_rng((n, r, length)))
        job.close()


def test_ten_thousand_datagrams_of_a_hostile_network(monkeypatch):
    hostile = Hostile(1)
    job = Job(monkeypatch, "coded", 4, 2, 8000, hostile)
    random, steps = np.random.default_rng(0), 0
    while hostile.count < 10_000:
        job.check(random, 1)
        steps += 1
    job.close()
    assert hostile.altered > 2000
    assert sum(transport.rejected for transport in job.transports) > 0.3 * hostile.altered, "the rest is for others"
    assert "datagrams were damaged or forged, and were ignored" in job.transports[0].warnings()[0]
    cost = cost_in_bytes("coded", 4, 2, 8000).times(steps)
    for rank, comm in enumerate(job.comms):
        assert comm.traffic.sent_once == cost.sent[rank], "repairs are no part of the payload"
        assert comm.traffic.sent.sum() == cost.copies[rank]
        assert comm.traffic.repaired > 0 and comm.traffic.lost > 0
    lost = sum(comm.traffic.lost for comm in job.comms)
    assert PART * lost * 0.8 < sum(comm.traffic.repaired for comm in job.comms) <= PART * lost


def test_nothing_is_repaired_where_nothing_is_lost(monkeypatch):
    sent = []

    def carry(datagram):
        sent.append(SEAL.name_of(memoryview(datagram)))
        return [datagram]

    job = Job(monkeypatch, "grouped-rs", 4, 2, 1000, carry)
    job.check(np.random.default_rng(0), 3)
    job.close()
    assert [(comm.traffic.repaired, comm.traffic.lost) for comm in job.comms] == [(0, 0)] * 4
    assert all(not transport.rejected and not transport.warnings() for transport in job.transports)
    # Three steps of two exchanges. To several: one chunk of 250 words a rank, heard by all four. To one: as much, once.
    parts = -(-1000 // PART)
    assert len(set(sent)) == 3 * 4 * parts * 2 and len(sent) == 3 * 4 * parts * (4 + 1)


def test_all_that_is_lost_comes_by_mpi(monkeypatch):
    job = Job(monkeypatch, "coded", 3, 2, 1000, lambda datagram: [])
    job.check(np.random.default_rng(0))
    job.close()
    cost = cost_in_bytes("coded", 3, 2, 1000).times(2)
    assert [comm.traffic.repaired for comm in job.comms] == list(cost.copies)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_few_packets_at_a_time_suffice(in_flight, monkeypatch):
    monkeypatch.setattr("grsgd.comm.coded.scheme.MAX_PACKETS_IN_FLIGHT", in_flight)
    for n, r in [(4, 2), (5, 2), (5, 3)]:
        job = Job(monkeypatch, "coded", n, r, 100, Hostile(n))
        job.check(np.random.default_rng(n))
        job.close()


@pytest.mark.parametrize("loss, burst", [(0.01, 1.0), (0.05, 1.0), (0.2, 5.0)])
def test_datagrams_lost_on_purpose_are_the_same_in_every_run(loss, burst, monkeypatch):
    def lost(seed, carry=lambda datagram: [datagram]):
        job = Job(monkeypatch, "coded", 4, 3, 8000, carry, loss=loss, burst=burst, seed=seed)
        job.check(np.random.default_rng(0), 5)
        job.close()
        return [comm.traffic.lost for comm in job.comms]

    first = lost(1)
    parts = 5 * 3 * -(-4 * -(-8000 // 3) // PART)
    assert sum(first) == pytest.approx(4 * parts * loss, rel=0.35)
    assert lost(1) == first != lost(2)
    assert lost(1, lambda datagram: [datagram, datagram]) == first, "whatever comes when, and how often"


def test_ranks_keep_to_their_share_of_the_rate(monkeypatch):
    """All send at once, so that together they take what the network takes."""
    job = Job(monkeypatch, "local-sum", 4, 1, 20_000)
    begin = job.post.now
    job.check(np.random.default_rng(0), 1)
    datagrams = 4 * -(-80_000 // PART)
    seconds = datagrams * job.transports[0].link.datagram / (SHARE * RATE)
    assert job.post.now - begin == pytest.approx(seconds, rel=0.1)


def test_little_room_for_datagrams_makes_ranks_slower(monkeypatch):
    monkeypatch.setattr(PostSockets, "room", 10_000)
    job = Job(monkeypatch, "coded", 3, 2, 10_000)
    assert job.transports[0].pace.rate == pytest.approx(SHARE * 10_000 / UNREAD_SECONDS / 3)
    everything = 3 * (20_000 + -(-20_000 // PART) * (HEAD_BYTES + IP_BYTES))
    assert f"net.core.rmem_max to {everything}" in job.transports[0].warnings()[0]
    job = Job(monkeypatch, "coded", 3, 2, 700)
    assert job.transports[0].pace.rate == pytest.approx(SHARE * RATE / 3), "all of an exchange has room"
    assert not job.transports[0].warnings()


# ---- sockets


def test_sockets_are_closed_where_a_trial_finds_nothing(monkeypatch):
    """A run that ends so may have taken MPI's broadcasts, had it been told to."""

    def find_nothing(comm, link, clock):
        yield from ()
        raise NoMulticast("nothing comes through")

    monkeypatch.setattr(ip_multicast, "try_out", find_nothing)
    opened, make = [], PostSockets.__init__

    def made(sockets, post, rank):
        make(sockets, post, rank)
        opened.append(sockets)

    monkeypatch.setattr(PostSockets, "__init__", made)
    with pytest.raises(NoMulticast, match="nothing comes through"):
        Job(monkeypatch, "coded", 3, 2, 100, rate=None)
    assert opened[0].is_closed


def test_sockets_are_closed_where_the_end_is_not_waited_for(monkeypatch):
    job = Job(monkeypatch, "coded", 3, 2, 100)
    closing = job.transports[0].close()
    assert "the end of IP multicast on ranks 1, 2" in str(next(closing))
    with pytest.raises(RuntimeError, match="another rank has stopped"):
        closing.throw(RuntimeError("another rank has stopped"))
    assert job.sockets[0].is_closed


class OneSocket(PostSockets):
    """What `connect` makes, with room for less on rank 1."""

    made = []

    def __init__(self, rank):
        self.address, self.is_closed, self.room = [f"10.0.0.{rank}", 5], False, [900, 500][rank % 2]
        self.made.append(self)


def connected(monkeypatch, ranks, told=lambda number: None):
    """The links of all ranks, whose sockets are doubles; ``told``: called with the number of what ranks tell."""
    monkeypatch.setattr(OneSocket, "made", [])
    links, tell, counts = {}, multicast_link.tell, [0] * ranks
    monkeypatch.setattr(multicast_link, "find_interface", lambda *_: Interface("10.0.0.1", 1500))
    monkeypatch.setattr(multicast_link, "Sockets", lambda *_: OneSocket(len(OneSocket.made)))

    def telling(comm, what):
        counts[comm.rank] += 1
        told(counts[comm.rank])
        return (yield from tell(comm, what))

    monkeypatch.setattr(multicast_link, "tell", telling)

    def connect(comm):
        links[comm.rank] = yield from multicast_link.connect(comm, Settings())

    post = Post(ranks)
    post.finish([connect(comm) for comm in post.communicators()])
    return [links[rank] for rank in range(ranks)]


def test_all_ranks_know_for_how_much_each_has_room(monkeypatch):
    """A rank with little of it would gain nothing if it sent slowly alone."""
    assert [link.room for link in connected(monkeypatch, 3)] == [500] * 3


def test_sockets_are_closed_where_ranks_do_not_meet(monkeypatch):
    def fail(number):
        if number == 2:
            raise RuntimeError("another rank has stopped")

    with pytest.raises(RuntimeError, match="another rank has stopped"):
        connected(monkeypatch, 2, fail)
    assert OneSocket.made and OneSocket.made[0].is_closed


def test_all_that_comes_to_a_socket_must_have_room(monkeypatch):
    """Packets for others and a rank's own, too; all ranks send as slowly as the one with the least room asks for."""
    monkeypatch.setattr(PostSockets, "room", 10_000)
    job = Job(monkeypatch, "coded", 4, 2, 200)
    received = 6 * 400
    everything = 4 * 3 * (400 + 7 * (HEAD_BYTES + IP_BYTES))
    assert received < 10_000 < everything
    assert [each.pace.rate for each in job.transports] == [pytest.approx(SHARE * 10_000 / UNREAD_SECONDS / 4)] * 4
    assert f"net.core.rmem_max to {everything}" in job.transports[0].warnings()[0]


# ---- waits


def messages_of(job, late) -> str:
    with pytest.raises(TimeoutError) as error:
        job.post.finish([scheme.add_up() for scheme in job.schemes], polls=2000, late=late)
    return str(error.value)


def test_a_time_out_says_who_is_late(monkeypatch):
    job = Job(monkeypatch, "coded", 3, 2, 100)
    job.fill(np.random.default_rng(0))
    said = messages_of(job, late=1)
    assert "in group {0, 1, 2}: " in said
    waits = "(rank 1 has not begun to receive)", "receive from rank 1 by IP multicast (0 of 4 datagrams have arrived"
    assert any(each in said for each in waits)


def test_a_time_out_says_how_far_a_packet_is(monkeypatch):
    job = Job(monkeypatch, "coded", 3, 2, 1000)
    job.fill(np.random.default_rng(0))
    job.transports[1].move = lambda: None  # it is ready, and does nothing any more
    said = messages_of(job, late=None)
    assert "receive from rank 1 by IP multicast (0 of 32 datagrams have arrived, more are expected)" in said
    sent = [str(transport._outgoing[0]) for transport in job.transports]
    group = "of rank {} in group {{0, 1, 2}}: send by IP multicast"
    for rank in (0, 2):
        nothing = "all datagrams were sent, but there is no answer from rank 1"
        assert sent[rank] == f"packet 0 {group.format(rank)} ({nothing})"
    assert sent[1] == f"packet 0 {group.format(1)} (rank 0 has not begun to receive)"


def test_a_time_out_of_the_end_says_what_is_missing(monkeypatch):
    job = Job(monkeypatch, "coded", 3, 2, 100)
    (transport, *_), end = job.transports, "the end of IP multicast on rank"
    ended = ip_multicast.AllEnded(transport)
    assert str(ended) == f"{end}s 1, 2"
    transport._ended.update({1, 2})
    transport.control.under_way.append((ip_multicast.AllEnded(job.transports[1]), None))
    assert str(ended) == f"messages to other ranks: {end}s 0, 2"


# ---- repairs by the sender


def test_a_rank_that_has_all_says_so_in_few_bytes(monkeypatch):
    """Not a bit for each part: a long message would be under way until the rank, which computes, waits again."""
    job = Job(monkeypatch, "coded", 3, 2, 4000)
    told, tell = [], Control.tell

    def noted(control, rank, word, number_of_round, number=0, rest=b""):
        told.append((word, len(rest)))
        tell(control, rank, word, number_of_round, number, rest)

    monkeypatch.setattr(Control, "tell", noted)
    job.check(np.random.default_rng(0), 1)
    assert told.count((ControlKind.LACKING, 0)) == 3 * 2
    assert not any(length for _, length in told)


def test_what_is_lost_of_a_packet_is_asked_for_while_the_next_one_leaves(monkeypatch):
    """Its sender has said that all of it has left."""
    times = {}

    def carry(datagram):
        name = SEAL.name_of(memoryview(datagram))
        times["sent", name.sender, name.number] = job.post.now
        return [] if name.sender == 1 and name.part == 3 else [datagram]

    job = Job(monkeypatch, "coded", 4, 2, 4000, carry, rate=1e6)
    ask = Repairs.ask

    def noted(repairs, rank, packet, parts):
        times["asked", repairs.comm.rank, packet.number] = job.post.now
        ask(repairs, rank, packet, parts)

    monkeypatch.setattr(Repairs, "ask", noted)
    job.check(np.random.default_rng(0), 1)
    of_one = sorted((when, number) for (what, sender, number), when in times.items() if (what, sender) == ("sent", 1))
    assert len(of_one) == 3
    asked = [(when, number) for (what, _, number), when in times.items() if what == "asked"]
    assert len(asked) == 3 * 2
    for when, number in asked:
        assert when - times["sent", 1, number] < 3 * packets.PATIENCE_SECONDS, "not when the last one has left"


@pytest.mark.parametrize("kind, r", [("coded", 2), ("uncoded", 3)])
def test_a_sender_of_packets_to_others_is_not_silent(kind, r, monkeypatch):
    """A packet takes longer than any silence; it may be for others, some of which this rank does not even hear of."""
    length = 1800
    seconds, parts = 1.5 * SILENT_SECONDS, -(-4 * length // r // PART)
    rate = 4 / SHARE * parts * (PART + HEAD_BYTES + IP_BYTES) / seconds
    job = Job(monkeypatch, kind, 4, r, length, rate=rate)
    expected = job.fill(np.random.default_rng(0))
    begin = job.post.now
    job.post.finish([scheme.add_up() for scheme in job.schemes], seconds=2e-3)
    assert job.post.now - begin == pytest.approx(3 * seconds, rel=0.1)
    assert all((scheme.total == expected).all() for scheme in job.schemes)
    assert [(comm.traffic.repaired, comm.traffic.lost) for comm in job.comms] == [(0, 0)] * 4


# ---- repairs by others


def slow(job, rank, monkeypatch, seconds=np.inf):
    """Let a rank answer what others lack of its packets so much later; returns those that have asked it."""
    transport, asked, waiting = job.transports[rank], [], []
    repair, move = packets.Outgoing.repair, transport.move

    def later(outgoing, receiver, bits):
        if outgoing.transport is not transport or not any(bits):
            return repair(outgoing, receiver, bits)
        asked.append(receiver)
        waiting.append((job.post.now + seconds, outgoing, receiver, bits))

    def moved():
        while waiting and waiting[0][0] <= job.post.now:
            repair(*waiting.pop(0)[1:])
        move()

    monkeypatch.setattr(packets.Outgoing, "repair", later)
    transport.move = moved
    return asked


def losing(rank, share=1.0, seed=0):
    """A network that loses a share of what one rank sends, for all."""
    random = np.random.default_rng(seed)

    def carry(datagram):
        return [] if SEAL.name_of(memoryview(datagram)).sender == rank and random.random() < share else [datagram]

    return carry


HELPED = [(kind, n, r) for kind in ("coded", "uncoded", "grouped-direct") for n in range(3, 7) for r in range(2, n)]
some_helped = pytest.mark.parametrize(
    "kind, n, r", exhaustive_unless(lambda kind, n, r: n == 3 or (n, r) == (4, 3), HELPED)
)
LATE = 4 * ANSWER_SECONDS


class Stay:
    """A rank that has all it needs, and answers others until all have ended."""

    def __init__(self, transport, ended: set):
        self.transport, self.ended = transport, ended

    def Test(self):
        self.transport.move()
        return len(self.ended) == self.transport.comm.size


@some_helped
def test_other_holders_of_a_block_repair_what_its_sender_does_not(kind, n, r, monkeypatch):
    """What one rank sends is lost, in part or whole, and it answers late: sums are the same bit for bit."""

    def step(job, rank, ended):
        yield from job.schemes[rank].add_up()
        ended.add(rank)
        yield Stay(job.transports[rank], ended)

    monkeypatch.setattr(IpMulticast, "end_round", lambda transport: None)
    for share, length in ((1.0, 1000), (0.3, 1003), (1.0, 7)):
        job = Job(monkeypatch, kind, n, r, length, losing(1, share, length))
        asked = slow(job, 1, monkeypatch, LATE)
        random = np.random.default_rng((n, r, length))
        for number, seconds in enumerate((LATE, 0, 0)):
            begin, expected, ended = job.post.now, job.fill(random), set()
            job.post.finish([step(job, rank, ended) for rank in range(n)])
            assert all((scheme.total == expected).all() for scheme in job.schemes)
            assert job.post.now - begin == pytest.approx(seconds, abs=0.15)
            assert bool(asked) == (number == 0), "at first it is asked itself, but not again and again"
            asked.clear()
        job.close()
        assert sum(comm.traffic.repaired for comm in job.comms) > job.comms[1].traffic.repaired, "others have repaired"


@some_helped
def test_no_rank_waits_for_one_that_has_left(kind, n, r, monkeypatch):
    """Ranks that have what they need go on, and are not asked: at the worst the sender is waited for."""
    job = Job(monkeypatch, kind, n, r, 1003, losing(1, 0.3, n))
    slow(job, 1, monkeypatch, LATE)
    for _ in range(3):
        begin = job.post.now
        job.check(np.random.default_rng((n, r)), 1)
        assert job.post.now - begin < LATE + ANSWER_SECONDS
    job.close()


@pytest.mark.parametrize("kind, r", [("coded", 1), ("grouped-rs", 2), ("per-block", 2), ("local-sum", 1)])
def test_where_nobody_else_has_a_block_its_sender_is_waited_for(kind, r, monkeypatch):
    job = Job(monkeypatch, kind, 3, r, 100, losing(1))
    slow(job, 1, monkeypatch)
    job.fill(np.random.default_rng(0))
    said = messages_of(job, late=None)
    assert "receive from rank 1 by IP multicast (0 of " in said and "missing parts are requested from rank 1)" in said


def test_a_time_out_says_who_was_asked(monkeypatch):
    """Here nobody answers, for all packets of one."""
    job = Job(monkeypatch, "coded", 3, 2, 100, losing(1))
    slow(job, 1, monkeypatch)
    monkeypatch.setattr(Repairs, "answer_with_block", lambda *arguments: None)
    job.fill(np.random.default_rng(0))
    with pytest.raises(TimeoutError, match="missing parts are requested from ranks 1, 2"):
        job.post.finish([scheme.add_up() for scheme in job.schemes], polls=6000)


def test_holders_take_turns_to_repair(monkeypatch):
    """Of a rank whose datagrams nobody gets, and which is asked last, for it was slow."""
    job = Job(monkeypatch, "coded", 5, 4, 4000, losing(1))
    for transport in job.transports:
        transport.repairs.slow.note(1, 1)
    asked = slow(job, 1, monkeypatch)
    job.check(np.random.default_rng(0), 4)
    assert not asked
    repaired = [comm.traffic.repaired for comm in job.comms]
    assert repaired[1] == 0 and min(repaired[:1] + repaired[2:]) > 0
    lost = sum(comm.traffic.lost for comm in job.comms)
    assert PART * (lost - 16) < sum(repaired) <= PART * lost, "each part once; the last of a packet is short"


def test_a_rank_that_stands_still_is_done_without(monkeypatch):
    """It has sent nothing, and the others get its packets from each other; then it goes on, and sends none of them."""
    sent = []

    def carry(datagram):
        sent.append(SEAL.name_of(memoryview(datagram)).sender)
        return [datagram]

    job = Job(monkeypatch, "coded", 4, 2, 1000, carry)
    transport, until = job.transports[1], job.post.now + 2.5
    move = transport.move
    transport.move = lambda: move() if job.post.now > until else None
    job.check(np.random.default_rng(0), 1)
    assert set(sent) == {0, 2, 3}
    assert job.post.now == pytest.approx(until, abs=0.3)
    job.check(np.random.default_rng(1), 1)
    assert set(sent) == {0, 1, 2, 3}
    job.close()


@pytest.mark.parametrize("kind", ["coded", "uncoded", "grouped-direct", "grouped-rs"])
def test_whoever_is_asked_when_it_is_a_step_ahead_gives_nothing(kind, monkeypatch):
    """All are asked at once, on a hostile network, by ranks that pause between their steps, whose blocks all differ."""
    monkeypatch.setattr(repairs, "ANSWER_SECONDS", 0.0)
    n, r, length = 5, 3, 700
    job = Job(monkeypatch, kind, n, r, length, Hostile(3))
    for transport in job.transports:
        transport.pace.rate = 1e12
    random = np.random.default_rng(5)
    blocks = random.integers(-job.top, job.top, (12, job.num_blocks, length)).astype(np.int32)

    def steps(rank):
        scheme = job.schemes[rank]
        for step in blocks:
            until = job.post.now + random.exponential(0.01)
            yield Until(lambda until=until: job.post.now > until, "a pause")
            for k, block in enumerate(scheme.blocks):
                scheme.block_buffer(k)[:] = step[block]
            yield from scheme.add_up()
            np.testing.assert_array_equal(scheme.total, step.sum(0, dtype=np.int64))

    job.post.finish([steps(rank) for rank in range(n)])
    job.close()
    assert not any(transport.repairs.expected for transport in job.transports)


def test_a_block_of_another_step_is_kept(monkeypatch):
    """A rank that is asked for one of the exchange before, or of the one after, answers with nothing."""
    job = Job(monkeypatch, "coded", 3, 2, 100)
    job.check(np.random.default_rng(0), 2)
    end_round = IpMulticast.end_round
    monkeypatch.setattr(IpMulticast, "end_round", lambda transport: None)
    job.check(np.random.default_rng(0), 1)
    asked, transport = job.schemes[0], job.transports[2]
    packet = next(packet for packet in asked.packets if packet.sender == 1)
    what = repairs.PIECE.pack(1, *asked.brings(packet), asked.size(packet)) + b"\xff"

    def answered(number_of_round):
        before = job.comms[2].traffic.repaired
        transport.repairs.answer_with_block(Told(ControlKind.OTHERS_LACKING, 0, number_of_round, packet.number, what))
        return job.comms[2].traffic.repaired - before

    assert [answered(number) for number in (2, 4, 3)] == [0, 0, 4 * 50]
    end_round(transport)  # whatever it does next, its blocks may be others
    assert answered(3) == 0
    assert len(job.post.messages[2, 0, tags.CODED_REPAIRS]) == 4, "but it answers"


# ---- options


def test_options_of_ip_multicast_need_it():
    assert CSSGDOptions(transport="auto", rate="1gbit", mtu=1500).settings(3) == Settings(125e6, None, 1500, seed=3)
    assert SSGDOptions(transport="ip-multicast", loss=0.2, burst=4.0).settings(0).burst == 4.0
    for wrong, message in (
        ({"rate": "1gbit"}, "rate with transport = 'multicast': needs transport = 'ip-multicast' or 'auto'"),
        ({"transport": "unicast", "loss": 0.1}, "loss with transport = 'unicast'"),
        ({"transport": "auto", "rate": "fast"}, "rate 'fast': not a number with a unit"),
        ({"transport": "auto", "burst": 2.0}, "burst = 2 without loss"),
        ({"transport": "auto", "loss": 0.3}, "less than or equal to 0.2"),
        ({"transport": "auto", "mtu": 100}, "greater than or equal to 576"),
        ({"transport": "radio"}, "'multicast', 'unicast', 'ip-multicast' or 'auto'"),
    ):
        with pytest.raises(ValueError, match=message.replace("(", r"\(")):
            CSSGDOptions(**wrong)


def simulated(transport, spec, **options):
    return simulation({"name": "cssgd", "r": 2, "transport": transport, **options}, 3, network_of(**spec))


SLOW = {"bandwidth": "8 mbit", "latency": "1 us"}


@pytest.mark.parametrize("spec", [{"medium": "shared"}, {"multicast": True}])
@pytest.mark.parametrize("transport", ["ip-multicast", "auto"])
def test_in_simulated_time_the_network_has_it(transport, spec):
    """A step takes as long as by a broadcast there, which leaves once."""
    job, other = simulated(transport, SLOW | spec), simulated("multicast", SLOW | spec)
    assert job.config.algorithm_options.transport == "ip-multicast"
    reasons = [each.reasons.get("transport") for each in (job, other)]
    assert reasons == ["transport = ip-multicast: the network has it", None]
    assert job.train() == other.train() and job.seconds() == other.seconds()
    traffic = [[trainer.comm.traffic.sent_once for trainer in each.trainers] for each in (job, other)]
    assert traffic[0] == traffic[1] and sum(traffic[0]) > 0


def test_in_simulated_time_a_network_without_it():
    with pytest.raises(NoMulticast, match="^transport = 'ip-multicast': the network has no multicast "):
        simulated("ip-multicast", SLOW)
    job = simulated("auto", SLOW)
    assert job.config.algorithm_options.transport == "multicast"
    assert job.reasons["transport"].startswith("transport = multicast: by MPI, for the network has no multicast")
    with pytest.raises(ConfigError, match="rate, interface, mtu, loss and burst are for a real network"):
        simulated("ip-multicast", SLOW | {"multicast": True}, loss=0.1)
    auto = simulated("auto", SLOW, rate="1gbit", mtu=1500).config
    assert auto.algorithm_options.rate is None and auto.algorithm_options.transport == "multicast"


def test_one_rank_needs_none():
    (comm,) = Post(1).communicators()
    post = Post(1)

    def choose(wanted):
        return post.finish([chosen_by(comm, wanted, found)])

    found = []
    choose("auto")
    assert found == [({"transport": "multicast"}, "transport = multicast: by MPI, for one rank sends nothing")]
    transport = IpMulticast(comm)
    post.finish([transport.open({}), transport.close()][:1])
    transport.next_round()
    post.finish([transport.close()])


def chosen_by(comm, wanted, found):
    changed, reason = yield from choose_transport(comm, wanted, Settings(), False)
    found.append(({name: value for name, value in changed.items() if value is not None}, reason))


# ---- interfaces


def test_interfaces_of_this_host():
    there = dict(interfaces())
    assert there.get("lo") == "127.0.0.1"
    group = ("239.255.0.1", 9)
    assert find_interface(None, [], group) == Interface("127.0.0.1", 9000), "no other host: no network"
    for wanted in ("lo", "127.0.0.1", "127.0.0.0/8"):
        assert find_interface(wanted, ["elsewhere"], group).address == "127.0.0.1"
    for wanted in ("nothing", "203.0.113.0/24", "300.1.1.1"):
        with pytest.raises(NoMulticast, match=rf"no interface '{wanted}'; this host has: .*lo \(127.0.0.1\)"):
            find_interface(wanted, [], group)
    assert lies_in("10.0.0.7", "10.0.0.0/24") and not lies_in("10.0.1.7", "10.0.0.0/24")


def test_names_of_datagrams_fit_all_runs():
    largest = Name(2**32 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1)
    assert SEAL.name_of(memoryview(SEAL.head(largest, b""))) == largest


def test_a_sender_that_is_kept_from_sending_does_not_make_a_network_slow():
    """Nor does what an idle link lets through at once make it fast."""
    stamps = np.arange(140) * 7e-4
    assert seconds_between(stamps) == pytest.approx(7e-4)
    kept = stamps.copy()
    for number in (30, 70, 110):
        kept[number:] += 0.03
    assert seconds_between(kept) == pytest.approx(7e-4)
    burst = np.maximum(stamps - 0.02, 0)
    assert seconds_between(burst) == pytest.approx(7e-4)
    assert seconds_between(np.array([1.0, 1.5])) == 0.5
    assert seconds_between(np.array([0.0, 1.0, 2.0])) == 1.0
