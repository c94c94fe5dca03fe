"""Links, which connect all ranks by IP multicast: one multicast group of all ranks, a shared secret, and a measurement
of the rate that the network carries.

All ranks of a run join one multicast group, even if packets have different receivers. With one group per set of
receivers, a rank would have to join up to C(n-1, r) groups (n: number of ranks, r: redundancy, C: binomial
coefficient). For redundancy r = 3 and n = 8 ranks, a rank would have to join more groups than Linux allows per socket
(20, net.ipv4.igmp_max_memberships). On a shared medium such as Wi-Fi, several groups would save nothing, because every
datagram reaches every rank's host. A rank knows the receivers of each packet in advance, and ignores packets of which
it is no receiver. A packet with one receiver is sent to the receiver's own address instead of the multicast group.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
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
only for the datagrams that are unread at the moment, and not for all `ROOM_BYTES` bytes."""
TRIAL_ROUND = 2**32 - 1
"""Number that stands for the exchange in the headers of all datagrams of a trial (a measurement of the network's
rate)."""
TRIAL_DATAGRAMS, TRIAL_SECONDS = 256, 0.1
"""`TRIAL_DATAGRAMS`: largest number of datagrams that a rank sends in a trial (a measurement of the network's rate).
`TRIAL_SECONDS`: number of seconds after which the rank sends no more datagrams of the trial, even if it has sent
fewer."""
READING_SHARE = 0.5
"""Largest share of its time that a rank should spend on reading and checking datagrams. The rest of the rank's time is
for sending datagrams."""
WINDOW = 16
"""Number of successive datagrams over which the time between two datagrams is averaged, when a trial measures the
network's rate."""
QUIET_SECONDS = 0.05
"""Number of seconds without any datagram after which a receiver assumes that no more datagrams of a trial (a
measurement of the network's rate) will arrive."""
FLOOD_SECONDS = 1.0
"""Number of seconds without a datagram of the trial after which a trial ends, even if datagrams of other programs keep
arriving."""
READS_AT_ONCE = 128
"""Largest number of datagrams that a rank reads before it does other work. Without this limit, a rank could read for
ever, because other programs may send datagrams without end."""


class Settings(NamedTuple):
    """Options for IP multicast that a user can set in the run file.

    ``rate``: bytes per second that the network carries for all ranks together, or None if a trial at the start must
    measure the rate. ``interface``: network interface that the user has chosen (parameter ``wanted`` of
    `find_interface`). ``mtu``: number of bytes of the largest IP packet, or None for the largest IP packet that the
    interfaces of all ranks can send. ``loss``, ``burst``: which parts of packets are discarded on purpose (parameters
    ``share`` and ``burst`` of `losses.lost_parts`). ``seed``: seed of the random choice of the parts that are discarded
    on purpose.
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

    ``addresses``: network address (host, port) of each rank.
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
    """Generator (schedule), run on all ranks at once, that returns the `Link` of this rank. The messages of this
    schedule are not counted as traffic of the run.

    Raises NoMulticast on all ranks if some rank finds no network interface, has an interface with a smaller MTU than
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
    """Return a random port, and a random multicast group of the range that RFC 2365 reserves for use within a site.
    Because the group and the port are random, another program is unlikely to use them."""
    first, second, *port = secrets.token_bytes(4)
    return {"group": f"239.255.{first}.{second}", "port": 32768 + int.from_bytes(bytes(port)) % 16384}


def check_mtu(mtu: int | None, interface: Interface):
    """Raise NoMulticast if ``mtu``, the largest IP packet in bytes that the user has chosen, is larger than
    ``interface`` allows."""
    if mtu is not None and mtu > interface.mtu:
        raise NoMulticast(f"mtu = {mtu}: the interface {interface.address} takes at most {interface.mtu} bytes")


