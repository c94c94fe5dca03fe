"""Simulated messages that report their events to observers. Runs with a timeline or a trace use these messages in place
of plain messages."""

import itertools
from functools import partial
from typing import Protocol

from grsgd.simulator.broadcasts import SimulatedMulticast
from grsgd.simulator.fabric import MessageFabric
from grsgd.simulator.messages import Receiving, Sending
from grsgd.simulator.waitable import Waitable


class FabricObserver(Protocol):
    """An observer of the messages of a fabric; each method is called at the simulated moment of its event.

    A ``sending`` has source, dest, nbytes, tag, group, synchronous and short, the simulated time ``posted`` at which it
    was posted, and a ``number``. From the event `received` on, it also has ``receiving``, the receive that
    got the message.
    """

    def sent(self, sending):
        """Record that a message has been posted."""

    def posted(self, receiving):
        """Record that a receive has been posted. The receive's message is possibly not known yet."""

    def left(self, sending):
        """Record that the last byte of a message has left. The sender does not know this yet."""

    def received(self, sending):
        """Record that a message has arrived and been received. The receiver does not know this yet."""

    def completed(self, waitable):
        """Record that a sending or a receiving is complete. The schedule that waits for it does not know this yet."""


class ObservedSending(Sending):
    """A message that reports its events. ``ops``: the operations that a trace keeps of the message."""

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
    """A receive that reports its events.

    ``from_any``: whether the receive accepts messages of any rank. ``ops``: the operations that a trace keeps of the
    receive.
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
    """Copy of a broadcast to one receiver. Observers get reports of the copy as of a separate message."""

    synchronous = False

    def __init__(self, multicast: "ObservedMulticast", dest: int, nbytes: int):
        fabric = multicast.fabric
        self.source, self.dest, self.nbytes, self.tag = multicast.root, dest, nbytes, 0
        self.short, self.group = multicast.short, multicast.group
        self.posted, self.number = fabric.network.env.now, next(fabric.numbers)
        self.receiving = None
        self.ops = ()


class CopiesLeft(Waitable):
    """Event for which the root of a broadcast waits: all copies have left. ``ops``: operations in the trace that stand
    for the copies."""

    __slots__ = ("ops",)

    def __init__(self):
        super().__init__()
        self.ops = ()


class ObservedMulticast(SimulatedMulticast):
    """A broadcast that reports the events of each of its copies."""

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
        if rank in self.arrived:  # a short message completes at once
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
    """A fabric whose messages report their events to ``observers``."""

    def __init__(self, network, drivers: list, processors, observers: list[FabricObserver]):
        super().__init__(network, drivers, processors)
        self.observers, self.numbers = observers, itertools.count()
        self.sending_type, self.multicast_type = ObservedSending, ObservedMulticast
        self.receiving_type = partial(ObservedReceiving, self)
        self.group: tuple = ()
        """Group of the message or receive that is being posted."""
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
