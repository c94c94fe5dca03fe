"""Sockets for IP multicast on this host's loopback interface, and the choice of an interface.

On ranks: ``tests/mpi/ranks/test_ip_multicast.py``.
"""

import errno
import time
from types import SimpleNamespace

import pytest

from grsgd.comm.coded import sockets
from grsgd.comm.coded.multicast_link import some_group
from grsgd.comm.coded.sockets import LOOPBACK, MAX_MTU, Interface, NoMulticast, Sockets, find_interface, towards

ROOM = 2**16
SECONDS = 10
"""Seconds for which a test looks for a datagram, which the kernel delivers at once."""


@pytest.fixture
def pair():
    group = some_group()
    two = [Sockets(Interface(LOOPBACK, MAX_MTU), group["group"], group["port"], ROOM) for _ in range(2)]
    yield two
    for each in two:
        each.close()


def first(receive):
    """Return the first datagram that ``receive()`` finds."""
    end = time.perf_counter() + SECONDS
    while (found := receive(memoryview(bytearray(100)))) is None:
        assert time.perf_counter() < end, "nothing arrives"
    return found


def test_datagrams_reach_the_group_or_one_rank(pair):
    one, other = pair
    assert one.receive(memoryview(bytearray(100))) is None and one.receive_stamped(memoryview(bytearray(100))) is None
    assert one.send(b"head ", b"content", one.group)
    assert [bytes(first(each.receive)) for each in pair] == [b"head content"] * 2
    assert one.send(b"to ", b"one", other.address) and one.address != other.address
    assert bytes(first(other.receive)) == b"to one" and one.receive(memoryview(bytearray(100))) is None


def test_a_datagram_of_the_group_has_the_time_of_its_arrival(pair):
    one, other = pair
    before = time.time()
    one.send(b"", b"stamped", one.group)
    datagram, when = first(other.receive_stamped)
    assert bytes(datagram) == b"stamped" and before - 1 < when < time.time() + 1


def test_datagrams_at_one_socket_do_not_delay_those_at_the_other(pair):
    one, other = pair
    for _ in range(3):
        one.send(b"", b"group", one.group)
    one.send(b"", b"alone", other.address)
    assert b"alone" in [bytes(first(other.receive)) for _ in range(2)]


def test_sockets_have_the_room_that_is_asked_for(pair):
    assert pair[0].room == ROOM
    pair[0].make_room(2 * ROOM)
    assert pair[0].room == 2 * ROOM and pair[1].room == ROOM


@pytest.mark.parametrize("number, is_full", [(errno.EAGAIN, True), (errno.ENOBUFS, True), (errno.ENETDOWN, False)])
def test_a_full_socket_is_no_error(number, is_full, pair):
    one = pair[0]

    def sendmsg(*_):
        raise OSError(number, "")

    one.own.close()
    one.own = SimpleNamespace(sendmsg=sendmsg, close=lambda: None)
    if is_full:
        assert not one.send(b"", b"", one.group)
    else:
        with pytest.raises(OSError):
            one.send(b"", b"", one.group)


def test_sockets_are_closed_if_they_cannot_be_used(monkeypatch):
    made, make = [], sockets.socket.socket

    def noted(*arguments):
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(sockets.socket, "socket", noted)
    with pytest.raises(OSError):
        Sockets(Interface("203.0.113.7", MAX_MTU), "239.255.0.1", 40000, ROOM)
    assert len(made) == 2 and all(each.fileno() == -1 for each in made)


def test_the_interface_towards_the_first_host_that_is_known(monkeypatch):
    group, known, asked = ("239.255.0.1", 9), {}, []

    def known_towards(place):
        asked.append(place)
        return known.get(place)

    monkeypatch.setattr(sockets, "towards", known_towards)
    with pytest.raises(NoMulticast, match="no interface leads to the other hosts; this host has: "):
        find_interface(None, ["one", "two"], group)
    assert asked == [("one", 9), ("two", 9), group]
    known |= {group: LOOPBACK}
    assert find_interface(None, ["one", "two"], group) == Interface(LOOPBACK, MAX_MTU)
    known |= {("two", 9): "198.51.100.1"}
    assert find_interface(None, ["one", "two"], group) == Interface("198.51.100.1", MAX_MTU)


def test_no_route_and_the_loopback_interface_lead_to_no_other_host():
    assert towards((LOOPBACK, 9)) is None and towards(("255.255.255.255", 9)) is None
    for _, address in sockets.interfaces():
        if not address.startswith("127."):
            assert towards((address, 9)) == address
