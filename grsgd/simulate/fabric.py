"""MPI messages between ranks in one process: which receive gets which message, when, and with which content.

Messages match as the MPI standard says (section 3.5): those of one sender to one receiver with one tag in the order in
which they were sent; a receive from any rank takes the message that came first; receives in the order in which they
were posted. What a send buffer holds is copied at the last moment, when the send completes, so that a schedule that
writes to it too early shows; only short messages, which MPI libraries store, are copied when they leave.
"""

import itertools
from collections import defaultdict
from functools import partial

import numpy as np

from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.backend import ANY_RANK, PROCESS_FAILURES
from grsgd.comm.communicator import Communicator
from grsgd.models.shape_only import PREFIX_BYTES, ShapeOnlyArray
from grsgd.simulate.flows import Network
from grsgd.simulate.processor import Processor


class Waitable:
    """A pollable for which one schedule can wait; that schedule is resumed when this is complete."""

    __slots__ = ("complete", "waiter", "failed")

    def __init__(self):
        self.complete = self.failed = False
        self.waiter = None

    def Test(self) -> bool:
        """Raises RuntimeError as an MPI library does where the process of a rank has died."""
        if self.failed:
            raise RuntimeError(PROCESS_FAILURES[0])
        return self.complete

    def fail(self, driver):
        """Raise an error from now on; ``driver`` is that of the rank that waits."""
        self.failed = True
        waiter, self.waiter = self.waiter, None
        driver.notify(waiter)

    def finish(self, driver):
        """Become complete; ``driver`` is that of the rank that waits."""
        self.complete = True
        waiter, self.waiter = self.waiter, None
        driver.notify(waiter)


class Sending(Waitable):
    """A message on its way to ``inbox``, that of a rank in one group and with one tag."""

    __slots__ = ("fabric", "array", "nbytes", "source", "dest", "tag", "synchronous", "inbox")
    __slots__ += ("short", "has_arrived", "is_found", "receiving", "order")

    def __init__(
        self, fabric: "MessageFabric", array, source: int, dest: int, tag: int, synchronous: bool, inbox: "Inbox"
    ):
        super().__init__()
        self.fabric, self.array, self.source, self.dest, self.tag = fabric, array, source, dest, tag
        self.synchronous, self.inbox = synchronous, inbox
        self.nbytes = array.nbytes
        self.short = self.nbytes <= fabric.network.spec.eager_bytes
        if self.short and not synchronous:
            self.array = array.copy()
            self.complete = True
        self.has_arrived = False
        """Whether the content (of a short message) or the announcement (of a long one) has arrived."""
        self.is_found = False
        """Whether a probe has found the message: its receiver waits then in a loop that takes no simulated time."""
        self.receiving: Receiving | None = None
        self.order = 0

    def is_gone(self) -> bool:
        """Whether a process has died without which the message cannot arrive; a short one has left at once."""
        dead = self.fabric.dead
        return self.dest in dead or (self.source in dead and not self.short)

    def on_handed_over(self):
        """The sender's library has it."""
        if self not in self.fabric.under_way or self.source in self.fabric.dead:
            return
        fabric, network = self.fabric, self.fabric.network
        self.inbox.sent[self.source].append(self)
        if self.short:
            network.transfer(self.source, (self.dest,), self.nbytes, self)
        fabric.match(self.inbox, self.source)
        if not self.short and self.receiving is None:
            network.after(network.latency(self.source, self.dest), self.on_announced)

    def on_left(self):
        """The last byte has left."""
        processor = self.fabric.processor(self.source)
        if processor is not None:
            processor.left()
        if self.is_gone():
            return
        if not self.short:
            copy_into(self.receiving.array, self.array)  # the last moment at which the sender must keep it
        if not self.synchronous and not self.complete:
            self.finish(self.fabric.drivers[self.source])

    def on_arrived(self, dest, _):
        """The last byte has arrived."""
        if self.is_gone():
            return
        processor = self.fabric.processor(self.dest)
        if processor is not None:
            processor.notice(self.on_noticed)
        else:
            self.on_noticed()

    def on_noticed(self):
        """The rank knows that the last byte has arrived."""
        if self.receiving is not None:
            self.take_in()
        else:
            self.on_announced()

    def take_in(self):
        """Hand the message over to its receive."""
        processor = self.fabric.processor(self.dest)
        if processor is None:
            self.on_received()
        elif self.is_found:  # the processor is charged, and its next computation ends later
            processor.receive(self.nbytes, lambda: None)
            self.on_received()
        else:
            processor.receive(self.nbytes, self.on_received)

    def on_announced(self, _=None):
        """A short message, or the announcement of a long one, has arrived."""
        if self.receiving is None and not self.is_gone():
            self.has_arrived = True
            self.inbox.waiting += 1
            self.order = next(self.fabric.counter)
            self.fabric.match(self.inbox, self.source)
            if self.receiving is None:
                self.fabric.drivers[self.dest].on_unexpected_message()

    def on_received(self):
        """All of it is there, and so is the receive for it."""
        fabric = self.fabric
        if self.is_gone() or self not in fabric.under_way:  # while a processor was at it
            return
        del fabric.under_way[self]
        if self.short:
            copy_into(self.receiving.array, self.array)
        if self.synchronous:  # the sender learns of it by a message
            latency = fabric.network.latency(self.source, self.dest)
            fabric.network.after(latency, lambda _: self.finish(fabric.drivers[self.source]))
        self.receiving.finish(fabric.drivers[self.dest])


