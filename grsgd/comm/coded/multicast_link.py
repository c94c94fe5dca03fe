"""How ranks come to reach each other by IP multicast: one group of all, a secret, and a rate that the network takes.

All ranks of a run join one group, whatever packets go to whom: with a group for each set of receivers a rank would
have to join up to C(n-1, r), more than Linux lets a socket (net.ipv4.igmp_max_memberships, 20) for r = 3 and 8 ranks; a
shared medium brings everything to everybody anyway; and who a packet is for stands in the plan. What goes to one rank
alone is sent to its address.
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
"""Room for datagrams that is asked for at each socket; the kernel takes memory for what lies there alone."""
TRIAL_ROUND = 2**32 - 1
"""Stands for the exchange in the names of datagrams of a trial."""
TRIAL_DATAGRAMS, TRIAL_SECONDS = 256, 0.1
"""How many datagrams a rank sends in a trial, and for how long at most."""
READING_SHARE = 0.5
"""The share of its time that a rank may read datagrams in, which it checks, too; the rest is for sending."""
WINDOW = 16
"""Datagrams over which the time from one to the next is taken."""
QUIET_SECONDS = 0.05
"""After so long without a datagram, none of a trial is under way any more."""
FLOOD_SECONDS = 1.0
"""After so long without one a trial ends although more datagrams wait to be read: they may be those of strangers."""
READS_AT_ONCE = 128
"""Datagrams that a rank reads before it looks at anything else: strangers may send without an end."""


class Settings(NamedTuple):
    """Options that a user may give for IP multicast.

    ``rate``: bytes per second that the network takes of all ranks together; None: what a trial finds. ``interface``:
    as of `find_interface`. ``mtu``: bytes of the largest packet; None: what all interfaces take. ``loss``, ``burst``:
    as of `losses.lost_parts`. ``seed``: of the datagrams that are lost on purpose.
    """

    rate: float | None = None
    interface: str | None = None
    mtu: int | None = None
    loss: float = 0.0
    burst: float = 1.0
    seed: int = 0


BY_ITSELF = Settings()


class Link(NamedTuple):
    """One rank's way to the others. ``addresses``: of each rank; ``part``: bytes of a packet in a datagram; ``room``:
    for how many bytes of datagrams each rank has room at least."""

    sockets: Sockets
    seal: Seal
    addresses: list[tuple[str, int]]
    part: int
    room: int

    @property
    def datagram(self) -> int:
        """Bytes of the largest datagram, headers included."""
        return self.part + HEAD_BYTES + IP_BYTES

    def bytes_on_the_way(self, nbytes: int) -> int:
        """Return how many bytes a packet of so many has as datagrams, headers included."""
        return nbytes + number_of_parts(nbytes, self.part) * (HEAD_BYTES + IP_BYTES)


def connect(comm: Communicator, settings: Settings):
    """Schedule, on all ranks at once: return the `Link` of this one. Its messages are not counted.

    Raises NoMulticast, on all ranks.
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
    """Return a group that nobody else is likely to use: of those for use within a site, RFC 2365."""
    first, second, *port = secrets.token_bytes(4)
    return {"group": f"239.255.{first}.{second}", "port": 32768 + int.from_bytes(bytes(port)) % 16384}


def check_mtu(mtu: int | None, interface: Interface):
    """Raise NoMulticast for packets that the interface does not take."""
    if mtu is not None and mtu > interface.mtu:
        raise NoMulticast(f"mtu = {mtu}: the interface {interface.address} takes {interface.mtu} at most")


def tell(comm: Communicator, what: dict):
    """Schedule, on all ranks at once: return what each rank tells the others; a text that is too long is cut."""
    rows = [text_array("") for _ in range(comm.size)]
    rows[comm.rank][:] = text_array(json_of(what, TELLING_BYTES))
    yield from ring_allgather(uncounted(comm), rows, tags.ARRAYS)
    return [json.loads(text_of(row)) for row in rows]


def json_of(what: dict, most: int) -> str:
    """Return JSON of at most so many bytes, in which the longest texts of ``what`` are cut as far as that needs."""
    while len(text := json.dumps(what)) > most:
        longest = max(what, key=lambda key: len(json.dumps(what[key])) if isinstance(what[key], str) else 0)
        what = what | {longest: what[longest][: len(what[longest]) * 3 // 4]}
    return text


class DatagramTrain:
    """A pollable: the datagrams of one rank in a trial have left, or have come."""

    def __init__(self, link: Link, sender: int, clock: Callable[[], float]):
        self.link, self.sender, self.clock, self.began = link, sender, clock, clock()

    def __str__(self):
        return f"trial of IP multicast: {self.verb} of rank {self.sender}"


class Leaving(DatagramTrain):
    verb = "datagrams"

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
    """``all_sent``: true when the last one has left."""

    verb = "datagrams from"

    def __init__(self, link: Link, sender: int, clock: Callable[[], float], all_sent):
        super().__init__(link, sender, clock)
        self.all_sent = all_sent
        self.stamps: dict[int, float] = {}
        """When each datagram of the trial first came to this host, by its number: strangers may repeat some."""
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
        """Take in the datagrams that have come, `READS_AT_ONCE` of them; returns whether these were all."""
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
        """Return whether a datagram is one of this trial, and the first with its number."""
        name = self.link.seal.name_of(datagram)
        is_ours = name is not None and name[:2] == (TRIAL_ROUND, self.sender)
        return is_ours and name.part not in self.stamps and self.link.seal.content_of(datagram) is not None

    @property
    def rate(self) -> float:
        """The bytes per second that have come, headers included, or that this rank can read, if that is less; 0 if
        nothing has come."""
        if len(self.stamps) < 2:
            return 0.0
        reading = self.reading / len(self.stamps) / READING_SHARE
        return self.link.datagram / max(seconds_between(np.array([*self.stamps.values()])), reading, 1e-9)


def seconds_between(stamps: np.ndarray) -> float:
    """Return how many seconds there were from one datagram to the next.

    The median over `WINDOW` of them at a time: a sender on a busy host is kept from sending now and then, and what an
    idle link lets through at once at first says as little.
    """
    width = min(WINDOW, len(stamps) - 1)
    return float(np.median(stamps[width:] - stamps[:-width])) / width


def try_out(comm: Communicator, link: Link, clock: Callable[[], float]):
    """Schedule, on all ranks at once: return the bytes per second that the network takes from one rank at a time.

    One rank after the other sends to all others as fast as its interface takes it. The slowest of all counts, be it a
    link or a rank that reads. Raises NoMulticast, on all ranks, where nothing comes through.
    """
    quiet = uncounted(comm)
    rates = [np.full(comm.size, np.inf) for _ in range(comm.size)]
    """By receiver, of each sender."""
    flags = np.zeros(comm.size, np.uint8)
    for sender in range(comm.size):
        yield from tell(comm, {})  # until all are there
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
            f"datagrams of {link.datagram} bytes from rank {sender} on {hosts[sender]} do not come to rank {receiver} "
            f"on {hosts[receiver]}"
        )
    return float(np.min(rates))
