"""The ranks that train together until the process of one of them dies, or another process joins them.

Where a step needs all ranks none of them can go on alone. So those that are left meet: each tells all others how far it
is and whom it knows, until all of them know the same. Then they have new numbers, 0 to n-1 in the order of their ranks,
and messages with tags of their own, so that one that is late is not taken for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.backend import Backend, Request, has_died
from grsgd.comm.communicator import Communicator, receive_if_come
from grsgd.comm.elastic.membership import Membership, Tolerant, WithMember
from grsgd.comm.pollables import Until

TAGS = 8
"""Tags that belong to one epoch: more than those that any algorithm which trains in a group uses."""


class Changed(Exception):
    """A process has died, or one has joined: the ranks are to meet before they go on."""


class KnownProcesses(NamedTuple):
    """A process's message to the others when they meet.

    process, epoch: its own. ranks: the rank of each process, shape [processes], -1 if it has not joined. are_dead:
    1 for each process that has died, shape [processes]. numbers: of itself, shape [numbers].
    """

    process: int
    epoch: int
    ranks: np.ndarray
    are_dead: np.ndarray
    numbers: np.ndarray

    def pack(self) -> np.ndarray:
        """Return the message, float64."""
        return np.concatenate([[self.process, self.epoch], self.ranks, self.are_dead, self.numbers])

    @classmethod
    def unpack(cls, message: np.ndarray, processes: int) -> KnownProcesses:
        """Return what a message of ``processes`` processes says."""
        own, *rest = np.split(message, [2, 2 + processes, 2 + 2 * processes])
        return cls(*map(int, own), *rest)


class Group:
    """One process's view of the ranks that train together.

    Parameters
    ----------
    membership
        Which process holds which rank.
    comm, uncounted_comm
        Of all ranks (`MembersBackend`), as in a `RankContext`: carry the group's messages, too.
    numbers
        How many numbers each rank tells the others of itself, when they meet.
    """

    def __init__(self, membership: Membership, comm: Communicator, uncounted_comm: Communicator, numbers: int):
        self.membership, self.comm, self.uncounted_comm = membership, comm, uncounted_comm
        self.numbers = numbers
        self.size = membership.size
        self.processes: list[int] = list(range(self.size))
        """Those that train together, in the order of their ranks."""
        self.epoch: int | None = self.size if self.membership.process < self.size else None
        """Tells the groups of a run apart: how many processes have joined, and died, before; None on a process that has
        not met the others yet."""
        self.is_meeting = False
        self._told: dict[int, tuple[int, np.ndarray]] = {}
        """The epoch, and the numbers, that each process has told last."""
        self._sending: list = []
        self._backends: list[GroupBackend] = []

    @property
    def has_changed(self) -> bool:
        """Whether the ranks are to meet."""
        return self.epoch != self._known()

    def _known(self) -> int:
        """Return the epoch that belongs to all that this process knows. Nobody leaves twice, or forgets: two processes
        that know as many changes, and of which one knows all that the other does, know the same ones."""
        return sum(1 + (process in self.membership.dead) for process in list(self.membership.joined))

    def watch(self):
        """Raise Changed where the ranks are to meet; called before each step and while this rank waits."""
        self._listen()
        if self.has_changed and not self.is_meeting:
            raise Changed

    def meet(self, numbers: Sequence[float]):
        """Schedule: wait until all that train know of each other; returns the ``numbers`` of each by process, or None
        where one of them has ended its training, and so all may."""
        membership, self.is_meeting = self.membership, True
        try:
            while True:
                epoch = self._known()
                self._tell(epoch, numbers)
                yield Until(lambda epoch=epoch: self._has_met(epoch), "all ranks that are left, after a death")
                if membership.finished:
                    return None
                if self._known() == epoch:
                    break
        finally:
            self.is_meeting = False
        self.epoch, ranks = epoch, membership.training
        self.processes = sorted(ranks, key=ranks.get)
        return {process: self._told[process][1] for process in self.processes}

    def communicators(self) -> tuple[Communicator, Communicator]:
        """Return communicators of the group alone, in place of those of all ranks, with the same counters."""
        return self._communicator(self.comm), self._communicator(self.uncounted_comm)

    def close(self):
        """Schedule: end all messages of the group. From then on none is written into an array."""
        for backend in self._backends:
            yield from backend.close()
        self._backends.clear()

    def _communicator(self, whole: Communicator) -> Communicator:
        ranks = [self.membership.joined[process] for process in self.processes]
        tag = TAGS * (1 + self.epoch - self.size)
        self._backends.append(GroupBackend(whole.backend.processes, self.membership, self.processes, tag))
        return Communicator(self._backends[-1], ranks, whole.traffic)

    def _tell(self, epoch: int, numbers: Sequence[float]):
        """Tell all that train what this process knows."""
        membership = self.membership
        processes = membership.comm.size
        known = KnownProcesses(
            membership.process, epoch, np.full(processes, -1.0), np.zeros(processes), np.zeros(self.numbers)
        )
        for process, rank in list(membership.joined.items()):
            known.ranks[process], known.are_dead[process] = rank, process in membership.dead
        known.numbers[: len(numbers)] = numbers
        self._told[membership.process] = epoch, known.numbers
        message = known.pack()
        self._sending = [sending for sending in self._sending if not sending.Test()]
        for process in set(membership.training) - {membership.process}:
            self._sending.append(Tolerant(membership.comm.Isend(message, process, tags.GROUP), message))

    def _listen(self):
        """Learn what others know."""
        membership = self.membership
        processes = membership.comm.size
        longest = 2 + 2 * processes + self.numbers
        while (message := receive_if_come(membership.comm, tags.GROUP, longest, np.float64)) is not None:
            known = KnownProcesses.unpack(message, processes)
            for other in range(processes):
                if known.ranks[other] >= 0:
                    membership.joined.setdefault(other, int(known.ranks[other]))
                if known.are_dead[other]:
                    membership.note_death(other)
            self._told[known.process] = known.epoch, known.numbers

    def _has_met(self, epoch: int) -> bool:
        self._listen()
        if self.membership.finished or self._known() != epoch:
            return True
        return all(self._told.get(process, (None,))[0] == epoch for process in self.membership.training)


class GroupBackend:
    """Messages between the processes of a group in one epoch: a `grsgd.comm.backend.Backend`.

    One to or from a process that has died raises LostRank when it is tested, and tells the membership.

    Parameters
    ----------
    whole
        A backend of all processes.
    processes
        Those of the group, in the order of their numbers in it.
    first_tag
        The tag here of what has tag 0 in the group.
    """

    survives_deaths = False
    """The others go on, but not with the step that they are in."""
    shares_memory = False
    has_multicast = False
    hosts = None
    lost = ()

    def __init__(self, whole: Backend, membership: Membership, processes: Sequence[int], first_tag: int):
        self.whole, self.membership, self.processes, self.first_tag = whole, membership, processes, first_tag
        self.size, self.rank = len(processes), processes.index(membership.process)
        self._receiving: list[WithMember] = []
        self._sending: list[WithMember] = []

    def Isend(self, array, dest, tag):
        return self._keep(self._sending, dest, self.whole.Isend(array, self.processes[dest], self.first_tag + tag))

    def Issend(self, array, dest, tag):
        return self._keep(self._sending, dest, self.whole.Issend(array, self.processes[dest], self.first_tag + tag))

    def Irecv(self, array, source, tag):
        request = self.whole.Irecv(array, self.processes[source], self.first_tag + tag)
        return self._keep(self._receiving, source, request)

    def Iprobe(self, source, tag):
        return self.whole.Iprobe(self.processes[source], self.first_tag + tag)

    def dup(self):
        raise NotImplementedError("no more communicators in a group of ranks that may die")

    def subset(self, ranks):
        raise NotImplementedError("no subsets of ranks that may die")

    def Ibcast(self, array, root):
        raise NotImplementedError("no broadcasts of a library to ranks that may die")

    def Iallreduce(self, array):
        raise NotImplementedError("no all-reduces of a library over ranks that may die")

    def free(self):
        """Do nothing: the backend of all processes goes on."""

    def close(self):
        """Schedule: end all receives, of which some may be of messages that never come.

        What was sent and nobody receives any more stays as it is, with its memory, for the library may read it.
        """
        receiving = [request for request in self._receiving if not is_over(request)]
        for request in receiving:
            request.Cancel()
        yield Until(lambda: all(map(is_over, receiving)), "the end of messages that are not needed any more")
        UNRECEIVED.extend(request for request in self._sending if not is_over(request))

    def _keep(self, kept: list, peer: int, request: Request) -> WithMember:
        if len(kept) > MANY:
            kept[:] = [request for request in kept if not is_over(request)]
        kept.append(WithMember(self.membership, self.processes[peer], request))
        return kept[-1]


MANY = 64
"""Messages that are kept before those are looked for that are over."""
UNRECEIVED: list[WithMember] = []
"""Messages of groups that are no more."""


def is_over(request: WithMember) -> bool:
    """Whether a message is complete, or has failed because a process has died."""
    try:
        return request.Test()
    except RuntimeError as error:
        if not has_died(error):
            raise
        return True