class Receiving(Waitable):
    """A posted receive."""

    __slots__ = ("array", "order", "source", "queue")

    def __init__(self, array, order: int = 0):
        super().__init__()
        self.array, self.order = array, order
        self.queue: list[Receiving] | None = None
        """Where it waits for a message, if it has waited."""
        self.source: int | None = None
        """Who sends the message, once there is one."""

    def Cancel(self):
        if self.queue is not None and self in self.queue:
            self.queue.remove(self)
            self.complete = True


class Inbox:
    """The messages one rank has not yet received, and the receives it has posted, in one group with one tag."""

    __slots__ = ("sent", "posted", "posted_any", "waiting")

    def __init__(self):
        self.sent: dict[int, list[Sending]] = defaultdict(list)  # not deques, which have room for 64 of them
        self.posted: dict[int, list[Receiving]] = defaultdict(list)
        self.posted_any: list[Receiving] = []
        self.waiting = 0
        """How many messages have arrived, or their announcements, for which no receive is posted."""

    def next_pair(self, source: int) -> "tuple[Sending, Receiving] | None":
        """Take out the next pair that is due for messages from ``source``; None if there is none."""
        sent, posted, posted_any = self.sent.get(source), self.posted.get(source), self.posted_any
        if not (sent and (posted or posted_any)):
            return None
        if posted_any and (not posted or posted_any[0].order < posted[0].order):
            if not sent[0].has_arrived:
                return None  # another rank's message may come first
            receiving = posted_any.pop(0)
        else:
            receiving = posted.pop(0)
        self.waiting -= sent[0].has_arrived
        return sent.pop(0), receiving

    def forget(self, source: int):
        """Drop the long messages from ``source``, which has died; short ones have left it at once."""
        if self.sent.get(source):
            self.waiting -= sum(sending.has_arrived and not sending.short for sending in self.sent[source])
            self.sent[source] = [sending for sending in self.sent[source] if sending.short]

    def first_arrived(self) -> int | None:
        """The source of the message that came first of those that wait; None if there is none."""
        if not self.waiting:
            return None
        waiting = [queue[0] for queue in self.sent.values() if queue and queue[0].has_arrived]
        return min(waiting, key=lambda sending: sending.order).source if waiting else None


