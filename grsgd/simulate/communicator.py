"""MPI messages between ranks in one process: who receives what, when, and with which content.

Messages match as the MPI standard says (section 3.5): those of one sender to one receiver with one tag in the order in
which they were sent; a receive from any rank takes the message that came first; receives in the order in which they
were posted. What a send buffer holds is copied at the last moment, when the send completes, so that a schedule that
writes to it too early is found out; only short messages, which MPI libraries store, are copied when they leave.
"""

import itertools
from collections import defaultdict, deque

import numpy as np

from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.communicator import ANY_RANK, Communicator
from grsgd.phantom import Phantom
from grsgd.simulate.flows import Network


class Waitable:
    """A pollable on which one schedule can wait: it is resumed when this is complete."""

    __slots__ = ("complete", "waiter")

    def __init__(self):
        self.complete = False
        self.waiter = None

    def Test(self) -> bool:
        return self.complete

    def finish(self, driver):
        """Complete; ``driver``: of the rank that waits."""
        self.complete = True
        waiter, self.waiter = self.waiter, None
        driver.happened(waiter)


class Sending(Waitable):
    """A message on its way to ``inbox``, a rank's in one group and with one tag."""

    __slots__ = ("world", "array", "nbytes", "source", "dest", "tag", "synchronous", "inbox")
    __slots__ += ("short", "here", "receiving", "stamp")

    def __init__(self, world: "World", array, source: int, dest: int, tag: int, synchronous: bool, inbox: "Inbox"):
        super().__init__()
        self.world, self.array, self.source, self.dest, self.tag = world, array, source, dest, tag
        self.synchronous, self.inbox = synchronous, inbox
        self.nbytes = array.nbytes
        self.short = self.nbytes <= world.network.spec.eager_bytes
        if self.short and not synchronous:
            self.array = array.copy()
            self.complete = True
        self.here = False
        """Whether the content (of a short message) or the announcement (of a long one) has arrived."""
        self.receiving: Receiving | None = None
        self.stamp = 0

    def left(self):
        """The last byte has left."""
        if not self.short:
            deposit(self.receiving.array, self.array)  # the last moment at which the sender must keep it
        if not self.synchronous and not self.complete:
            self.finish(self.world.drivers[self.source])

    def arrived(self, dest, _):
        """The last byte has arrived."""
        if self.receiving is not None:
            self.received()
        else:
            self.announced()

    def announced(self, _=None):
        """A short message, or word of a long one, has arrived."""
        if self.receiving is None:
            self.here = True
            self.stamp = next(self.world.stamps)
            self.world.match(self.inbox, self.source)
            if self.receiving is None:
                self.world.drivers[self.dest].look()

    def received(self):
        world = self.world
        del world.under_way[self]
        if self.short:
            deposit(self.receiving.array, self.array)
        if self.synchronous:  # the sender learns of it by a message
            latency = world.network.latency(self.source, self.dest)
            world.network.after(latency, lambda _: self.finish(world.drivers[self.source]))
        self.receiving.finish(world.drivers[self.dest])


class Receiving(Waitable):
    """A posted receive."""

    __slots__ = ("array", "stamp")

    def __init__(self, array, stamp: int = 0):
        super().__init__()
        self.array, self.stamp = array, stamp


class Inbox:
    """What one rank has not yet received, and the receives it has posted, in one group with one tag."""

    __slots__ = ("sent", "posted", "posted_any")

    def __init__(self):
        self.sent: dict[int, deque[Sending]] = defaultdict(deque)
        self.posted: dict[int, deque[Receiving]] = defaultdict(deque)
        self.posted_any: deque[Receiving] = deque()

    def match(self, source: int):
        """Iterate over the pairs (sending, receiving) that are due for messages from ``source``."""
        sent, posted, posted_any = self.sent[source], self.posted[source], self.posted_any
        while sent and (posted or posted_any):
            if posted_any and (not posted or posted_any[0].stamp < posted[0].stamp):
                if not sent[0].here:
                    return  # another rank's message may come first
                yield sent.popleft(), posted_any.popleft()
            else:
                yield sent.popleft(), posted.popleft()

    def first_here(self) -> int | None:
        """The source of the message that came first of those that wait."""
        waiting = [queue[0] for queue in self.sent.values() if queue and queue[0].here]
        return min(waiting, key=lambda sending: sending.stamp).source if waiting else None


