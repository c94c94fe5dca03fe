"""Packets by IP multicast: each leaves its sender once, as datagrams, and reaches all receivers.

An exchange between ranks, of which each runs at its own pace:

1. A rank tells the others by MPI when it is ready. It sends nothing before all are: what came to a rank that computes
   would have to be kept by its kernel.
2. Its datagrams leave as fast as its share of the network's rate allows. Behind the last one of a packet it tells the
   packet's receivers by MPI that all have left.
3. Each receiver answers by MPI what it lacks of the packet, as soon as it has all of it, or nothing more comes.
4. The sender answers with all that is lacking, in one message by MPI, which loses nothing. It keeps a packet until all
   receivers have it, or have told what they lack and been sent that.
5. Where the sender does not answer in time, or falls silent before all has left, the receiver asks the others that hold
   the block of which the packet brings it a part, one after the other, and takes what comes first. Whoever is asked
   answers, once: with nothing, if the exchange is over there and the block perhaps another one. A rank tells the others
   when it has left the exchange, so that they need not ask it.

Nothing here blocks: whichever packet a schedule waits for, its ``Test()`` moves all of the exchange
(`IpMulticast.move`).
"""

import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from coding.plan import Packet
from grsgd.comm import tags
from grsgd.comm.coded.asking import ANSWER_SECONDS, SILENT_SECONDS, Asking, SlowRanks
from grsgd.comm.coded.datagrams import HEAD_BYTES, Name, Parts, mask, number_of_parts, unmasked
from grsgd.comm.coded.losses import lost_parts
from grsgd.comm.coded.multicast import Blocks, Unicast
from grsgd.comm.coded.multicast_link import BY_ITSELF, Link, Settings, connect, try_out
from grsgd.comm.coded.pacing import Pace
from grsgd.comm.coded.sockets import LARGEST
from grsgd.comm.communicator import Communicator, receive_if_come
from grsgd.runs.numbers import human_bytes
from grsgd.seeding import Purpose, generator
from grsgd.units import as_rate

SHARE = 0.95
"""Of the network's rate, that all ranks together send at; the rest is for what they tell each other by MPI."""
PATIENCE_SECONDS = 0.005
"""After so long without a datagram of a rank that has sent all, what is lacking is asked for."""
UNREAD_SECONDS = 0.05
"""A rank may be kept from reading for so long: for what comes meanwhile there must be room."""
READS_AT_ONCE = 128
"""Datagrams that a rank reads before it looks whether it may send."""
ELEMENT_BYTES = 4
"""The size of an int32."""
MESSAGE = struct.Struct("!BHII")
"""The beginning of a message by MPI: its kind, the sender's rank, the exchange, the packet."""
READY, SENT, LACKING, OTHERS_LACKING, LEFT, END = range(6)
"""Kinds of messages: I am ready; all of my packet has left; I lack these parts of yours, a bit for each; of somebody
else's, of a block of yours; I have all of this exchange; I am done."""
PIECE = struct.Struct("!HIQQQ")
"""What else is said of parts of somebody else's packet: its sender, the block, begin and end in it, the elements of the
packet."""