def tell(comm: Communicator, what: dict):
    """Generator (schedule), run on all ranks at once, that sends the dictionary ``what`` to all ranks, and returns the
    list of all ranks' dictionaries.

    If the dictionary is too long for a message, its longest texts are cut.
    """
    rows = [text_array("") for _ in range(comm.size)]
    rows[comm.rank][:] = text_array(json_of(what, TELLING_BYTES))
    yield from ring_allgather(uncounted(comm), rows, tags.ARRAYS)
    return [json.loads(text_of(row)) for row in rows]


def json_of(what: dict, most: int) -> str:
    """Return the dictionary ``what`` as JSON of at most ``most`` bytes. The longest texts in ``what`` are cut until the
    JSON is short enough."""
    while len(text := json.dumps(what)) > most:
        longest = max(what, key=lambda key: len(json.dumps(what[key])) if isinstance(what[key], str) else 0)
        what = what | {longest: what[longest][: len(what[longest]) * 3 // 4]}
    return text


class DatagramTrain:
    """Base class of two pollables, for the datagrams that one rank sends and the other ranks receive in a trial (a
    measurement of the network's rate)."""

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
    """A pollable for the datagrams that this rank receives in a trial (a measurement of the network's rate).
    ``all_sent``: a pollable whose ``Test()`` returns True when the sender has sent the last datagram of the trial."""

    verb = "datagrams from"

    def __init__(self, link: Link, sender: int, clock: Callable[[], float], all_sent):
        super().__init__(link, sender, clock)
        self.all_sent = all_sent
        self.stamps: dict[int, float] = {}
        """Time in seconds when each datagram of the trial first arrived at this host, by the datagram's number.
        Repeated datagrams are ignored, because other programs may send a copy of a datagram."""
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
        """Read up to `READS_AT_ONCE` datagrams that have arrived. Return True if no datagram that has arrived is left
        unread."""
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
        """Return True if ``datagram`` belongs to this trial, and no datagram with the same number has arrived
        before."""
        name = self.link.seal.name_of(datagram)
        is_ours = name is not None and name[:2] == (TRIAL_ROUND, self.sender)
        return is_ours and name.part not in self.stamps and self.link.seal.content_of(datagram) is not None

    @property
    def rate(self) -> float:
        """Return the rate in bytes per second at which the datagrams of the trial arrived, headers included. If fewer
        than two datagrams of the trial arrived, the rate is 0.

        If this rank reads datagrams more slowly than they arrive, the rate is the rate at which this rank can read.
        """
        if len(self.stamps) < 2:
            return 0.0
        reading = self.reading / len(self.stamps) / READING_SHARE
        return self.link.datagram / max(seconds_between(np.array([*self.stamps.values()])), reading, 1e-9)


def seconds_between(stamps: np.ndarray) -> float:
    """Return the typical time in seconds between two successive datagrams, where ``stamps`` are the times at which the
    datagrams arrived.

    The returned time is the median of the mean times in windows of `WINDOW` datagrams. By using the median, the
    function ignores the windows in which a busy host interrupted the sender. The median also ignores the first
    datagrams, which an idle network link lets through without delay.
    """
    width = min(WINDOW, len(stamps) - 1)
    return float(np.median(stamps[width:] - stamps[:-width])) / width


def try_out(comm: Communicator, link: Link, clock: Callable[[], float]):
    """Generator (schedule), run on all ranks at once, that measures and returns the rate in bytes per second at which
    the network carries datagrams from one rank at a time.

    One rank after the other sends datagrams to all other ranks as fast as the rank's interface allows. The returned
    rate is the slowest rate of all pairs of a sender and a receiver. Raises NoMulticast on all ranks if the datagrams
    of some rank do not reach another rank.
    """
    quiet = uncounted(comm)
    rates = [np.full(comm.size, np.inf) for _ in range(comm.size)]
    """Measured rate in bytes per second, by receiving rank and sending rank."""
    flags = np.zeros(comm.size, np.uint8)
    for sender in range(comm.size):
        yield from tell(comm, {})  # wait until all ranks have begun the trial with this sender
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