class MessageFabric:
    """All messages between the ranks that ``drivers`` drive, in order.

    ``processors``: of each rank, what its messages take time of; None where they take none.
    """

    def __init__(self, network: Network, drivers: list, processors: list[Processor] | None = None):
        self.network, self.drivers, self.processors = network, drivers, processors
        self.size = len(drivers)
        self.sending_type, self.receiving_type, self.multicast_type = Sending, Receiving, SimulatedMulticast
        """The classes that stand for a message; `tracing.fabric_events` has others, for runs on record."""
        self.under_way: dict[Sending, None] = {}
        """The messages that were sent and have not been received completely, in the order of sending."""
        self._inboxes: dict[tuple, Inbox] = defaultdict(Inbox)
        self._multicasts: dict[tuple, SimulatedMulticast] = {}
        self.counter = itertools.count()
        self.allreduces = None
        """The `grsgd.simulate.fast_ring.allreduces.AllreduceTimes` that calculate all-reduces, if any."""
        self.dead: set[int] = set()
        self.known_dead: list[set[int]] = [set() for _ in drivers]
        """Which processes each one knows to have died."""

    def kill(self, process: int, seconds: float = 0.0):
        """Let a process die; the others notice after so many ``seconds``."""
        self.dead.add(process)
        self.drivers[process].kill()
        self.network.after(seconds, lambda _: self._notice(process))

    def _notice(self, process: int):
        """Tell all others that a process has died, and let their messages to and from it fail."""
        living = [other for other in range(self.size) if other not in self.dead]
        failing: dict[int, list[Waitable]] = {other: [] for other in living}
        for other in living:
            self.known_dead[other].add(process)
        for (_, dest, _), inbox in self._inboxes.items():
            if dest in failing:
                failing[dest] += inbox.posted.pop(process, ())
                inbox.forget(process)
        for sending in list(self.under_way):
            if sending.source in failing and sending.dest == process and not sending.complete:
                failing[sending.source].append(sending)
                del self.under_way[sending]
            elif sending.source == process and sending.dest in failing and not sending.short:
                failing[sending.dest] += [sending.receiving] if sending.receiving else []
                del self.under_way[sending]
        for other, waitables in failing.items():
            for waitable in waitables:
                waitable.fail(self.drivers[other])
            self.drivers[other].notify(None)

    def processor(self, rank: int) -> Processor | None:
        return self.processors[rank] if self.processors is not None else None

    def communicators(self) -> list[Communicator]:
        """Return one communicator per rank, of a new group of all ranks."""
        group = (next(self.counter),)
        ranks = range(self.size)
        return [Communicator(SimulatedBackend(self, group, ranks, rank)) for rank in ranks]

    def is_idle(self) -> bool:
        """Whether nothing is under way, and no rank has posted a receive that waits."""
        posted = (queue for inbox in self._inboxes.values() for queue in (*inbox.posted.values(), inbox.posted_any))
        return not self.under_way and not any(posted)

    def send(self, group, array, source: int, dest: int, tag: int, synchronous: bool) -> Sending:
        """Send from rank ``source`` of the fabric to ``dest``; with ``synchronous``, complete when it is received."""
        inbox = self._inboxes[group, dest, tag]
        sending = self.sending_type(self, array, source, dest, tag, synchronous, inbox)
        if dest in self.known_dead[source]:
            sending.failed = True
            return sending
        self.under_way[sending] = None
        processor = self.processor(source)
        if processor is not None:
            processor.send(sending.nbytes, sending.on_handed_over)
        else:
            sending.on_handed_over()
        return sending

    def receive(self, group, array, dest: int, source: int, tag: int) -> Receiving:
        """Post a receive of rank ``dest`` of the fabric from ``source`` or `ANY_RANK`."""
        receiving = self.receiving_type(array, next(self.counter))
        if source in self.known_dead[dest]:
            receiving.failed = True
            return receiving
        inbox = self._inboxes[group, dest, tag]
        receiving.queue = inbox.posted_any if source == ANY_RANK else inbox.posted[source]
        receiving.queue.append(receiving)
        if source == ANY_RANK:
            source = inbox.first_arrived()
        if source is not None:
            self.match(inbox, source)
        return receiving

    def probe(self, group, dest: int, source: int, tag: int) -> bool:
        """Whether a message from ``source`` (or `ANY_RANK`) waits at ``dest``."""
        inbox = self._inboxes.get((group, dest, tag))
        if inbox is None:
            return False
        if source == ANY_RANK:
            return inbox.first_arrived() is not None
        if not (inbox.sent[source] and inbox.sent[source][0].has_arrived):
            return False
        inbox.sent[source][0].is_found = True
        return True

    def broadcast(self, group, members, array, rank: int, root: int, number: int) -> Waitable:
        """``rank``'s part of a group's broadcast ``number`` from ``root``, a rank of the fabric."""
        key = group, number
        if key not in self._multicasts:
            done = partial(self._multicasts.pop, key, None)
            self._multicasts[key] = self.multicast_type(self, root, members, done)
        multicast = self._multicasts[key]
        return multicast.send(array) if rank == root else multicast.receive(rank, array)

    def match(self, inbox: Inbox, source: int):
        """Pair what has been sent with what has been posted."""
        while (pair := inbox.next_pair(source)) is not None:
            sending, receiving = pair
            if sending.nbytes > receiving.array.nbytes:
                raise Truncated(
                    f"rank {sending.source} sends {sending.nbytes} bytes with tag {sending.tag} to rank "
                    f"{sending.dest}, which has room for {receiving.array.nbytes}"
                )
            sending.receiving, receiving.source = receiving, sending.source
            if not sending.short:
                self.network.transfer(sending.source, (sending.dest,), sending.nbytes, sending)
            elif sending.has_arrived:
                sending.take_in()