class World:
    """All messages between the ranks that ``drivers`` drive, in order."""

    def __init__(self, network: Network, drivers: list):
        self.network, self.drivers = network, drivers
        self.size = len(drivers)
        self.under_way: dict[Sending, None] = {}
        """What has been sent and not yet been received completely, in the order of sending."""
        self._inboxes: dict[tuple, Inbox] = defaultdict(Inbox)
        self._multicasts: dict[tuple, Multicast] = {}
        self.stamps = itertools.count()

    def communicators(self) -> list["VirtualCommunicator"]:
        """One end a rank of a group of all ranks."""
        group = (next(self.stamps),)
        everybody = tuple(range(self.size))
        return [VirtualCommunicator(Endpoint(self, group, everybody, rank)) for rank in everybody]

    def send(self, group, array, source: int, dest: int, tag: int, synchronous: bool) -> Sending:
        inbox = self._inboxes[group, dest, tag]
        sending = Sending(self, array, source, dest, tag, synchronous, inbox)
        self.under_way[sending] = None
        inbox.sent[source].append(sending)
        if sending.short:
            self.network.transfer(source, (dest,), sending.nbytes, sending)
        self.match(inbox, source)
        if not sending.short and sending.receiving is None:
            self.network.after(self.network.latency(source, dest), sending.announced)
        return sending

    def receive(self, group, array, dest: int, source: int, tag: int) -> Receiving:
        receiving = Receiving(array, next(self.stamps))
        inbox = self._inboxes[group, dest, tag]
        if source == ANY_RANK:
            inbox.posted_any.append(receiving)
            source = inbox.first_here()
        else:
            inbox.posted[source].append(receiving)
        if source is not None:
            self.match(inbox, source)
        return receiving

    def probe(self, group, dest: int, source: int, tag: int) -> bool:
        inbox = self._inboxes.get((group, dest, tag))
        if inbox is None:
            return False
        if source == ANY_RANK:
            return inbox.first_here() is not None
        return bool(inbox.sent[source]) and inbox.sent[source][0].here

    def broadcast(self, group, members, array, rank: int, root: int, number: int) -> Waitable:
        """``rank``'s part of a group's broadcast ``number`` from ``root``, a rank of the world."""
        key = group, number
        if key not in self._multicasts:
            self._multicasts[key] = Multicast(self, root, members, done=lambda: self._multicasts.pop(key, None))
        multicast = self._multicasts[key]
        return multicast.send(array) if rank == root else multicast.receive(rank, array)

    def match(self, inbox: Inbox, source: int):
        """Pair what has been sent with what has been posted."""
        for sending, receiving in inbox.match(source):
            if sending.nbytes > receiving.array.nbytes:
                raise RuntimeError(
                    f"rank {sending.source} sends {sending.nbytes} bytes with tag {sending.tag} to rank "
                    f"{sending.dest}, which has room for {receiving.array.nbytes}"
                )
            sending.receiving = receiving
            if not sending.short:
                self.network.transfer(sending.source, (sending.dest,), sending.nbytes, sending)
            elif sending.here:
                sending.received()


class Multicast:
    """Broadcast ``number`` within a group. A long one leaves when all receives for it have been posted."""

    def __init__(self, world: World, root: int, members: tuple[int, ...], done):
        self.world, self.root, self.done = world, root, done
        self.others = tuple(rank for rank in members if rank != root)
        self.array = None
        self.short = False
        self.sending = Waitable()
        self.receiving: dict[int, Receiving] = {}
        self.copies = 0
        self.here: set[int] = set()

    def send(self, array) -> Waitable:
        self.short = array.nbytes <= self.world.network.spec.eager_bytes
        self.array = array.copy() if self.short else array
        self.sending.complete = self.short or not self.others
        self._leave_if_due()
        return self.sending

    def receive(self, rank: int, array) -> Waitable:
        self.receiving[rank] = receiving = Receiving(array)
        if rank in self.here:  # only a short one comes before its receive
            deposit(array, self.array)
            receiving.complete = True
            self._forget_if_over()
        elif not self.short:
            self._leave_if_due()
        return receiving

    def _leave_if_due(self):
        if self.array is None or not (self.short or len(self.receiving) == len(self.others)):
            return
        network = self.world.network
        copies = [self.others] if network.has_multicast else [(dest,) for dest in self.others]
        self.copies = len(copies) if self.others else 0
        for dests in copies if self.others else ():
            network.transfer(self.root, dests, self.array.nbytes, Copy(self, dests))
        self._forget_if_over()

    def copy_left(self, dests: tuple[int, ...]):
        if not self.short:
            for dest in dests:
                deposit(self.receiving[dest].array, self.array)
        self.copies -= 1
        if not self.copies and not self.sending.complete:
            self.sending.finish(self.world.drivers[self.root])

    def copy_arrived(self, dest: int):
        self.here.add(dest)
        if dest in self.receiving:
            if self.short:
                deposit(self.receiving[dest].array, self.array)
            self.receiving[dest].finish(self.world.drivers[dest])
        self._forget_if_over()

    def _forget_if_over(self):
        if len(self.here) == len(self.receiving) == len(self.others):
            self.done()