class IpMulticast(Unicast):
    """Sends a packet to several receivers to a multicast group, and one to a single receiver to its address.

    ``open`` and ``close`` are schedules. Where they share a network, all ranks send at once, at ``SHARE`` / n of its
    rate each: a medium that all share is full then, and no receiver gets more than its link takes.
    """

    def __init__(self, comm: Communicator, settings: Settings = BY_ITSELF, clock: Callable = time.perf_counter):
        super().__init__(comm)
        self.settings, self.clock = settings, clock
        self.link: Link | None = None
        self.pace: Pace | None = None
        self.slower = ""
        """Why packets are sent more slowly than the network would take them; empty if they are not."""
        self.rejected = 0
        """Datagrams with a wrong digest or of a wrong length: damaged, or not of this run's ranks."""
        self.blocks: Blocks | None = None
        """Those of this rank, of which others may be sent what they lack."""
        self.slow = SlowRanks()
        self._packets: dict[tuple[int, int], int] = {}
        """The bytes of those that this rank receives, by sender and number."""
        self._lost: dict[tuple[int, int], np.ndarray] = {}
        """Which parts of packets of an exchange are lost on purpose."""
        self._incoming: dict[tuple[int, int], Incoming] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self._to_send: deque[Outgoing] = deque()
        self._early_answers: dict[int, list[tuple]] = {}
        """What receivers lack of packets that this rank has not begun to send: others have sent them some of it."""
        self._early: dict[tuple[int, int], dict[int, bytes]] = {}
        """Parts of packets that no receive was posted for yet, in an exchange that this rank is in already."""
        self._sent: set[tuple[int, int]] = set()
        """Packets of which all datagrams have left."""
        self._answers: list[tuple] = []
        """What is to come of those that were asked, of this exchange and others: messages, with their arrays."""
        self._ready = [0] * comm.size
        """The last exchange that each rank is ready for."""
        self._left = [0] * comm.size
        """The last exchange that each rank has left: until the next one it computes, and answers nothing."""
        self._ended: set[int] = set()
        self._telling: list[tuple] = []
        """Messages under way, with their arrays."""
        self._heard = [0.0] * comm.size
        """When the last datagram of each rank came, or its word that all have left."""
        self._buffer = memoryview(bytearray(LARGEST))
        self._message_bytes = self._repair_bytes = MESSAGE.size

    def open(self, packets: Mapping[Packet, int], blocks: Blocks | None = None):
        """Schedule, on all ranks at once: find the others, and prepare for these packets. Raises NoMulticast."""
        if self.comm.size == 1:
            return
        rank, self.blocks = self.comm.rank, blocks
        self._packets = {(each.sender, each.number): size for each, size in packets.items() if each.sender != rank}
        self.link = yield from connect(self.comm, self.settings)
        rate = self.settings.rate or (yield from try_out(self.comm, self.link, self.clock))
        rate = self._readable(rate, sum(self._packets.values()))
        self.pace = Pace(SHARE * rate / self.comm.size, self.link.datagram, self.clock)
        largest = max(packets.values(), default=0)
        bits = -(-number_of_parts(largest, self.link.part) // 8)
        self._message_bytes = MESSAGE.size + PIECE.size + bits
        self._repair_bytes = HEAD_BYTES + bits + largest

    def _readable(self, rate: float, coming: int) -> float:
        """Return the rate, or the highest at which nothing is lost of the bytes that come in an exchange while a rank
        does not read."""
        room = self.link.sockets.room
        if min(coming, rate * UNREAD_SECONDS) <= room:
            return rate
        self.slower = (
            f"IP multicast: there is room for {human_bytes(room)} of datagrams, so all ranks together send at "
            f"{as_rate(room / UNREAD_SECONDS)} instead of {as_rate(rate)}: raise net.core.rmem_max to "
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
            self._read_all()  # what is there already is of exchanges before: it takes the room of what comes
        self._ready[self.comm.rank] = self.round
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self._tell(rank, READY, 0)

    def end_round(self):
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self._tell(rank, LEFT, 0)

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
        incoming.all_sent = key in self._sent
        for part, received in self._early.pop(key, {}).items():
            incoming.parts.put(part, received)
        return [incoming]

    def close(self):
        """Schedule, on all ranks at once, when nothing is under way: leave the group when all messages have come."""
        if self.link is None:
            return
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self._tell(rank, END, 0)
        yield AllEnded(self)
        self.link.sockets.close()
        self.link = None
        self._ended.clear()

    def warnings(self):
        rejected = f"IP multicast: {self.rejected} datagrams were damaged or forged, and not taken"
        return [*filter(None, [self.slower, self.rejected and rejected])]

    @property
    def has_ended(self) -> bool:
        """Whether all other ranks have closed, all they were told has left, and all that was asked is answered."""
        self.move()
        return len(self._ended) == self.comm.size - 1 and not self._telling and not self._answers

    def move(self):
        """Take in all that has come, and send what may leave. Raises OSError where nothing can be sent."""
        self._telling = [(message, array) for message, array in self._telling if not message.Test()]
        while (message := receive_if_come(self.comm, tags.CODED_CONTROL, self._message_bytes)) is not None:
            self._hear(message)
        self._take_repairs()
        read_all = self._read_all(READS_AT_ONCE)
        for incoming in self._incoming.values():
            incoming.move(read_all)
        self._send_on()

    # ---- messages by MPI

    def _tell(self, rank: int, kind: int, number: int, rest=b""):
        content = MESSAGE.pack(kind, self.comm.rank, self.round, number) + rest
        array = np.frombuffer(content, np.uint8)
        self._telling.append((self.comm.Isend(array, rank, tags.CODED_CONTROL, header=array.nbytes), array))

    def _hear(self, message: np.ndarray):
        kind, sender, number_of_round, number = MESSAGE.unpack_from(message)
        if kind == READY:
            self._ready[sender] = number_of_round
        elif kind == SENT:
            self._heard[sender] = self.clock()
            if number_of_round != self.round:  # of a packet that this rank has got from others
                return
            self._sent.add((sender, number))
            if (sender, number) in self._incoming:
                self._incoming[sender, number].all_sent = True
        elif kind == LACKING:
            bits = message[MESSAGE.size :].tobytes()
            if number in self._outgoing:
                self._outgoing[number].repair(sender, bits)
            else:
                self._early_answers.setdefault(number, []).append((sender, bits))
        elif kind == OTHERS_LACKING:
            self._repair_of_block(sender, number_of_round, number, message[MESSAGE.size :].tobytes())
        elif kind == LEFT:
            self._left[sender] = number_of_round
        else:
            self._ended.add(sender)

    # ---- repairs

    def ask(self, rank: int, packet: Packet, parts: Parts):
        """Ask the sender of a packet, or another holder of the block, for what is lacking of it: it answers once."""
        array = np.zeros(self._repair_bytes, np.uint8)
        self._answers.append((self.comm.Irecv(array, rank, tags.CODED_REPAIRS), array))
        if rank == packet.sender:
            self._tell(rank, LACKING, packet.number, parts.lacking_mask)
        else:
            size = len(parts.content) // ELEMENT_BYTES
            piece = PIECE.pack(packet.sender, *self.blocks.brings(packet), size)
            self._tell(rank, OTHERS_LACKING, packet.number, piece + parts.lacking_mask)

    def _repair_of_block(self, rank: int, number_of_round: int, number: int, asked: bytes):
        """Answer with a part of a block of this rank's own; with none of it, if that may be another step's."""
        sender, block, begin, end, size = PIECE.unpack_from(asked)
        content = np.zeros(size, np.int32)
        parts = Parts(memoryview(content.view(np.uint8)), self.link.part)
        wanted = []
        if number_of_round == self.round:
            self.blocks.piece(block, begin, end, content)
            wanted = unmasked(asked[PIECE.size : PIECE.size + parts.mask_bytes], len(parts.is_here))
        name = Name(number_of_round, sender, number, self.comm.rank)
        self._telling.append(self.send_repair(rank, name, parts, wanted))

    def send_repair(self, rank: int, name: Name, parts: Parts, wanted: list[int]) -> tuple:
        """Send parts of a packet by MPI, which takes its share of the rate: return the message, and its array.
        ``name.part``: this rank."""
        content = parts.cut(wanted)
        body = mask(wanted, len(parts.is_here)) + content.tobytes()
        array = np.frombuffer(self.link.seal.head(name, body) + body, np.uint8)
        self.comm.traffic.repaired += content.nbytes
        self.pace.spend(array.nbytes)
        return self.comm.Isend(array, rank, tags.CODED_REPAIRS, header=array.nbytes), array

    def _take_repairs(self):
        """Take in the answers that have come, in whatever order. What is of an exchange before is too late."""
        answers, self._answers = self._answers, []
        for message, array in answers:
            if not message.Test():
                self._answers.append((message, array))
                continue
            name = self.link.seal.name_of(memoryview(array))
            if name is None:
                self.rejected += 1
            elif name.round == self.round:
                self._incoming[name.sender, name.number].take_repair(name.part, memoryview(array))

    # ---- datagrams

    def _read_all(self, most: int | None = None) -> bool:
        """Take in the datagrams that have come, ``most`` at a time; returns whether these were all."""
        count = 0
        while count != most:
            datagram = self.link.sockets.receive(self._buffer)
            if datagram is None:
                return True
            count += 1
            self._take(datagram)
        return False

    def _take(self, datagram: memoryview):
        """Take in a datagram, if it is a part that is lacking of a packet for this rank."""
        name = self.link.seal.name_of(datagram)
        if name is None or name.round != self.round or (key := (name.sender, name.number)) not in self._packets:
            return
        if self.settings.loss and self._is_lost(key, name.part):
            return
        content = self.link.seal.content_of(datagram)
        if content is None:
            self.rejected += 1
            return
        self._heard[name.sender] = self.clock()
        if key not in self._incoming:
            self._early.setdefault(key, {})[name.part] = bytes(content)
        else:
            self._incoming[key].parts.put(name.part, content)

    def _is_lost(self, key: tuple[int, int], part: int) -> bool:
        """Whether a part of a packet is lost on purpose, in whatever order they come."""
        if key not in self._lost:
            share, burst, seed = self.settings.loss, self.settings.burst, self.settings.seed
            random = generator(Purpose.DATAGRAM_LOSS, seed, self.comm.rank, self.round, *key)
            count = number_of_parts(self._packets[key], self.link.part)
            self._lost[key] = lost_parts(share, burst, count, random)
        return part < len(self._lost[key]) and self._lost[key][part]

    def _send_on(self):
        """Send datagrams, as many as may leave."""
        while self._to_send and self.missing_rank is None:
            outgoing = self._to_send[0]
            if not outgoing.unanswered:  # all receivers have it from others; its memory may be in use again
                self._to_send.popleft()
                continue
            while outgoing.next < len(outgoing.parts.is_here):
                if not self.pace.allows() or not outgoing.send_next():
                    return
            for rank in outgoing.packet.receivers:
                self._tell(rank, SENT, outgoing.packet.number)
            self._to_send.popleft()

    def seconds(self, nbytes: int) -> float:
        """How long so many bytes take at a rank's share of the rate."""
        return nbytes / self.pace.rate

    @property
    def missing_rank(self) -> int | None:
        """The first rank that is not ready for this exchange; None if all are."""
        return next((rank for rank, ready in enumerate(self._ready) if ready < self.round), None)


class Outgoing:
    """A packet of this rank: a pollable, true when all receivers have it."""

    def __init__(self, transport: IpMulticast, packet: Packet, content: np.ndarray):
        self.transport, self.packet = transport, packet
        self.parts = Parts(memoryview(content.view(np.uint8)), transport.link.part)
        self.next = 0
        """The part that leaves next."""
        self.unanswered = set(packet.receivers)
        """Those that have not told what they lack."""
        self.repairs: list[tuple] = []
        """Messages under way to ranks that lack parts, with their arrays."""
        link = transport.link
        to_all = len(packet.receivers) > 1
        self.address = link.sockets.group if to_all else link.addresses[packet.receivers[0]]

    def send_next(self) -> bool:
        """Send a datagram; returns whether there was room for it."""
        transport, packet = self.transport, self.packet
        begin, end = self.parts.span(self.next)
        content = self.parts.content[begin:end]
        name = Name(transport.round, packet.sender, packet.number, self.next)
        if not transport.link.sockets.send(transport.link.seal.head(name, content), content, self.address):
            return False
        transport.pace.spend(transport.link.datagram)
        self.next += 1
        return True

    def repair(self, rank: int, bits: bytes):
        """Send a rank the parts that it lacks, a bit for each."""
        self.unanswered.discard(rank)
        lacking = unmasked(bits[: self.parts.mask_bytes], len(self.parts.is_here))
        if lacking:
            name = Name(self.transport.round, self.packet.sender, self.packet.number, self.packet.sender)
            self.repairs.append(self.transport.send_repair(rank, name, self.parts, lacking))

    def Test(self) -> bool:
        self.transport.move()
        self.repairs = [(message, array) for message, array in self.repairs if not message.Test()]
        return not self.unanswered and not self.repairs

    def __str__(self):
        receivers = ", ".join(map(str, sorted(self.unanswered)))
        late = self.transport.missing_rank
        all_parts = len(self.parts.is_here)
        if self.next == all_parts and self.unanswered:
            state = f"all has left, but nothing is heard of rank{'s' * (len(self.unanswered) > 1)} {receivers}"
        elif self.next == all_parts:
            state = f"repairs to {len(self.repairs)} ranks are under way"
        elif late is not None:
            state = f"rank {late} has not begun to receive"
        else:
            state = f"{self.next} of {all_parts} datagrams have left"
        return f"{self.packet}: send by IP multicast ({state})"


class Incoming:
    """A packet for this rank: a pollable, true when all of it is there, and its sender knows what to keep it for."""

    def __init__(self, transport: IpMulticast, packet: Packet, content: np.ndarray):
        self.transport, self.packet = transport, packet
        self.parts = Parts(memoryview(content.view(np.uint8)), transport.link.part)
        self.all_sent = False
        """Whether the sender has said that all datagrams have left."""
        self.has_answered = False
        """Whether the sender was told what is lacking, if anything is."""
        self.asking: Asking | None = None
        """Those that are asked for it, when it is time."""
        self.began = transport.clock()

    def move(self, read_all: bool):
        """Ask for what is lacking, when that is known; ``read_all``: whether all that has come was read."""
        if not self.parts.lacking:
            # The sender may not know yet of a packet without content.
            if not self.has_answered and (self.parts.content or self.all_sent):
                self.has_answered = True
                self.transport._tell(self.packet.sender, LACKING, self.packet.number, self.parts.lacking_mask)
            return
        if self.asking is None:
            if not (read_all and self.is_time_to_ask):
                return
            self.begin_to_ask()
        before = self.asking.asked[-1:]
        rank = self.asking.next()
        if rank is not None:
            if before == [self.packet.sender]:
                self.transport.slow.note(self.packet.sender, self.transport.round)
            self.has_answered |= rank == self.packet.sender
            self.transport.ask(rank, self.packet, self.parts)

    @cached_property
    def others(self) -> list[int]:
        """Those besides the sender that can send this rank what the packet brings it."""
        blocks = self.transport.blocks
        return blocks.other_holders(self.packet) if blocks is not None else []

    @property
    def is_time_to_ask(self) -> bool:
        """Whether nothing more will come, or nothing has come for so long that others may be asked."""
        transport = self.transport
        now, heard = transport.clock(), transport._heard[self.packet.sender]
        if self.all_sent:
            return now - heard > PATIENCE_SECONDS
        is_silent = now - max(heard, self.began) > SILENT_SECONDS + transport.seconds(2 * transport.link.datagram)
        return is_silent and transport.missing_rank is None and bool(self.others)

    def begin_to_ask(self):
        """Decide whom to ask, and in which order."""
        transport, packet = self.transport, self.packet
        if not self.all_sent:
            transport.slow.note(packet.sender, transport.round)
        patience = ANSWER_SECONDS + transport.seconds(self.parts.bytes_of(self.parts.missing()))
        transport.comm.traffic.lost += self.parts.lacking
        first = transport.comm.rank + packet.number + transport.round
        order = transport.slow.order(packet.sender, self.others, first, transport.round)
        self.asking = Asking(order, patience, transport.clock, self.has_left)

    def has_left(self, rank: int) -> bool:
        """Whether a rank has left the exchange. The packet's sender does not before it has sent what it was asked for.
        """
        return rank != self.packet.sender and self.transport._left[rank] == self.transport.round

    def take_repair(self, rank: int, message: memoryview):
        """Take in what a rank has sent by MPI: parts of the packet, or of the block of which it brings a part."""
        count, width = len(self.parts.is_here), self.parts.mask_bytes
        parts = unmasked(message[HEAD_BYTES : HEAD_BYTES + width], count)
        nbytes = width + self.parts.bytes_of(parts)
        body = self.transport.link.seal.content_of(message[: HEAD_BYTES + nbytes])
        self.asking.has_answered(rank)
        if body is None:
            self.transport.rejected += 1
            return
        whole = np.zeros(len(self.parts.content) // ELEMENT_BYTES, np.int32)
        brought = Parts(memoryview(whole.view(np.uint8)), self.parts.size)
        position = width
        for part in parts:
            begin, end = brought.span(part)
            brought.put(part, body[position : position + end - begin])
            position += end - begin
        if rank != self.packet.sender:
            self.transport.blocks.make_packet(self.packet, whole)
        for part in parts:
            self.parts.put(part, brought.content[slice(*brought.span(part))])

    def Test(self) -> bool:
        self.transport.move()
        return self.has_answered and not self.parts.lacking

    def __str__(self):
        there = len(self.parts.is_here) - self.parts.lacking
        state = "all has left" if self.all_sent else "more should come"
        if self.asking is not None and self.asking.asked:
            asked = self.asking.asked
            state = f"the rest is asked of rank{'s' * (len(asked) > 1)} {', '.join(map(str, asked))}"
        return (
            f"{self.packet}: receive from rank {self.packet.sender} by IP multicast ({there} of "
            f"{len(self.parts.is_here)} datagrams are here, {state})"
        )


class AllEnded:
    """A pollable: all other ranks have closed a transport."""

    def __init__(self, transport: IpMulticast):
        self.transport = transport

    def Test(self) -> bool:
        return self.transport.has_ended

    def __str__(self):
        transport = self.transport
        others = {*range(transport.comm.size)} - {transport.comm.rank} - transport._ended
        if not others:
            return f"{len(transport._answers)} answers of ranks that were asked for what was lacking"
        return f"the end of IP multicast on ranks {', '.join(map(str, sorted(others)))}"