class Truncated(RuntimeError):
    """A message that is longer than the receive for it."""


class SimulatedMulticast:
    """Broadcast ``number`` within a group. A long one leaves when all receives for it have been posted."""

    def __init__(self, fabric: MessageFabric, root: int, members: tuple[int, ...], done):
        self.fabric, self.root, self.done = fabric, root, done
        self.others = tuple(rank for rank in members if rank != root)
        self.array = None
        self.short = False
        self.sending = Waitable()
        self.receiving: dict[int, Receiving] = {}
        self.copies = 0
        self.arrived: set[int] = set()

    def send(self, array) -> Waitable:
        self.short = array.nbytes <= self.fabric.network.spec.eager_bytes
        self.array = array.copy() if self.short else array
        self.sending.complete = self.short or not self.others
        self._leave_if_due()
        return self.sending

    def receive(self, rank: int, array) -> Waitable:
        self.receiving[rank] = receiving = self.fabric.receiving_type(array)
        if rank in self.arrived:  # only a short one comes before its receive
            copy_into(array, self.array)
            receiving.complete = True
            self._forget_if_over()
        elif not self.short:
            self._leave_if_due()
        return receiving

    def _leave_if_due(self):
        if self.array is None or not (self.short or len(self.receiving) == len(self.others)):
            return
        network = self.fabric.network
        copies = [self.others] if network.has_multicast else [(dest,) for dest in self.others]
        self.copies = len(copies) if self.others else 0
        processor = self.fabric.processor(self.root)
        for dests in copies if self.others else ():
            leave = partial(network.transfer, self.root, dests, self.array.nbytes, Copy(self, dests))
            if processor is not None:
                processor.send(self.array.nbytes, leave)
            else:
                leave()
        self._forget_if_over()

    def copy_left(self, dests: tuple[int, ...]):
        processor = self.fabric.processor(self.root)
        if processor is not None:
            processor.left()
        if not self.short:
            for dest in dests:
                copy_into(self.receiving[dest].array, self.array)
        self.copies -= 1
        if not self.copies and not self.sending.complete:
            self.sending.finish(self.fabric.drivers[self.root])

    def copy_arrived(self, dest: int):
        processor = self.fabric.processor(dest)
        if processor is not None:
            processor.notice(lambda: processor.receive(self.array.nbytes, lambda: self.copy_received(dest)))
        else:
            self.copy_received(dest)

    def copy_received(self, dest: int):
        self.arrived.add(dest)
        if dest in self.receiving:
            if self.short:
                copy_into(self.receiving[dest].array, self.array)
            self.receiving[dest].finish(self.fabric.drivers[dest])
        self._forget_if_over()

    def _forget_if_over(self):
        if len(self.arrived) == len(self.receiving) == len(self.others):
            self.done()


class Copy:
    """One flow of a `SimulatedMulticast`."""

    __slots__ = ("multicast", "dests")

    def __init__(self, multicast: SimulatedMulticast, dests: tuple[int, ...]):
        self.multicast, self.dests = multicast, dests

    def on_left(self):
        self.multicast.copy_left(self.dests)

    def on_arrived(self, dest: int, _):
        self.multicast.copy_arrived(dest)


