"""Simulated messages that report their events to observers. A simulated run that records a timeline or a trace uses
these classes of messages."""

import itertools
from functools import partial
from typing import Protocol

from grsgd.simulator.broadcasts import SimulatedMulticast
from grsgd.simulator.fabric import MessageFabric
from grsgd.simulator.messages import Receiving, Sending
from grsgd.simulator.waitable import Waitable


class FabricObserver(Protocol):
    """An observer of the messages of a `MessageFabric`. The fabric calls each method at the simulated moment of the
    method's event.

    Each method gets a message, ``sending``, or a receive, ``receiving``. A ``sending`` has the attributes source, dest,
    nbytes, tag, group, synchronous, short, ``posted`` (the simulated time at which the message was posted) and
    ``number``. From the event `received` on, a ``sending`` has the attribute ``receiving``, too: the receive that got
    the message.
    """

    def sent(self, sending):
        """Record that a rank has posted a message."""

    def posted(self, receiving):
        """Record that a rank has posted a receive. The message that the receive will get is possibly not known yet."""

    def left(self, sending):
        """Record that the last byte of a message has left the sending rank. The sender's schedule does not know this
        yet."""

    def received(self, sending):
        """Record that a message has arrived and a posted receive has got the message. The receiver's schedule does not
        know this yet."""

    def completed(self, waitable):
        """Record that ``waitable``, a message or a receive, is complete. The schedule that waits for ``waitable`` does
        not know this yet."""


class ObservedSending(Sending):
    """A message that reports its events to observers. ``ops`` has the operations that stand for the message in a
    trace."""

    __slots__ = ("posted", "number", "group", "ops")

    def __init__(self, fabric: "ObservedFabric", *arguments):
        super().__init__(fabric, *arguments)
        self.posted, self.number, self.group = fabric.network.env.now, next(fabric.numbers), fabric.group
        self.ops = ()
        for observer in fabric.observers:
            observer.sent(self)

    def on_left(self):
        for observer in self.fabric.observers:
            observer.left(self)
        super().on_left()

    def on_received(self):
        if not self.is_gone() and self in self.fabric.under_way:
            for observer in self.fabric.observers:
                observer.received(self)
        super().on_received()

    def finish(self, driver):
        for observer in self.fabric.observers:
            observer.completed(self)
        super().finish(driver)


class ObservedReceiving(Receiving):
    """A receive that reports its events to observers.

    ``from_any`` says whether the receive accepts messages of any rank. ``ops`` has the operations that stand for the
    receive in a trace.
    """

    __slots__ = ("fabric", "posted", "from_any", "ops")

    def __init__(self, fabric: "ObservedFabric", array, order: int = 0):
        super().__init__(array, order)
        self.fabric, self.posted, self.from_any = fabric, fabric.network.env.now, fabric.receives_any
        self.ops = ()
        for observer in fabric.observers:
            observer.posted(self)

    def finish(self, driver):
        for observer in self.fabric.observers:
            observer.completed(self)
        super().finish(driver)


class CopySent:
    """Copy of a broadcast to one receiver. Observers get reports of each copy, as if the copy were a separate
    message."""

    synchronous = False

    def __init__(self, multicast: "ObservedMulticast", dest: int, nbytes: int):
        fabric = multicast.fabric
        self.source, self.dest, self.nbytes, self.tag = multicast.root, dest, nbytes, 0
        self.short, self.group = multicast.short, multicast.group
        self.posted, self.number = fabric.network.env.now, next(fabric.numbers)
        self.receiving = None
        self.ops = ()


class CopiesLeft(Waitable):
    """Event that all copies of a broadcast have left; the root of the broadcast waits for this event. ``ops`` has the
    operations that stand for the copies in a trace."""

    __slots__ = ("ops",)

    def __init__(self):
        super().__init__()
        self.ops = ()


class ObservedMulticast(SimulatedMulticast):
    """A broadcast that reports the events of each of its copies to observers."""

    def __init__(self, fabric: "ObservedFabric", *arguments, **options):
        super().__init__(fabric, *arguments, **options)
        self.group = (*fabric.group, "broadcast")
        self.sending = CopiesLeft()
        self.copies_sent: dict[int, CopySent] = {}

    def send(self, array):
        self.short = array.nbytes <= self.fabric.network.spec.eager_bytes
        self.copies_sent = {dest: CopySent(self, dest, array.nbytes) for dest in self.others}
        for copy in self.copies_sent.values():
            for observer in self.fabric.observers:
                observer.sent(copy)
        self.sending.ops = tuple(op for copy in self.copies_sent.values() for op in copy.ops)
        return super().send(array)

    def receive(self, rank: int, array):
        if rank in self.arrived:  # a short message has arrived, and the receive completes at once
            receiving = super().receive(rank, array)
            self._received(rank)
            return receiving
        return super().receive(rank, array)

    def copy_left(self, dests):
        for dest in dests:
            for observer in self.fabric.observers:
                observer.left(self.copies_sent[dest])
        super().copy_left(dests)

    def copy_received(self, dest: int):
        if dest in self.receiving:
            self._received(dest)
        super().copy_received(dest)

    def _received(self, dest: int):
        copy = self.copies_sent[dest]
        copy.receiving = self.receiving[dest]
        for observer in self.fabric.observers:
            observer.received(copy)


class ObservedFabric(MessageFabric):
    """A `MessageFabric` whose messages report their events to ``observers``."""

    def __init__(self, network, drivers: list, processors, observers: list[FabricObserver]):
        super().__init__(network, drivers, processors)
        self.observers, self.numbers = observers, itertools.count()
        self.sending_type, self.multicast_type = ObservedSending, ObservedMulticast
        self.receiving_type = partial(ObservedReceiving, self)
        self.group: tuple = ()
        """Group of ranks in which a message or a receive is being posted now."""
        self.receives_any = False

    def send(self, group, array, source, dest, tag, synchronous):
        self.group = group
        return super().send(group, array, source, dest, tag, synchronous)

    def receive(self, group, array, dest, source, tag):
        self.group, self.receives_any = group, source < 0
        return super().receive(group, array, dest, source, tag)

    def broadcast(self, group, members, array, rank, root, number):
        self.group, self.receives_any = group, False
        return super().broadcast(group, members, array, rank, root, number)
