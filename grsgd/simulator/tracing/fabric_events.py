"""Simulated messages, receives and broadcasts that report their events to observers. The classes of this module are
used if a simulated run records a timeline or a trace."""

import itertools
from functools import partial
from typing import Protocol

from grsgd.simulator.broadcasts import SimulatedMulticast
from grsgd.simulator.fabric import MessageFabric
from grsgd.simulator.messages import Receiving, Sending
from grsgd.simulator.waitable import Waitable


class FabricObserver(Protocol):
    """Interface of an observer, which records the events of the messages of a `MessageFabric`. At the simulated moment
    of an event, the message calls the event's method of each observer.

    The parameter of a method is a message (``sending``) or a receive (``receiving``). A message has the attributes
    source, dest, nbytes, tag, group, synchronous, short, ``posted`` (the simulated time at which the message was
    posted) and ``number``. When `received` is called, and later, a message has the attribute ``receiving``, too: the
    receive that got the message.
    """

    def sent(self, sending):
        """Record that a rank has posted the message ``sending``."""

    def posted(self, receiving):
        """Record that a rank has posted the receive ``receiving``. When a receive is posted, it is possibly unknown
        which message the receive will get."""

    def left(self, sending):
        """Record that the last byte of the message ``sending`` has left the sending rank. The schedule that sends the
        message does not know yet that the byte has left."""

    def received(self, sending):
        """Record that the message ``sending`` has arrived, and that a posted receive has got the message. The schedule
        that receives the message does not know yet that the message has arrived."""

    def completed(self, waitable):
        """Record that ``waitable``, a message or a receive, is complete. The schedule that waits for ``waitable`` does
        not know this yet."""


class ObservedSending(Sending):
    """A message that reports its events to observers. ``ops`` has the message's operations in a trace."""

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

    ``from_any`` says whether the receive accepts messages of any rank. ``ops`` has the receive's operations in a trace.
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
    """The copy of a broadcast message for one receiver. The broadcast reports events of each copy to observers, as if
    the copy were a message of its own."""

    synchronous = False

    def __init__(self, multicast: "ObservedMulticast", dest: int, nbytes: int):
        fabric = multicast.fabric
        self.source, self.dest, self.nbytes, self.tag = multicast.root, dest, nbytes, 0
        self.short, self.group = multicast.short, multicast.group
        self.posted, self.number = fabric.network.env.now, next(fabric.numbers)
        self.receiving = None
        self.ops = ()


class CopiesLeft(Waitable):
    """Event that all copies of a broadcast message have left. The root (the sending rank) waits for this event. ``ops``
    has the operations of all copies of the message in a trace."""

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
        """Group of ranks of the message or receive that is being posted at present."""
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
