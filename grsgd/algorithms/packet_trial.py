"""Trial before a run that measures how many seconds packets take with the run's own transport. In the trial all ranks
send packets at once, as in a step of training.

A schedule is a generator that yields each object it waits for.
"""

from collections.abc import Callable
from functools import partial

from coding.plan import Packet
from coding.predicted_step import NOTHING_SENT, PacketSeconds, Toll
from grsgd.algorithms.trial import REPEATS, VIRTUAL, WARM_UP, time, times
from grsgd.comm.coded.multicast import Unicast
from grsgd.comm.coded.scheme import ELEMENT_BYTES, MAX_PACKETS_IN_FLIGHT

FIRST_ELEMENTS, MAX_ELEMENTS = 4096, 1 << 20
"""Numbers of elements of the shortest and of the longest packet that the trial uses to measure the time per byte."""
LONG_SECONDS = 0.05
"""Least number of seconds that a packet must take before the trial measures the time per byte with the packet."""
LOOKS = 3
"""Number of repeats in which a packet must take at least `LONG_SECONDS`. One repeat of the measurement is not enough,
because a packet may be slow for other reasons than its length."""
MAX_PACKETS = 16
"""Largest number of short packets that each rank sends at once. With many ranks each rank sends fewer short packets at
once, but at least 2, because at most MAX_PACKETS_IN_FLIGHT packets of a step may be under way."""


class PacketTrial:
    """Measurement, on one rank, of the seconds that packets take. The trial measures packets to one receiver, and
    packets to all other ranks. The seconds of packets to any other number of receivers are interpolated between the two
    measured numbers of receivers.

    Parameters
    ----------
    transport
        Transport whose `open` has not been called yet.
    driver
        Driver whose clock measures the seconds.
    length
        Number of elements of a gradient. No packet of the trial has more elements than a gradient. empty ``empty(size,
        dtype)`` makes an uninitialised array.
    """

    def __init__(self, transport: Unicast, driver, length: int, empty: Callable):
        self.transport, self.comm, self.driver = transport, transport.comm, driver
        n = self.comm.size
        self.longest = max(1, min(length, MAX_ELEMENTS))
        self.burst = max(2, min(MAX_PACKETS, MAX_PACKETS_IN_FLIGHT // n))
        self.how_often = (0, 1) if driver.progress_mode == VIRTUAL else (WARM_UP, REPEATS)
        self._buffers = empty((n if n > 1 else 0) * self.longest, "int32")
        self._short = empty(n * self.burst, "int32")

    def measure(self):
        """Generator, called on all ranks at once, that returns the measured `PacketSeconds`."""
        n = self.comm.size
        if n == 1:
            return NOTHING_SENT
        everything = [*self.packets(1, self.burst), *self.packets(n - 1, self.burst)]
        sizes = {packet: 1 if packet.number else self.longest for packet in everything}
        yield from self.transport.open({packet: ELEMENT_BYTES * size for packet, size in sizes.items()}) or ()
        tolls = []
        for receivers in (1, n - 1):
            size, long = yield from self.long_packet(receivers)
            exchange = yield from self.time(self.packets(receivers), 1)
            burst = yield from self.time(self.packets(receivers, self.burst), 1)
            byte = max(long - exchange, 0) / (ELEMENT_BYTES * max(size - 1, 1))
            tolls.append((exchange, max(burst - exchange, 0) / (self.burst - 1), byte))
            if receivers == 1:
                alone = yield from self.time(self.packets(1, senders=[0]), size)
                is_shared = long > alone * (1 + n) / 2
        yield from self.transport.close() or ()
        sends_copies = type(self.transport) is Unicast or self.comm.backend.has_multicast is False
        return PacketSeconds(*(Toll.of(*pair, n) for pair in zip(*tolls, strict=True)), is_shared, sends_copies)

    def long_packet(self, receivers: int):
        """Generator, called on all ranks at once, that returns the number of elements of a long packet, and the seconds
        that the long packet takes."""
        size, packets = min(FIRST_ELEMENTS, self.longest), self.packets(receivers)
        while size < self.longest:
            action = partial(self.exchange, packets, size)
            seconds = yield from times(action, self.comm, self.driver, 0, min(LOOKS, self.how_often[1]))
            if seconds.max(1).min() > LONG_SECONDS:
                break
            size = min(4 * size, self.longest)
        return size, (yield from self.time(packets, size))

    def packets(self, receivers: int, each: int = 1, senders=None) -> list[Packet]:
        """Return the packets that this rank sends or receives, in an order that is the same on all ranks. Each rank in
        ``senders`` (by default all ranks) sends ``each`` packets to the next ``receivers`` ranks after the sender."""
        n = self.comm.size
        found = []
        for sender in range(n) if senders is None else senders:
            others = tuple(sorted((sender + k) % n for k in range(1, receivers + 1)))
            if self.comm.rank in (sender, *others):
                found += [Packet(sender, others, number, (0,), (0,)) for number in range(each)]
        return sorted(found, key=lambda packet: packet.order)

    def time(self, packets: list[Packet], size: int):
        """Generator, called on all ranks at once, that returns the seconds of an exchange of ``packets``, each of
        ``size`` elements."""
        return (yield from time(partial(self.exchange, packets, size), self.comm, self.driver, *self.how_often))

    def exchange(self, packets: list[Packet], size: int):
        """Generator, called on all ranks at once, that sends and receives ``packets``, each of ``size`` elements."""
        self.transport.next_round()
        buffer = self._short if size == 1 else self._buffers
        messages = []
        for k, packet in enumerate(packets):
            content = buffer[k * size : (k + 1) * size]
            move = self.transport.send if packet.sender == self.comm.rank else self.transport.receive
            messages += move(packet, content)
        yield messages
        self.transport.end_round()
