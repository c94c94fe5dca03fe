"""The sockets of one rank for IP multicast, and the interface of its host that they use."""

import errno
import fcntl
import ipaddress
import socket
import struct
import time
from contextlib import suppress
from typing import NamedTuple

from grsgd.errors import ConfigError

SIOCGIFADDR, SIOCGIFMTU = 0x8915, 0x8921
SO_RCVBUFFORCE = 33
"""Like SO_RCVBUF, beyond net.core.rmem_max, for processes that may."""
SO_TIMESTAMPNS = 35
LOOPBACK = "127.0.0.1"
MAX_MTU = 9000
"""The longest datagrams, headers of IP included: jumbo frames. The interface of a host to itself would take more."""
LARGEST = 65536


class NoMulticast(ConfigError):
    """Ranks cannot reach each other by IP multicast: why, in one line, and what is allowed. All raise the same one."""

    def __init__(self, why: str):
        self.why = why
        super().__init__(f"transport = 'ip-multicast': {why}; allowed here: 'multicast', 'unicast', 'auto'")


class Interface(NamedTuple):
    """An interface of this host: its IPv4 address, and the bytes of its largest packet."""

    address: str
    mtu: int


class Sockets:
    """One socket for what is sent to a multicast group, one for what is sent to this rank alone, and to send.

    Raises OSError.

    Parameters
    ----------
    interface
        What datagrams leave and come through.
    group, port
        The group's address, and the port of all its members.
    room
        Bytes of datagrams that should be kept until this rank reads them; `room` tells how many are.
    """

    def __init__(self, interface: Interface, group: str, port: int, room: int):
        self.group = group, port
        self._turn = 0
        self.own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.common = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            here = socket.inet_aton(interface.address)
            self.common.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # several ranks of a host
            self.common.bind(self.group)
            self.common.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + here)
            self.own.bind((interface.address, 0))
            self.own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
            self.own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)  # for other ranks of this host
            self.own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
            self.make_room(room)
            for each in (self.own, self.common):
                each.setblocking(False)
            with suppress(OSError):
                self.common.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        except OSError:
            self.close()
            raise

    def make_room(self, nbytes: int):
        """Ask for room for so many bytes of datagrams at each socket; `room` tells for how many there is some."""
        self.room = min(room_of(each, nbytes) for each in (self.own, self.common))

    @property
    def address(self) -> tuple[str, int]:
        """Where datagrams for this rank alone are sent to."""
        return self.own.getsockname()

    def send(self, head: bytes, content, address: tuple[str, int]) -> bool:
        """Send a datagram; returns whether there was room for it. Raises OSError."""
        try:
            self.own.sendmsg([head, content], [], 0, address)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                return False
            raise
        return True

    def receive(self, buffer: memoryview) -> memoryview | None:
        """Return the beginning of ``buffer`` with the next datagram in it; None if none has come."""
        for _ in range(2):  # in turn: what strangers send to one socket keeps nothing of the other one waiting
            self._turn = 1 - self._turn
            with suppress(BlockingIOError):
                return buffer[: (self.own, self.common)[self._turn].recv_into(buffer)]
        return None

    def receive_stamped(self, buffer: memoryview) -> tuple[memoryview, float] | None:
        """The same of the group's datagrams alone, with the seconds when it came to this host, by a clock of its own:
        when this rank reads it says little."""
        with suppress(BlockingIOError):
            nbytes, more, *_ = self.common.recvmsg_into([buffer], 256)
            stamps = [data for level, kind, data in more if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS)]
            seconds, nanoseconds = struct.unpack("qq", stamps[0]) if stamps else (0, time.time_ns())
            return buffer[:nbytes], seconds + nanoseconds * 1e-9
        return None

    def close(self):
        self.own.close()
        self.common.close()


def room_of(one: socket.socket, nbytes: int) -> int:
    """Ask for room for so many bytes of datagrams at a socket; returns for how many there is room.

    Linux doubles what is asked for, because datagrams take more memory than they have bytes: up to twice as much.
    """
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, nbytes)
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, nbytes)
    return one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def find_interface(wanted: str | None, others: list[str], group: tuple[str, int]) -> Interface:
    """Return the interface that ``wanted`` says: a name, an address, or a network such as 10.0.0.0/24. By default the
    one towards the first of the other hosts whose name is known here; without others the host's own.

    Raises NoMulticast.
    """
    there = interfaces()
    if wanted is not None:
        address = next((found for name, found in there if name == wanted or lies_in(found, wanted)), None)
    elif not others:
        address = LOOPBACK
    else:
        address = next(filter(None, (towards(place) for place in [*((name, 9) for name in others), group])), None)
    if address is None:
        found = ", ".join(f"{name} ({address})" for name, address in there)
        what = f"no interface {wanted!r}" if wanted else "no interface leads to the other hosts"
        raise NoMulticast(f"{what}; there are: {found}")
    name = next((name for name, found in there if found == address), None)
    return Interface(address, min(mtu_of(name) if name else MAX_MTU, MAX_MTU))


def lies_in(address: str, network: str) -> bool:
    with suppress(ValueError):
        return ipaddress.IPv4Address(address) in ipaddress.IPv4Network(network, strict=False)
    return False


def towards(place: tuple[str, int]) -> str | None:
    """Return the address of the interface whose route leads to a host, whose name is looked up, or to a group; None if
    none does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, suppress(OSError):
        one.connect(place)  # sends nothing
        address = one.getsockname()[0]
        return None if address.startswith("127.") else address
    return None


def interfaces() -> list[tuple[str, str]]:
    """Return name and IPv4 address of this host's interfaces that have one."""
    found = []
    for _, name in socket.if_nameindex():
        with suppress(OSError):
            found.append((name, socket.inet_ntoa(asked(name, SIOCGIFADDR)[20:24])))
    return found


def mtu_of(name: str) -> int:
    """Return the bytes of the largest packet of an interface."""
    return struct.unpack_from("i", asked(name, SIOCGIFMTU), 16)[0]


def asked(name: str, request: int) -> bytes:
    """Return what the kernel says of an interface. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        return fcntl.ioctl(one.fileno(), request, struct.pack("256s", name.encode()[:15]))
