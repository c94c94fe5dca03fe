"""Links, which connect all ranks by IP multicast: one multicast group of all ranks, a shared secret, and a measurement
of the rate that the network carries.

All ranks of a run join one multicast group, even if packets have different receivers. With one group per set of
receivers, a rank would have to join up to C(n-1, r) groups (n: number of ranks, r: redundancy, C: binomial
coefficient). For r = 3 and n = 8, a rank would have to join more groups than Linux allows per socket (20,
net.ipv4.igmp_max_memberships). On a shared medium, such as Wi-Fi, every datagram reaches every rank even with several
groups. A rank knows the receivers of each packet in advance, and ignores packets for other ranks. A packet for one rank
alone is sent to the rank's own address.

A schedule is a generator that yields each object it waits for.
"""

import json
import secrets
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.allreduce.allgather import ring_allgather
from grsgd.comm.coded.datagrams import HEAD_BYTES, IP_BYTES, KEY_BYTES, RUN_BYTES, Name, Seal, number_of_parts
from grsgd.comm.coded.sockets import LARGEST, Interface, NoMulticast, Sockets, find_interface
from grsgd.comm.communicator import Communicator
from grsgd.comm.shared_memory import TELLING_BYTES, host, text_array, text_of, uncounted

ROOM_BYTES = 64 * 2**20
"""Number of bytes of unread datagrams that a rank asks the kernel to keep at each socket. The kernel allocates memory
only for datagrams that are unread at the moment."""
TRIAL_ROUND = 2**32 - 1
"""Number of the exchange in the names of all datagrams of a trial (a measurement of the network's rate)."""
TRIAL_DATAGRAMS, TRIAL_SECONDS = 256, 0.1
"""`TRIAL_DATAGRAMS`: largest number of datagrams that a rank sends in a trial (a measurement of the network's rate).
`TRIAL_SECONDS`: number of seconds after which the rank sends no more datagrams of the trial."""
READING_SHARE = 0.5
"""Largest share of a rank's time that the rank should spend on reading and checking datagrams. The remaining share of
the time is for sending datagrams."""
WINDOW = 16
"""Number of successive datagrams over which a trial averages the time between two datagrams."""
QUIET_SECONDS = 0.05
"""Number of seconds without a datagram after which a receiver assumes that no more datagrams of a trial are under
way."""
FLOOD_SECONDS = 1.0
"""Number of seconds without a datagram of a trial after which the trial ends, even if other datagrams keep arriving."""
READS_AT_ONCE = 128
"""Largest number of datagrams that a rank reads in a row. The limit is necessary because other programs may send
datagrams without end."""


class Settings(NamedTuple):
    """Options for IP multicast that a user can set.

    ``rate``: bytes per second that the network carries for all ranks together, or None if a trial must measure the
    rate. ``interface``: parameter ``wanted`` of `find_interface`. ``mtu``: bytes of the largest IP packet, or None for
    the largest packet that the interfaces of all ranks can send. ``loss``, ``burst``: parameters ``share`` and
    ``burst`` of `losses.lost_parts`. ``seed``: seed for drawing the datagrams that are lost on purpose.
    """

    rate: float | None = None
    interface: str | None = None
    mtu: int | None = None
    loss: float = 0.0
    burst: float = 1.0
    seed: int = 0


BY_ITSELF = Settings()


class Link(NamedTuple):
    """One rank's connection to the other ranks by IP multicast.

    ``addresses``: address of each rank.
    ``part``: number of bytes of a packet that one datagram carries.
    ``room``: number of bytes of unread datagrams that the kernel keeps at each socket of every rank.
    """

    sockets: Sockets
    seal: Seal
    addresses: list[tuple[str, int]]
    part: int
    room: int

    @property
    def datagram(self) -> int:
        """Return the number of bytes of the largest datagram, headers included."""
        return self.part + HEAD_BYTES + IP_BYTES

    def bytes_on_the_way(self, nbytes: int) -> int:
        """Return the total number of bytes of the datagrams that carry a packet of ``nbytes`` bytes, headers
        included."""
        return nbytes + number_of_parts(nbytes, self.part) * (HEAD_BYTES + IP_BYTES)


