"""The `MessageFabric`, which sends and receives the messages of simulated ranks. If a simulated process dies, its
unfinished messages are lost."""

import itertools
from collections import defaultdict
from functools import partial

from grsgd.comm.backend import ANY_RANK
from grsgd.comm.communicator import Communicator
from grsgd.simulator.backend import SimulatedBackend
from grsgd.simulator.broadcasts import SimulatedMulticast
from grsgd.simulator.flows import Network
from grsgd.simulator.messages import Inbox, Receiving, Sending
from grsgd.simulator.processor import Processor
from grsgd.simulator.waitable import Waitable


class MessageFabric:
    """Delivery of all messages between the simulated ranks of a run. ``drivers`` is the list of the ranks' drivers; the
    index is the rank.

    ``processors`` is the list of the ranks' simulated processors, which spend time on messages. If messages take no
    processor time, ``processors`` is None.
    """

    def __init__(self, network: Network, drivers: list, processors: list[Processor] | None = None):
        self.network, self.drivers, self.processors = network, drivers, processors
        self.size = len(drivers)
        self.sending_type, self.receiving_type, self.multicast_type = Sending, Receiving, SimulatedMulticast
        """Classes from which the fabric makes messages, receives and broadcasts. If the run records a timeline or a
        trace, `tracing.fabric_events` sets other classes."""
        self.under_way: dict[Sending, None] = {}
        """Messages that were sent and are not completely received, in the order in which they were sent."""
        self._inboxes: dict[tuple, Inbox] = defaultdict(Inbox)
        self._multicasts: dict[tuple, SimulatedMulticast] = {}
        self.counter = itertools.count()
        self.allreduces = None
        """`AllreduceTimes` of `grsgd.simulator.fast_ring.allreduces`, which calculates the ends of all-reduces; None if
        all-reduces are simulated message by message."""
        self.dead: set[int] = set()
        self.known_dead: list[set[int]] = [set() for _ in drivers]
        """Sets of processes whose deaths a process has noticed; the index is the process that has noticed the
        deaths."""

    def kill(self, process: int, seconds: float = 0.0):
        """Let process number ``process`` die, and stop its driver. The other processes notice the death of ``process``
        after ``seconds`` of simulated time."""
        self.dead.add(process)
        self.drivers[process].kill()
        self.network.after(seconds, lambda _: self._notice(process))

    def _notice(self, process: int):
        """Tell all living processes that ``process`` has died. Let the living processes' unfinished sends
        to ``process``, and their receives from ``process``, fail."""
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
        """Return a list of one communicator per rank. The communicators form a new group, whose messages match no
        messages of other groups."""
        group = (next(self.counter),)
        ranks = range(self.size)
        return [Communicator(SimulatedBackend(self, group, ranks, rank)) for rank in ranks]

    def is_idle(self) -> bool:
        """Return True if no message is under way and no posted receive waits for a message."""
        posted = (queue for inbox in self._inboxes.values() for queue in (*inbox.posted.values(), inbox.posted_any))
        return not self.under_way and not any(posted)

    def send(self, group, array, source: int, dest: int, tag: int, synchronous: bool) -> Sending:
        """Send ``array`` from ``source`` to ``dest``, the numbers of two ranks in the fabric (not in the group). If
        ``synchronous``, the send is complete only when the receiver has received the message."""
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
        """Post a receive on rank ``dest`` for a message from rank ``source``, or from any rank if ``source`` is
        `ANY_RANK`."""
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
        """Return True if a message from ``source`` (any rank, if ``source`` is `ANY_RANK`) has arrived at rank ``dest``
        and waits for a receive."""
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
        """Take part on ``rank`` in broadcast number ``number`` of the group: ``root`` sends ``array``, and all other
        ranks receive into ``array``. ``rank`` and ``root`` are numbers of ranks in the fabric, not in the group."""
        key = group, number
        if key not in self._multicasts:
            done = partial(self._multicasts.pop, key, None)
            self._multicasts[key] = self.multicast_type(self, root, members, done)
        multicast = self._multicasts[key]
        return multicast.send(array) if rank == root else multicast.receive(rank, array)

    def match(self, inbox: Inbox, source: int):
        """Pair each message from rank ``source`` in ``inbox`` with the posted receive that gets the message. Raises
        Truncated if a message is longer than its receive's buffer."""
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
    """Error for a message that is longer than the buffer of its receive."""
