"""A transport that sends packets (messages with parts of gradients) by IP multicast: the sender sends each packet once,
in datagrams that reach all receivers of the packet.

The ranks exchange packets in the following steps, and do not wait for each other between two exchanges:

1. A rank tells the other ranks by MPI when it is ready to receive datagrams. A rank sends no datagram before all ranks
   are ready, because a rank that still computes reads no datagrams, so that its kernel would have to keep them.
2. A rank sends its datagrams as fast as the rank's share of the network's rate allows. After the last datagram of a
   packet, the rank tells the packet's receivers by MPI that all datagrams of the packet have been sent.
3. As soon as a packet is complete or no more datagrams arrive, each receiver tells the packet's sender by MPI which
   parts of the packet it lacks.
4. The sender of a packet sends all missing parts to the receiver in one message by MPI, which loses no message. The
   sender keeps a packet until each receiver has reported that it lacks no part, or has been sent all missing parts.
5. If the sender does not answer in time, or sends nothing for too long before it has sent all datagrams, the receiver
   asks other ranks for the missing parts (`grsgd.comm.coded.repairs`). A rank that has finished the exchange tells the
   other ranks, so that they do not ask it for missing parts.

No method of `IpMulticast` waits for messages or datagrams. When a schedule waits for a packet, the packet's ``Test()``
sends and receives the datagrams of all packets (`IpMulticast.move`).

A schedule is a generator that yields each object (such as a packet) for which the schedule waits.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from coding.plan import Packet
from grsgd.comm.coded.control import Control, ControlKind, Told
from grsgd.comm.coded.datagrams import HEAD_BYTES, number_of_parts
from grsgd.comm.coded.losses import lost_parts
from grsgd.comm.coded.multicast import Blocks, Unicast
from grsgd.comm.coded.multicast_link import BY_ITSELF, READS_AT_ONCE, Link, Settings, connect, tell, try_out
from grsgd.comm.coded.pacing import Pace
from grsgd.comm.coded.packets import Incoming, Outgoing
from grsgd.comm.coded.repairs import Repairs
from grsgd.comm.coded.sockets import LARGEST
from grsgd.comm.communicator import Communicator
from grsgd.runs.numbers import human_bytes
from grsgd.seeding import Purpose, generator
from grsgd.text import ranks_in_words
from grsgd.units import as_rate

SHARE = 0.95
"""Share of the network's rate that the datagrams of all ranks together may use. The rest of the network's rate is left
for messages by MPI."""
UNREAD_SECONDS = 0.05
"""Longest time in seconds for which a busy rank is expected to read no datagrams. The kernel must be able to keep the
datagrams that arrive at the rank's sockets in `UNREAD_SECONDS`."""
ROOM_SHARE, MIN_ROOM = 2, 4 * 2**20
"""A rank asks the kernel to keep, at each socket, unread datagrams of `ROOM_SHARE` times the bytes that arrive in
`UNREAD_SECONDS`, but of at least `MIN_ROOM` bytes.

`ROOM_SHARE` is larger than 1, because the kernel counts its own overhead of each datagram as well as the datagram's
bytes. These numbers also limit the kernel memory that datagrams of other programs can use at a socket.
"""


