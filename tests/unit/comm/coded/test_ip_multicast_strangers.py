"""Datagrams of strangers, who know no secret: repeats of others' ones, and floods, which change nothing."""

from types import SimpleNamespace

import numpy as np
import pytest

from grsgd.comm.coded.datagrams import Name
from grsgd.comm.coded.ip_multicast import MIN_ROOM
from grsgd.comm.coded.multicast_link import TRIAL_DATAGRAMS, TRIAL_ROUND, Coming
from grsgd.comm.coded.packets import FLOOD_SECONDS
from grsgd.comm.coded.sockets import Interface, Sockets
from tests.support.multicast_job import SEAL, Job
from tests.support.polled_ranks import PostSockets

LOST_PART = 3


def lose_one_part_of_each_packet(datagram):
    return [] if SEAL.name_of(memoryview(datagram)).part == LOST_PART else [datagram]


class Repeated(PostSockets):
    """A stranger repeats the last datagram each time that nothing else waits to be read, ``most`` times a poll."""

    most = 1

    def __init__(self, post, rank):
        super().__init__(post, rank)
        self.last, self.read_at, self.repeats = None, 0.0, 0

    def receive(self, buffer):
        if self.read_at != self.post.now:
            self.read_at, self.repeats = self.post.now, 0
        received = super().receive(buffer)
        if received is not None:
            self.last = bytes(received)
        elif self.last is not None and self.repeats < self.most:
            self.repeats += 1
            assert self.repeats < 1e5, "a rank reads what strangers send without an end"
            buffer[: len(self.last)] = self.last
            return buffer[: len(self.last)]
        return received


class Flood(Repeated):
    most = np.inf
    room = 2**16


@pytest.mark.parametrize("sockets, within", [(Repeated, 0.2), (Flood, 3 * FLOOD_SECONDS)])
def test_what_is_lacking_is_asked_for_whatever_a_stranger_repeats(sockets, within, monkeypatch):
    job = Job(monkeypatch, "coded", 3, 2, 500, lose_one_part_of_each_packet, sockets)
    job.check(np.random.default_rng(0), steps=2, seconds=5e-3)
    assert job.post.now < within * 2
    assert all(comm.traffic.repaired for comm in job.comms)


def trial(datagrams, now):
    """A trial's datagrams of rank 1, as a rank sees that gets these, each with the second when it came."""
    waiting = list(datagrams)
    receive = lambda buffer: waiting.pop(0) if waiting else None  # noqa: E731
    sockets = SimpleNamespace(receive_stamped=receive)
    link = SimpleNamespace(sockets=sockets, seal=SEAL, datagram=1000)
    return Coming(link, 1, lambda: now[0], SimpleNamespace(Test=lambda: True)), waiting


def datagram(part, sender=1):
    content = bytes(8)
    return memoryview(SEAL.head(Name(TRIAL_ROUND, sender, 0, part), content) + content)


def test_repeats_do_not_change_the_rate_that_a_trial_finds():
    """Each comes a hundred times more: once a microsecond, where the network takes one in a millisecond."""
    came = [(datagram(part), part * 1e-3) for part in range(TRIAL_DATAGRAMS)]
    repeated = [(datagram(part), part * 1e-3 + k * 1e-6) for part in range(TRIAL_DATAGRAMS) for k in range(4)]
    others = [(datagram(part, sender=2), part * 1e-3) for part in range(TRIAL_DATAGRAMS)]
    for stream in (came, repeated, [*others, *repeated]):
        coming, waiting = trial(stream, [0.0])
        while not coming.Test():
            pass
        assert len(coming.stamps) == TRIAL_DATAGRAMS
        assert coming.rate == pytest.approx(1e6, rel=0.01)


def test_a_flood_of_repeats_does_not_prolong_a_trial():
    now = [0.0]
    coming, waiting = trial([], now)
    flood = (datagram(0), 0.0)

    def receive(buffer):
        now[0] += 1e-5
        assert now[0] < 5, "a trial reads what strangers send without an end"
        return flood

    coming.link.sockets.receive_stamped = receive
    while not coming.Test():
        pass
    assert coming.rate == 0 and len(coming.stamps) == 1


def test_a_flood_of_one_socket_keeps_nothing_of_the_other_one_waiting():
    sockets = Sockets(Interface("127.0.0.1", 9000), "239.255.13.14", 42424, 2**20)
    try:
        buffer = memoryview(bytearray(2**16))
        for _ in range(20):
            assert sockets.send(b"to all", b"", sockets.group)
        assert sockets.send(b"to this rank", b"", sockets.address)
        assert b"to this rank" in [bytes(sockets.receive(buffer)) for _ in range(3)]
    finally:
        sockets.close()


def test_sockets_keep_room_for_what_comes_and_no_more(monkeypatch):
    """A process that may takes 64 MiB of the kernel at each of two sockets, which strangers could fill."""
    rooms = []
    monkeypatch.setattr(PostSockets, "make_room", lambda sockets, nbytes: rooms.append(nbytes))
    Job(monkeypatch, "coded", 3, 2, 100)
    Job(monkeypatch, "coded", 3, 2, 3_000_000, rate=2e8)
    assert rooms == [MIN_ROOM] * 3 + [2 * int(2e8 * 0.05)] * 3
