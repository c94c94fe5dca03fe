"""The sockets with which a rank sends and receives datagrams by IP multicast, and the choice of the host's network
interface for these sockets."""

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
"""Number of the socket option SO_RCVBUFFORCE, which sets the size of the receive buffer like SO_RCVBUF, but lets a
privileged process exceed the limit net.core.rmem_max."""
SO_TIMESTAMPNS = 35
LOOPBACK = "127.0.0.1"
MAX_MTU = 9000
"""Number of bytes of the longest datagrams that ranks send, with headers of IP: the size of jumbo frames of Ethernet.
The limit matters on the loopback interface of a host, which allows longer datagrams."""
LARGEST = 65536


class NoMulticast(ConfigError):
    """Error raised if the datagrams of some rank cannot reach another rank by IP multicast.

    The message of `NoMulticast` is one line: the reason, and the transports that the user can choose instead. All ranks
    raise `NoMulticast` with the same message.
    """

    def __init__(self, why: str):
        self.why = why
        super().__init__(f"transport = 'ip-multicast': {why}; allowed here: 'multicast', 'unicast', 'auto'")


class Interface(NamedTuple):
    """A network interface of this host. ``address``: IPv4 address. ``mtu``: number of bytes of the largest IP packet
    that the interface can send."""

    address: str
    mtu: int


class Sockets:
    """The two sockets by which a rank sends and receives datagrams for IP multicast. The socket `common` receives
    datagrams that were sent to the multicast group. The socket `own` sends datagrams, and receives datagrams that were
    sent to this rank's own address.

    The constructor raises OSError if the sockets cannot be opened.

    Parameters
    ----------
    interface
        Network interface of the host to which both sockets are bound.
    group, port
        Address of the multicast group, and port of its members.
    room
        Bytes of unread datagrams that the kernel should keep at each socket. The attribute `room` is the number of
        bytes that the kernel grants at each socket.
    """

    def __init__(self, interface: Interface, group: str, port: int, room: int):
        self.group = group, port
        self._turn = 0
        self.own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.common = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            here = socket.inet_aton(interface.address)
            self.common.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # all ranks of a host bind the same port
            self.common.bind(self.group)
            self.common.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + here)
            self.own.bind((interface.address, 0))
            self.own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
            # multicast datagrams also reach receivers on this host
            self.own.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
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
        """Ask the kernel to keep up to ``nbytes`` bytes of unread datagrams at each of the two sockets. Set the
        attribute `room` to the number of bytes that the kernel grants at each socket."""
        self.room = min(room_of(each, nbytes) for each in (self.own, self.common))

    @property
    def address(self) -> tuple[str, int]:
        """Return the address and port to which other ranks send datagrams that are meant only for this rank."""
        return self.own.getsockname()

    def send(self, head: bytes, content, address: tuple[str, int]) -> bool:
        """Send the datagram that consists of ``head`` and ``content`` to ``address``. Return False if the socket's
        buffer had no space for the datagram. Raises OSError if the datagram cannot be sent for another reason."""
        try:
            self.own.sendmsg([head, content], [], 0, address)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                return False
            raise
        return True

    def receive(self, buffer: memoryview) -> memoryview | None:
        """Read the next datagram that has arrived at one of the two sockets into ``buffer``. Return the view of
        ``buffer`` that holds the datagram, or None if no datagram has arrived."""
        for _ in range(2):  # try the two sockets in turn, so that a flood at one socket does not delay the other socket
            self._turn = 1 - self._turn
            with suppress(BlockingIOError):
                return buffer[: (self.own, self.common)[self._turn].recv_into(buffer)]
        return None

    def receive_stamped(self, buffer: memoryview) -> tuple[memoryview, float] | None:
        """Read the next datagram that was sent to the multicast group into ``buffer``. Return the datagram and the time
        in seconds at which it arrived at this host, or None if no datagram has arrived.

        The time of arrival comes from the kernel, because a busy rank may read a datagram much later than it arrived.
        """
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
    """Ask the kernel to keep up to ``nbytes`` bytes of unread datagrams at the socket ``one``. Return the number of
    bytes of unread datagrams that the kernel grants.

    Linux reserves twice the requested number of bytes, because a datagram takes up to twice its size in the kernel's
    memory.
    """
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, nbytes)
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, nbytes)
    return one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def find_interface(wanted: str | None, others: list[str], group: tuple[str, int]) -> Interface:
    """Return the network interface of this host that the user has chosen by ``wanted``: the interface's name, its
    address, or its network such as 10.0.0.0/24.

    If ``wanted`` is None and ``others`` (the names of the other hosts) is empty, return the loopback interface. If
    ``wanted`` is None and ``others`` contains hosts, return the interface of the route to the first of these hosts to
    which a route leads. If no route leads to any host in ``others``, return the interface from which a route leads to
    the multicast group ``group``. Raises NoMulticast if this host has no such network interface.
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
        raise NoMulticast(f"{what}; this host has: {found}")
    name = next((name for name, found in there if found == address), None)
    return Interface(address, min(mtu_of(name) if name else MAX_MTU, MAX_MTU))


def lies_in(address: str, network: str) -> bool:
    with suppress(ValueError):
        return ipaddress.IPv4Address(address) in ipaddress.IPv4Network(network, strict=False)
    return False


def towards(place: tuple[str, int]) -> str | None:
    """Return the IPv4 address of the network interface from which a route leads to ``place``, the address and port of a
    host or a multicast group. Return None if no route leads to ``place``.

    If ``place`` contains the name of a host, the operating system looks up its address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, suppress(OSError):
        one.connect(place)  # connect() on a UDP socket only finds a route, and sends no datagram
        address = one.getsockname()[0]
        return None if address.startswith("127.") else address
    return None


def interfaces() -> list[tuple[str, str]]:
    """Return (name, IPv4 address) of each network interface of this host that has an IPv4 address."""
    found = []
    for _, name in socket.if_nameindex():
        with suppress(OSError):
            found.append((name, socket.inet_ntoa(asked(name, SIOCGIFADDR)[20:24])))
    return found


def mtu_of(name: str) -> int:
    """Return the number of bytes of the largest packet that the network interface ``name`` can send."""
    return struct.unpack_from("i", asked(name, SIOCGIFMTU), 16)[0]


def asked(name: str, request: int) -> bytes:
    """Ask the kernel about the network interface ``name`` by the ioctl call with the number ``request``, and return the
    kernel's answer. Raises OSError if the kernel cannot answer the request."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        return fcntl.ioctl(one.fileno(), request, struct.pack("256s", name.encode()[:15]))