class IpMulticast(Unicast):
    """A transport that sends a packet with several receivers to a multicast group of all ranks, and a packet with one
    receiver to the receiver's address.

    The methods ``open`` and ``close`` are schedules (generators that a driver runs). All n ranks send at the same time,
    each at ``SHARE`` / n of the network's rate. Therefore all ranks together use almost the whole rate of a shared
    medium such as Wi-Fi, and no receiver gets datagrams at a higher rate than its network link carries.
    """

    def __init__(self, comm: Communicator, settings: Settings = BY_ITSELF, clock: Callable = time.perf_counter):
        super().__init__(comm)
        self.settings, self.clock = settings, clock
        self.link: Link | None = None
        self.pace: Pace | None = None
        self.control = Control(comm)
        self.repairs: Repairs | None = None
        self.slower = ""
        """Warning for the user that says why packets are sent more slowly than the network allows. The warning is empty
        if packets are sent at the network's rate."""
        self.rejected = 0
        """Number of received datagrams with a wrong digest, which were damaged or did not come from a rank of this
        run."""
        self._packets: dict[tuple[int, int], int] = {}
        """Number of bytes of each packet that this rank receives, by the packet's sender and number."""
        self._lost: dict[tuple[int, int], np.ndarray] = {}
        """The parts that this rank discards on purpose (True) of each packet of the present exchange, by the packet's
        sender and number."""
        self._incoming: dict[tuple[int, int], Incoming] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self._to_send: deque[Outgoing] = deque()
        self._early_answers: dict[int, list[tuple]] = {}
        """Reports of receivers that arrived before this rank began to send the packet: pairs (receiver, mask of the
        parts that the receiver lacks), by the packet's number. A receiver can send its report before the packet is
        sent, because other ranks may have sent the packet's parts to the receiver."""
        self._early: dict[tuple[int, int], dict[int, bytes]] = {}
        """Parts of packets of the present exchange that arrived before this rank called `receive` for the packet, by
        the packet's sender and number."""
        self._sent: dict[tuple[int, int], float] = {}
        """Time at which a packet's sender reported to this rank that it had sent all datagrams of the packet, by the
        packet's sender and number."""
        self._ready = [0] * comm.size
        """Number of the last exchange for which each rank has reported that it is ready to receive datagrams."""
        self._left = [0] * comm.size
        """Number of the last exchange that each rank has reported as finished to this rank. A rank that has finished an
        exchange computes gradients, and answers no requests for missing parts."""
        self.sending_seconds = 0.0
        """Number of seconds that this rank needs to send the datagrams of all its packets in an exchange.

        A receiver that gets no datagrams from a sender waits at least `sending_seconds` before it asks other ranks for
        missing parts, because the sender may be sending to other receivers.
        """
        self._ended: set[int] = set()
        self.heard = [0.0] * comm.size
        """Last time at which this rank received from each sender a datagram, or a control message that says that all
        datagrams of a packet have been sent."""
        self._buffer = memoryview(bytearray(LARGEST))

    def open(self, packets: Mapping[Packet, int], blocks: Blocks | None = None):
        """Generator (schedule), run on all ranks at once, that connects this rank to the other ranks by IP multicast,
        and prepares the exchange of ``packets``. Raises NoMulticast if the datagrams of some rank do not reach another
        rank."""
        if self.comm.size == 1:
            return
        rank = self.comm.rank
        self._packets = {(each.sender, each.number): size for each, size in packets.items() if each.sender != rank}
        self.link = yield from connect(self.comm, self.settings)
        try:
            rate = self.settings.rate or (yield from try_out(self.comm, self.link, self.clock))
            coming = yield from self._coming(packets)
            rate = self._readable(rate, coming)
            self.link.sockets.make_room(max(MIN_ROOM, ROOM_SHARE * int(min(coming, rate * UNREAD_SECONDS))))
        except BaseException:
            self._close_sockets()
            raise
        self.pace = Pace(SHARE * rate / self.comm.size, self.link.datagram, self.clock)
        own = sum(self.link.bytes_on_the_way(size) for each, size in packets.items() if each.sender == rank)
        self.sending_seconds = self.pace.seconds(own)
        largest = max(packets.values(), default=0)
        self.repairs = Repairs(self.comm, self.control, self.link, self.pace, blocks, largest)

    def _coming(self, packets: Mapping[Packet, int]):
        """Generator (schedule), run on all ranks at once, that returns the largest number of bytes of datagrams that
        arrive at one socket in an exchange. The number is the maximum over the sockets of all ranks.

        A datagram to the multicast group arrives at every rank, even at its sender, and at ranks that are no receivers
        of the packet.
        """
        to_group = to_this = 0
        for packet, size in packets.items():
            nbytes = self.link.bytes_on_the_way(size)
            if len(packet.receivers) == 1:
                to_this += nbytes * (packet.sender != self.comm.rank)
            elif packet.sender == self.comm.rank:
                to_group += nbytes
        told = yield from tell(self.comm, {"to group": to_group, "to this": to_this})
        return max(sum(each["to group"] for each in told), *(each["to this"] for each in told))

    def _readable(self, rate: float, coming: int) -> float:
        """Return ``rate``, or, if ``rate`` is too high, the rate at which the kernel can keep all datagrams that arrive
        while a rank reads none.

        All ranks must use the same rate, because the kernel of each rank's host must keep the datagrams that all ranks
        send.
        """
        room = self.link.room
        if min(coming, rate * UNREAD_SECONDS) <= room:
            return rate
        self.slower = (
            f"IP multicast: the kernel keeps at most {human_bytes(room)} of unread datagrams, so all ranks together "
            f"send at {as_rate(room / UNREAD_SECONDS)} instead of {as_rate(rate)}: raise net.core.rmem_max to "
            f"{min(coming, int(rate * UNREAD_SECONDS))}"
        )
        return room / UNREAD_SECONDS

    def next_round(self):
        super().next_round()
        self._early.clear()
        self._lost.clear()
        self._sent.clear()
        self._incoming.clear()
        self._outgoing.clear()
        self._early_answers.clear()
        if self.link is not None:
            # Read and ignore the datagrams of earlier exchanges at both sockets, to make room for new datagrams.
            self._read(2 * self.link.sockets.room // self.link.datagram)
            self.repairs.round = self.round
        self._ready[self.comm.rank] = self.round
        self.control.tell_others(ControlKind.READY, self.round)

    def end_round(self):
        if self.link is not None:
            self.repairs.round = None
        self.control.tell_others(ControlKind.LEFT, self.round)

    def send(self, packet, content):
        outgoing = Outgoing(self, packet, content)
        self._outgoing[packet.number] = outgoing
        self._to_send.append(outgoing)
        heads = outgoing.parts.lacking * HEAD_BYTES
        self.comm.traffic.count(packet.receivers, content.nbytes + heads, heads)
        for rank, bits in self._early_answers.pop(packet.number, ()):
            outgoing.repair(rank, bits)
        return [outgoing]

    def receive(self, packet, content):
        key = packet.sender, packet.number
        incoming = self._incoming[key] = Incoming(self, packet, content)
        if key in self._sent:
            incoming.all_sent, incoming.heard = True, self._sent[key]
        for part, received in self._early.pop(key, {}).items():
            incoming.parts.put(part, received)
        return [incoming]

    def close(self):
        """Generator (schedule), run on all ranks at once when no packet is under way, that leaves the multicast group.
        The schedule first waits until all control messages have arrived."""
        if self.link is None:
            return
        self.control.tell_others(ControlKind.END, self.round)
        try:
            yield AllEnded(self)
        finally:
            self._close_sockets()
        self._ended.clear()

    def _close_sockets(self):
        self.link.sockets.close()
        self.link = None

    def warnings(self):
        rejected = self.rejected + (self.repairs.rejected if self.repairs is not None else 0)
        told = f"IP multicast: {rejected} datagrams were damaged or forged, and were ignored"
        return [*filter(None, [self.slower, rejected and told])]

    @property
    def has_ended(self) -> bool:
        """Return True if all other ranks have reported the end of IP multicast, and no control message or answer is
        under way to or from this rank."""
        self.move()
        has_all = not self.control.under_way and not self.repairs.expected
        return len(self._ended) == self.comm.size - 1 and has_all

    def move(self):
        """Process all control messages, answers and datagrams that have arrived, and send the datagrams that the limit
        of the sending rate allows now. Raises OSError if the operating system cannot send a datagram."""
        for told in self.control.hear():
            self._take_word(told)
        for name, message in self.repairs.come():
            self._incoming[name.sender, name.number].rest.take(name.part, message)
        read_all = self._read(READS_AT_ONCE)
        for incoming in self._incoming.values():
            incoming.move(read_all)
        self._send_on()

    def _take_word(self, told: Told):
        """Process ``told``, a control message that another rank has sent."""
        if told.word is ControlKind.READY:
            self._ready[told.sender] = told.round
        elif told.word is ControlKind.SENT:
            if told.round != self.round:  # ignore the message, because it belongs to an earlier exchange
                return
            key, now = (told.sender, told.number), self.clock()
            self.heard[told.sender] = self._sent[key] = now
            if key in self._incoming:
                self._incoming[key].all_sent, self._incoming[key].heard = True, now
        elif told.word is ControlKind.LACKING:
            if told.number in self._outgoing:
                self._outgoing[told.number].repair(told.sender, told.rest)
            else:
                self._early_answers.setdefault(told.number, []).append((told.sender, told.rest))
        elif told.word is ControlKind.OTHERS_LACKING:
            self.repairs.answer_with_block(told)
        elif told.word is ControlKind.LEFT:
            self._left[told.sender] = told.round
        else:
            self._ended.add(told.sender)

    def _read(self, most: int) -> bool:
        """Process up to ``most`` datagrams that have arrived. Return True if no datagram that has arrived is left
        unprocessed."""
        for _ in range(most):
            datagram = self.link.sockets.receive(self._buffer)
            if datagram is None:
                return True
            self._take(datagram)
        return False

    def _take(self, datagram: memoryview):
        """If ``datagram`` carries a missing part of a packet for this rank, store the part.

        All datagrams without a missing part for this rank are ignored. A part that arrives a second time does not
        change `heard`, because it does not show that new parts will arrive.
        """
        name = self.link.seal.name_of(datagram)
        if name is None or name.round != self.round or (key := (name.sender, name.number)) not in self._packets:
            return
        if self.settings.loss and self._is_lost(key, name.part):
            return
        incoming = self._incoming.get(key)
        early = self._early.setdefault(key, {}) if incoming is None else {}
        if name.part in early or (incoming is not None and not incoming.parts.lacks(name.part)):
            return
        content = self.link.seal.content_of(datagram)
        if content is None:
            self.rejected += 1
            return
        self.heard[name.sender] = now = self.clock()
        if incoming is None:
            early[name.part] = bytes(content)
        elif incoming.parts.put(name.part, content):
            incoming.heard = now

    def _is_lost(self, key: tuple[int, int], part: int) -> bool:
        """Return True if this rank discards part number ``part`` of the packet ``key`` (sender, number) on purpose. The
        choice of the discarded parts does not depend on the order in which parts arrive."""
        if key not in self._lost:
            share, burst, seed = self.settings.loss, self.settings.burst, self.settings.seed
            random = generator(Purpose.DATAGRAM_LOSS, seed, self.comm.rank, self.round, *key)
            count = number_of_parts(self._packets[key], self.link.part)
            self._lost[key] = lost_parts(share, burst, count, random)
        return part < len(self._lost[key]) and self._lost[key][part]

    def _send_on(self):
        """Send datagrams of the packets in `_to_send` as long as the sending rate (`pace`) and the socket allow."""
        while self._to_send and self.missing_rank is None:
            outgoing = self._to_send[0]
            if not outgoing.unanswered:  # send no datagrams, because all receivers have got the packet from other ranks
                self._to_send.popleft()
                continue
            while outgoing.next < len(outgoing.parts.is_here):
                if not self.pace.allows() or not outgoing.send_next():
                    return
            for rank in outgoing.packet.receivers:
                self.control.tell(rank, ControlKind.SENT, self.round, outgoing.packet.number)
            self._to_send.popleft()

    def has_left(self, rank: int) -> bool:
        """Return True if ``rank`` has reported that it has finished the present exchange."""
        return self._left[rank] == self.round

    @property
    def missing_rank(self) -> int | None:
        """Return the lowest rank that has not reported that it is ready for the present exchange, or None if all ranks
        are ready."""
        return next((rank for rank, ready in enumerate(self._ready) if ready < self.round), None)


class AllEnded:
    """A pollable whose ``Test()`` returns True when all other ranks have closed the ``transport``, and no message of
    the transport is under way."""

    def __init__(self, transport: IpMulticast):
        self.transport = transport

    def Test(self) -> bool:
        return self.transport.has_ended

    def __str__(self):
        transport = self.transport
        others = {*range(transport.comm.size)} - {transport.comm.rank} - transport._ended
        if others:
            return f"the end of IP multicast on {ranks_in_words(sorted(others))}"
        if transport.control.under_way:
            return f"messages to other ranks: {transport.control.under_way[0][0]}"
        return f"{len(transport.repairs.expected)} answers of ranks that were asked for missing parts of packets"