class Copy:
    """One flow of a `Multicast`."""

    __slots__ = ("multicast", "dests")

    def __init__(self, multicast: Multicast, dests: tuple[int, ...]):
        self.multicast, self.dests = multicast, dests

    def left(self):
        self.multicast.copy_left(self.dests)

    def arrived(self, dest: int, _):
        self.multicast.copy_arrived(dest)


class Endpoint:
    """What `Communicator` needs of an mpi4py communicator. ``members``: the group's ranks, as ranks of the world."""

    def __init__(self, world: World, group: tuple, members: tuple[int, ...], rank: int):
        self.world, self.group, self.members, self.rank = world, group, members, rank
        self.world_rank = members[rank]
        self._broadcasts = itertools.count()
        self._children = itertools.count()
        self._allreduces = itertools.count()
        self._subsets: dict[tuple[int, ...], int] = {}
        self._for_allreduce: VirtualCommunicator | None = None

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return len(self.members)

    def Isend(self, array, dest: int, tag: int) -> Waitable:
        return self.world.send(self.group, array, self.world_rank, self.members[dest], tag, False)

    def Issend(self, array, dest: int, tag: int) -> Waitable:
        return self.world.send(self.group, array, self.world_rank, self.members[dest], tag, True)

    def Irecv(self, array, source: int, tag: int) -> Waitable:
        source = source if source == ANY_RANK else self.members[source]
        return self.world.receive(self.group, array, self.world_rank, source, tag)

    def Iprobe(self, source: int, tag: int) -> bool:
        source = source if source == ANY_RANK else self.members[source]
        return self.world.probe(self.group, self.world_rank, source, tag)

    def Ibcast(self, array, root: int) -> Waitable:
        number = next(self._broadcasts)
        return self.world.broadcast(self.group, self.members, array, self.world_rank, self.members[root], number)

    def Iallreduce(self, _, array) -> Waitable:
        """A ring all-reduce, whatever a real library would choose."""
        if self._for_allreduce is None:
            self._for_allreduce = VirtualCommunicator(self.Dup())
        tag = next(self._allreduces) % 100  # keeps those apart that are under way at once
        return self.world.drivers[self.world_rank].start(ring_allreduce(self._for_allreduce, array, tag))

    def Dup(self) -> "Endpoint":
        return Endpoint(self.world, (*self.group, next(self._children)), self.members, self.rank)

    def subset(self, ranks) -> "Endpoint":
        members = tuple(self.members[rank] for rank in ranks)
        number = self._subsets[members] = self._subsets.get(members, -1) + 1
        return Endpoint(self.world, (*self.group, members, number), members, members.index(self.world_rank))

    def Free(self):
        """Nothing is kept."""


class VirtualCommunicator(Communicator):
    """A `Communicator` whose messages travel through a `World`."""

    def __init__(self, endpoint: Endpoint, _=None):
        self._open(endpoint, any_source=ANY_RANK, in_place=None)

    def _create_group(self, ranks):
        return self.mpi.subset(ranks)


def deposit(target, message):
    """Copy a message into the beginning of a receive buffer."""
    if isinstance(target, Phantom):
        target.receive(message)
    elif isinstance(message, Phantom):
        raise TypeError("a message without content for a receive buffer with content")
    elif target.dtype == message.dtype:
        target[: len(message)] = message
    else:
        target.view(np.uint8)[: message.nbytes] = message.view(np.uint8)