def connect(comm: Communicator, settings: Settings):
    """Schedule, run on all ranks at once, that returns the `Link` of this rank. The messages of this schedule are not
    counted as traffic.

    Raises NoMulticast on all ranks if any rank finds no interface, has an interface with a smaller MTU than
    ``settings.mtu``, or cannot open its sockets.
    """
    mine = {"host": host(), "name": socket.gethostname()}
    if comm.rank == 0:
        mine |= {"run": secrets.token_hex(RUN_BYTES), "key": secrets.token_hex(KEY_BYTES), **some_group()}
    told = yield from tell(comm, mine)
    group, port = told[0]["group"], told[0]["port"]
    others = list(dict.fromkeys(each["name"] for each in told if each["host"] != mine["host"]))
    sockets, mine = None, {}
    try:
        interface = find_interface(settings.interface, others, (group, port))
        check_mtu(settings.mtu, interface)
        sockets = Sockets(interface, group, port, ROOM_BYTES)
        mine = {"address": sockets.address, "mtu": settings.mtu or interface.mtu, "room": sockets.room}
    except OSError as error:
        mine = {"why": f"{error.strerror or error}"}
    except NoMulticast as error:
        mine = {"why": error.why[:500]}
    seal = Seal(bytes.fromhex(told[0]["run"]), bytes.fromhex(told[0]["key"]))
    try:
        told = yield from tell(comm, mine)
        wrong = {rank: each["why"] for rank, each in enumerate(told) if "why" in each}
        if wrong:
            rank = min(wrong)
            raise NoMulticast(f"rank {rank}: {wrong[rank]}")
    except BaseException:
        sockets.close() if sockets else None
        raise
    part = min(each["mtu"] for each in told) - HEAD_BYTES - IP_BYTES
    addresses, room = [tuple(each["address"]) for each in told], min(each["room"] for each in told)
    return Link(sockets, seal, addresses, part // 4 * 4, room)


def some_group() -> dict:
    """Return a random port, and a random multicast group in the range for use within a site (RFC 2365). Another program
    is unlikely to use this group."""
    first, second, *port = secrets.token_bytes(4)
    return {"group": f"239.255.{first}.{second}", "port": 32768 + int.from_bytes(bytes(port)) % 16384}


def check_mtu(mtu: int | None, interface: Interface):
    """Raise NoMulticast if ``mtu``, the largest packet that the user has chosen, is longer than ``interface``
    allows."""
    if mtu is not None and mtu > interface.mtu:
        raise NoMulticast(f"mtu = {mtu}: the interface {interface.address} takes at most {interface.mtu} bytes")


def tell(comm: Communicator, what: dict):
    """Schedule, run on all ranks at once, that sends the dictionary ``what`` to all ranks, and returns the list of all
    ranks' dictionaries.

    Texts in a dictionary that is too long for a message are cut.
    """
    rows = [text_array("") for _ in range(comm.size)]
    rows[comm.rank][:] = text_array(json_of(what, TELLING_BYTES))
    yield from ring_allgather(uncounted(comm), rows, tags.ARRAYS)
    return [json.loads(text_of(row)) for row in rows]


def json_of(what: dict, most: int) -> str:
    """Return the dictionary ``what`` as JSON of at most ``most`` bytes. The longest texts in ``what`` are cut as far as
    necessary."""
    while len(text := json.dumps(what)) > most:
        longest = max(what, key=lambda key: len(json.dumps(what[key])) if isinstance(what[key], str) else 0)
        what = what | {longest: what[longest][: len(what[longest]) * 3 // 4]}
    return text


class DatagramTrain:
    """Base class of pollables for the datagrams that one rank sends in a trial (a measurement of the network's
    rate)."""

    def __init__(self, link: Link, sender: int, clock: Callable[[], float]):
        self.link, self.sender, self.clock, self.began = link, sender, clock, clock()

    def __str__(self):
        return f"trial of IP multicast: {self.verb} rank {self.sender}"


class Leaving(DatagramTrain):
    verb = "datagrams of"

    def __init__(self, link: Link, sender: int, clock: Callable[[], float]):
        super().__init__(link, sender, clock)
        self.sent, self.content = 0, bytes(link.part)

    def Test(self) -> bool:
        sockets, seal = self.link.sockets, self.link.seal
        while self.sent < TRIAL_DATAGRAMS and self.clock() - self.began < TRIAL_SECONDS:
            head = seal.head(Name(TRIAL_ROUND, self.sender, 0, self.sent), self.content)
            if not sockets.send(head, self.content, sockets.group):
                return False
            self.sent += 1
        return True


class Coming(DatagramTrain):
    """The datagrams that this rank receives in a trial. ``all_sent``: a pollable whose ``Test()`` returns True when the
    sender has sent its last datagram."""

    verb = "datagrams from"

    def __init__(self, link: Link, sender: int, clock: Callable[[], float], all_sent):
        super().__init__(link, sender, clock)
        self.all_sent = all_sent
        self.stamps: dict[int, float] = {}
        """Time in seconds when each datagram of the trial first arrived at this host, by the datagram's number.
        Repeated datagrams are ignored, because other programs may repeat datagrams."""
        self.read, self.reading = self.began, 0.0
        self._buffer = memoryview(bytearray(LARGEST))

    def Test(self) -> bool:
        read_all = self._read()
        if len(self.stamps) == TRIAL_DATAGRAMS:
            return self.all_sent.Test()
        if not self.all_sent.Test():
            self.read = self.clock()
            return False
        return self.clock() - self.read > (QUIET_SECONDS if read_all else FLOOD_SECONDS)

    def _read(self) -> bool:
        """Read up to `READS_AT_ONCE` datagrams that have arrived. Return whether all datagrams that have arrived were
        read."""
        for _ in range(READS_AT_ONCE):
            begin = time.thread_time()
            received = self.link.sockets.receive_stamped(self._buffer)
            if received is None:
                return True
            datagram, when = received
            if self._is_new(datagram):
                self.stamps[self.link.seal.name_of(datagram).part] = when
                self.read = self.clock()
                self.reading += time.thread_time() - begin
        return False

    def _is_new(self, datagram: memoryview) -> bool:
        """Return whether ``datagram`` belongs to this trial, and no datagram with its number has arrived before."""
        name = self.link.seal.name_of(datagram)
        is_ours = name is not None and name[:2] == (TRIAL_ROUND, self.sender)
        return is_ours and name.part not in self.stamps and self.link.seal.content_of(datagram) is not None

    @property
    def rate(self) -> float:
        """Return the rate in bytes per second at which the datagrams of the trial arrived, headers included. Return 0
        if fewer than two datagrams arrived.

        If this rank reads datagrams more slowly than they arrive, return the rate at which this rank can read.
        """
        if len(self.stamps) < 2:
            return 0.0
        reading = self.reading / len(self.stamps) / READING_SHARE
        return self.link.datagram / max(seconds_between(np.array([*self.stamps.values()])), reading, 1e-9)


def seconds_between(stamps: np.ndarray) -> float:
    """Return the typical time in seconds between two successive datagrams, from ``stamps``, the times when datagrams
    arrived.

    The result is the median of the mean times in windows of `WINDOW` datagrams. The median ignores the times when a
    busy host interrupts the sender. The median also ignores the first datagrams, which an idle link lets through at
    once.
    """
    width = min(WINDOW, len(stamps) - 1)
    return float(np.median(stamps[width:] - stamps[:-width])) / width


def try_out(comm: Communicator, link: Link, clock: Callable[[], float]):
    """Schedule, run on all ranks at once, that measures the rate in bytes per second that the network carries from one
    rank at a time, and returns the rate.

    One rank after the other sends datagrams to all other ranks as fast as the rank's interface allows. The result is
    the slowest rate of all pairs of a sender and a receiver. Raises NoMulticast on all ranks if the datagrams of some
    rank do not reach another rank.
    """
    quiet = uncounted(comm)
    rates = [np.full(comm.size, np.inf) for _ in range(comm.size)]
    """Measured rate in bytes per second, by receiver and sender."""
    flags = np.zeros(comm.size, np.uint8)
    for sender in range(comm.size):
        yield from tell(comm, {})  # waits until all ranks have begun the trial of this sender
        if comm.rank == sender:
            yield Leaving(link, sender, clock)
            yield [quiet.Isend(flags[:1], rank, tags.CODED_CONTROL) for rank in range(comm.size) if rank != sender]
            continue
        coming = Coming(link, sender, clock, quiet.Irecv(flags[sender : sender + 1], sender, tags.CODED_CONTROL))
        yield coming
        rates[comm.rank][sender] = coming.rate
    yield from ring_allgather(quiet, rates, tags.ARRAYS)
    hosts = [each["host"] for each in (yield from tell(comm, {"host": socket.gethostname()}))]
    for receiver, sender in np.argwhere(np.array(rates) == 0).tolist():
        raise NoMulticast(
            f"datagrams of {link.datagram} bytes from rank {sender} on {hosts[sender]} do not reach rank {receiver} "
            f"on {hosts[receiver]}"
        )
    return float(np.min(rates))
