"""Ranks that connect by IP multicast on this host's loopback interface, and try the connection out.

On real ranks: ``tests/mpi/ranks/test_ip_multicast.py``.
"""

import errno
import time
from types import SimpleNamespace

import pytest

from grsgd.algorithms.transport_trial import choose_transport
from grsgd.comm.coded import multicast_link
from grsgd.comm.coded.datagrams import HEAD_BYTES, IP_BYTES
from grsgd.comm.coded.multicast_link import READING_SHARE, Coming, Settings, connect, json_of, try_out
from grsgd.comm.coded.sockets import MAX_MTU, NoMulticast, Sockets
from tests.support.polled_ranks import Post

LO = Settings(interface="lo")


class NotedSockets(Sockets):
    """Sockets that a test closes."""

    made: list = []

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.made.append(self)


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The sockets of all ranks."""
    monkeypatch.setattr(NotedSockets, "made", [])
    monkeypatch.setattr(multicast_link, "Sockets", NotedSockets)
    yield NotedSockets.made
    for each in NotedSockets.made:
        each.close()


def are_closed(made) -> bool:
    return all(each.own.fileno() == each.common.fileno() == -1 for each in made)


def on_ranks(n: int, schedule) -> list:
    """Return the result of ``schedule(comm, clock)`` per rank; the error's text if it raises NoMulticast."""
    post = Post(n)
    results = [None] * n

    def noting(comm):
        try:
            results[comm.rank] = yield from schedule(comm, post.clock)
        except NoMulticast as error:
            results[comm.rank] = error.why

    post.finish(map(noting, post.communicators()))
    return results


@pytest.mark.parametrize("mtu, part", [(None, MAX_MTU - HEAD_BYTES - IP_BYTES), (1500, 1500 - HEAD_BYTES - IP_BYTES)])
def test_ranks_connect_and_hear_each_other(mtu, part):
    def tried(comm, clock):
        link = yield from connect(comm, Settings(interface="lo", mtu=mtu if comm.rank else None))
        return link, (yield from try_out(comm, link, time.perf_counter)), comm.traffic.sent.sum()

    links, rates, sent = zip(*on_ranks(3, tried), strict=True)
    assert len({(link.part, link.room, *link.addresses) for link in links}) == 1 and len(set(rates)) == 1
    link = links[0]
    assert link.part == part // 4 * 4 and link.datagram == link.part + HEAD_BYTES + IP_BYTES
    assert link.bytes_on_the_way(link.part + 1) == link.part + 1 + 2 * (HEAD_BYTES + IP_BYTES)
    assert [each.sockets.address for each in links] == link.addresses and len(set(link.addresses)) == 3
    assert len({each.sockets.group for each in links}) == 1
    assert 1e4 < rates[0] < float("inf") and sum(sent) == 0, "the messages of a trial are not counted"
    head = links[0].seal.head(multicast_link.Name(1, 0, 0, 0), b"")
    assert links[2].seal.name_of(memoryview(head)) == (1, 0, 0, 0)


@pytest.mark.parametrize(
    "wrong, why",
    [
        (Settings(interface="nothing"), "rank 1: no interface 'nothing'"),
        (
            Settings(interface="lo", mtu=MAX_MTU + 1),
            "rank 1: mtu = 9001: the interface 127.0.0.1 takes at most 9000 bytes",
        ),
    ],
)
def test_all_ranks_learn_why_one_cannot_connect(wrong, why, made):
    found = on_ranks(3, lambda comm, clock: connect(comm, wrong if comm.rank == 1 else LO))
    assert found[0].startswith(why) and len(set(found)) == 1 and len(made) == 2 and are_closed(made)
    exact = Settings(interface="lo", mtu=MAX_MTU)
    assert all(link.part for link in on_ranks(2, lambda comm, clock: connect(comm, exact)))


def test_all_ranks_learn_of_an_error_of_the_system(monkeypatch):
    def refused(*_):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(multicast_link, "Sockets", refused)
    assert on_ranks(2, lambda comm, clock: connect(comm, LO)) == ["rank 0: No such device"] * 2


def test_all_ranks_learn_who_is_not_heard(made):
    def tried(comm, clock):
        link = yield from connect(comm, LO)
        if comm.rank == 1:
            link.sockets.send = lambda *_: True  # and the datagrams are lost
        return (yield from try_out(comm, link, clock))

    found = on_ranks(3, tried)
    assert len(set(found)) == 1 and " from rank 1 on " in found[0] and " do not reach rank 0 on " in found[0]


@pytest.mark.parametrize("rate", [None, 2e6])
def test_a_trial_chooses_ip_multicast_with_the_rate_that_it_finds(rate, made):
    def chosen(comm, clock):
        return choose_transport(comm, "auto", Settings(interface="lo", rate=rate), False)

    found = on_ranks(2, chosen)
    (options, why), other = found
    assert options["transport"] == "ip-multicast" and options["rate"] and (options, why) == other
    assert why.startswith("transport = ip-multicast: all 2 ranks hear each other; ")
    assert why.endswith("given" if rate else "measured") and (rate is None or options["rate"] == "16mbit")
    assert len(made) == 2 and are_closed(made)


def test_arrays_in_gpu_memory_and_single_ranks_go_by_mpi():
    for n, on_gpu, why in ((2, True, "the arrays to send lie in the memory of GPUs"), (1, False, "one rank sends")):
        found = on_ranks(n, lambda comm, clock, on_gpu=on_gpu: choose_transport(comm, "ip-multicast", LO, on_gpu))
        assert all(each.startswith(why) for each in found)
        (options, reason), *_ = on_ranks(
            n, lambda comm, clock, on_gpu=on_gpu: choose_transport(comm, "auto", LO, on_gpu)
        )
        assert options["transport"] == "multicast" and why in reason


def test_long_texts_are_cut_to_the_bytes_of_a_message():
    what = {"why": "x" * 300, "name": "y" * 40, "mtu": 1500}
    assert json_of(what, 1000) == json_of(what, 1001) and "x" * 300 in json_of(what, 1000)
    text = json_of(what, 150)
    assert 100 < len(text) <= 150 and "y" * 40 in text and "1500" in text


def test_a_rank_that_reads_slowly_makes_the_rate_lower():
    coming = Coming(SimpleNamespace(datagram=1000), 0, lambda: 0.0, None)
    assert coming.rate == 0
    coming.stamps = {0: 5.0}
    assert coming.rate == 0, "one datagram has no rate"
    coming.stamps = {number: 5 + number * 1e-3 for number in range(100)}
    assert coming.rate == pytest.approx(1e6)
    coming.reading = 100 * 0.01
    assert coming.rate == pytest.approx(1000 / (0.01 / READING_SHARE))
