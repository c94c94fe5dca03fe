"""Ranks in one thread, whose schedules are polled in turn. Messages and datagrams between the ranks stay in memory."""

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from grsgd.comm.backend import ANY_RANK
from grsgd.comm.communicator import Communicator
from grsgd.comm.engine import as_list


class Post:
    """State that all ranks share: messages by sender, receiver and tag; datagrams by receiver; and a clock.

    ``carry(datagram)`` returns the list of the datagrams that a receiver gets in place of ``datagram``.
    """

    def __init__(self, ranks: int, carry=lambda datagram: [datagram]):
        self.ranks, self.carry = ranks, carry
        self.messages = defaultdict(deque)
        self.datagrams = [deque() for _ in range(ranks)]
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def communicators(self) -> list[Communicator]:
        return [Communicator(PostBackend(self, rank)) for rank in range(self.ranks)]

    def communicators_on_hosts(self, hosts: Sequence[str] | None = None) -> list[Communicator]:
        """Return communicators of ranks that share memory. Rank r acts as if it ran on the host ``hosts[r]``.

        If ``hosts`` is None, the ranks have to ask each other for the names of their hosts.
        """
        comms = self.communicators()
        for comm in comms:
            comm.backend.shares_memory, comm.backend.hosts = True, hosts and list(hosts)
        return comms

    def finish(self, schedules, polls: int = 200_000, seconds: float = 1e-4, late: int | None = None):
        """Run one schedule per rank to the schedule's end, except the schedule of rank ``late``.

        Raises TimeoutError after ``polls`` polls, with the pollables for which the ranks wait.
        """
        waiting = {rank: [schedule, []] for rank, schedule in enumerate(schedules) if rank != late}
        for _ in range(polls):
            if not waiting:
                return
            self.now += seconds
            for rank, (schedule, pending) in list(waiting.items()):
                while pending and pending[0].Test():
                    pending.pop(0)
                if not pending:
                    try:
                        waiting[rank][1] = as_list(next(schedule))
                    except StopIteration:
                        del waiting[rank]
        raise TimeoutError("; ".join(str(pending[0]) for _, pending in waiting.values()))


class PostBackend:
    """A `grsgd.comm.backend.Backend` with only the methods that schedules of coded packets need."""

    survives_deaths = shares_memory = False
    has_multicast = hosts = None
    lost = ()

    def __init__(self, post: Post, rank: int):
        self.post, self.rank, self.size = post, rank, post.ranks

    def Isend(self, array, dest, tag):
        self.post.messages[self.rank, dest, tag].append(array.copy())
        return Done()

    def Irecv(self, array, source, tag):
        return Receiving(self.post.messages[source, self.rank, tag], array)

    def Iprobe(self, source, tag):
        sources = range(self.size) if source == ANY_RANK else [source]
        return any(self.post.messages[each, self.rank, tag] for each in sources)


class Done:
    def Test(self):
        return True


class Receiving:
    def __init__(self, messages: deque, array: np.ndarray):
        self.messages, self.array, self.is_done = messages, array, False

    def Test(self):
        if not self.is_done and self.messages:
            message = self.messages.popleft().view(np.uint8)
            self.array.view(np.uint8)[: message.size] = message
            self.is_done = True
        return self.is_done


class PostSockets:
    """A double of `grsgd.comm.coded.sockets.Sockets` for one rank. The address of a rank is the rank's number, and the
    address of the group is None."""

    group, room = None, 2**26

    def __init__(self, post: Post, rank: int):
        self.post, self.rank, self.is_closed = post, rank, False

    def send(self, head, content, address):
        for rank in range(self.post.ranks) if address is None else [address]:
            self.post.datagrams[rank].extend(self.post.carry(bytes(head) + bytes(content)))
        return True

    def receive(self, buffer):
        waiting = self.post.datagrams[self.rank]
        if not waiting:
            return None
        datagram = waiting.popleft()
        buffer[: len(datagram)] = datagram
        return buffer[: len(datagram)]

    def make_room(self, nbytes):
        """Do nothing, because the queue of datagrams is unlimited."""

    def close(self):
        self.is_closed = True