class SimulatedBackend:
    """A `grsgd.comm.backend.Backend` whose messages travel through a `MessageFabric`.

    Parameters
    ----------
    group
        What tells this group's messages from those of others.
    members
        The group's ranks, as ranks of the fabric.
    rank
        This one's number in the group.
    """

    survives_deaths = False
    shares_memory = False

    def __init__(self, fabric: MessageFabric, group: tuple, members: tuple[int, ...], rank: int):
        self.fabric, self.group, self.members, self.rank = fabric, group, members, rank
        self.size = len(members)
        self.fabric_rank = members[rank]
        self._broadcasts = itertools.count()
        self._children = itertools.count()
        self._allreduces = itertools.count()
        self._calculated = itertools.count()
        self._subsets: dict[tuple[int, ...], int] = {}
        self._lost: tuple[int, ...] = ()
        self._for_allreduce: Communicator | None = None

    @property
    def has_multicast(self):
        return self.fabric.network.has_multicast

    @property
    def hosts(self):
        """Those of ``hosts:HxR``; else each rank has one."""
        hosts = self.fabric.network.spec.hosts
        return [member // hosts.ranks if hosts else member for member in self.members]

    @property
    def lost(self):
        known = self.fabric.known_dead[self.fabric_rank]
        if len(known) != len(self._lost):  # it is asked for at every event
            self._lost = tuple(rank for rank, process in enumerate(self.members) if process in known)
        return self._lost

    def Isend(self, array, dest, tag):
        return self.fabric.send(self.group, array, self.fabric_rank, self.members[dest], tag, False)

    def Issend(self, array, dest, tag):
        return self.fabric.send(self.group, array, self.fabric_rank, self.members[dest], tag, True)

    def Irecv(self, array, source, tag):
        source = source if source == ANY_RANK else self.members[source]
        return self.fabric.receive(self.group, array, self.fabric_rank, source, tag)

    def Iprobe(self, source, tag):
        source = source if source == ANY_RANK else self.members[source]
        return self.fabric.probe(self.group, self.fabric_rank, source, tag)

    def Ibcast(self, array, root):
        number = next(self._broadcasts)
        return self.fabric.broadcast(self.group, self.members, array, self.fabric_rank, self.members[root], number)

    def Iallreduce(self, array):
        """A ring all-reduce, whatever a real library would choose."""
        if self._for_allreduce is None:
            self._for_allreduce = Communicator(self.dup())
        tag = next(self._allreduces) % 100  # keeps those apart that are under way at once
        return self.fabric.drivers[self.fabric_rank].start(ring_allreduce(self._for_allreduce, array, tag))

    def calculate(self, schedule, comm: Communicator, x, options: dict):
        """Begin an all-reduce whose end can be calculated; None where it cannot, or other things go on beside it."""
        allreduces = self.fabric.allreduces
        if allreduces is None or not self.fabric.drivers[self.fabric_rank].is_alone_in_foreground():
            return None
        return allreduces.begin((self.group, next(self._calculated)), schedule, comm, x, options)

    def dup(self):
        return SimulatedBackend(self.fabric, (*self.group, next(self._children)), self.members, self.rank)

    def subset(self, ranks):
        members = tuple(self.members[rank] for rank in ranks)
        number = self._subsets[members] = self._subsets.get(members, -1) + 1
        group = (*self.group, members, number)
        return SimulatedBackend(self.fabric, group, members, members.index(self.fabric_rank))

    def free(self):
        """Do nothing: nothing is kept."""


def copy_into(buffer, message):
    """Copy a message into the beginning of a receive buffer."""
    if isinstance(buffer, ShapeOnlyArray):
        buffer.receive(message)
    elif isinstance(message, ShapeOnlyArray):
        if buffer.nbytes > PREFIX_BYTES:  # else it may be the beginning of an array without content
            raise TypeError("a message without content for a receive buffer with content")
    elif buffer.dtype == message.dtype:
        buffer[: len(message)] = message
    else:
        buffer.view(np.uint8)[: message.nbytes] = message.view(np.uint8)
