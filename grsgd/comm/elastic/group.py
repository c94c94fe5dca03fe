"""The group of ranks that train together until the process of a rank dies, or until a new process joins the ranks.

If a training step needs all ranks, no rank can continue alone after a process has died, so the remaining ranks hold a
meeting (exchange messages). In the meeting, each rank tells all other ranks its progress and which processes it knows
to be alive, until all ranks know of the same processes. After the meeting, the n remaining ranks are numbered from 0 to
n-1 in the order of their former ranks. Messages after the meeting have new tags, so that no rank takes a message from
before the meeting for a new message.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.backend import ANY_RANK, Backend, Request, has_died
from grsgd.comm.communicator import Communicator, receive_if_come
from grsgd.comm.elastic.membership import Membership, Tolerant, WithMember
from grsgd.comm.pollables import Until

TAGS = 8
"""Number of message tags that are reserved for each group of ranks. Every algorithm that trains in a group uses fewer
than `TAGS` tags."""


class Changed(Exception):
    """Error raised during a training step if a process has died, or has joined the ranks. After a `Changed` error, the
    ranks must meet before they continue the training."""


class KnownProcesses(NamedTuple):
    """Message that each process sends to all other processes when the ranks meet after the death of a process.

    ``process``: number of the sending process. ``epoch``: total number of joins and deaths of processes of which the
    sender knows. ``ranks``: rank of each process of the job, or -1 for a process that has not joined, of shape
    [processes]. ``are_dead``: for each process of the job, 1 if the process has died and 0 if it has not, of shape
    [processes]. ``numbers``: numbers that describe the sender's progress in the training, of shape [numbers].
    """

    process: int
    epoch: int
    ranks: np.ndarray
    are_dead: np.ndarray
    numbers: np.ndarray

    def pack(self) -> np.ndarray:
        """Return the fields of this message as one array: float64 of shape [2 + 2 processes + numbers]."""
        return np.concatenate([[self.process, self.epoch], self.ranks, self.are_dead, self.numbers])

    @classmethod
    def unpack(cls, message: np.ndarray, processes: int) -> KnownProcesses:
        """Return the `KnownProcesses` whose fields are in ``message``, an array that `pack` has returned. ``processes``
        is the number of processes of the whole job."""
        own, *rest = np.split(message, [2, 2 + processes, 2 + 2 * processes])
        return cls(*map(int, own), *rest)


class Group:
    """The group of ranks that train together and survive deaths of processes, as seen by one process.

    Parameters
    ----------
    membership
        The process's view of the ranks.
    comm, uncounted_comm
        Communicators of all ranks. The backends of these communicators also send the group's messages.
    numbers
        Number of values that each rank sends to all other ranks in a meeting.
    """

    def __init__(self, membership: Membership, comm: Communicator, uncounted_comm: Communicator, numbers: int):
        self.membership, self.comm, self.uncounted_comm = membership, comm, uncounted_comm
        self.numbers = numbers
        self.size = membership.size
        self.processes: list[int] = list(range(self.size))
        """The numbers of the processes that train together, in the order of their ranks."""
        self.epoch: int | None = self.size if self.membership.process < self.size else None
        """Number of joins and deaths of processes that had happened when this group formed. Each group of a run has a
        different epoch, because later groups have seen more joins or deaths.

        On a process that has not yet met the other processes, the epoch is None.
        """
        self.is_meeting = False
        self._told: dict[int, tuple[int, np.ndarray]] = {}
        """Epoch and progress numbers in the last `KnownProcesses` message from each process."""
        self._sending: list = []
        self._backends: list[GroupBackend] = []

    @property
    def has_changed(self) -> bool:
        """Return True if a process has died or joined since this group formed, so that the ranks must meet."""
        return self.epoch != self._known()

    def _known(self) -> int:
        """Return the number of joins and deaths of processes of which this process knows, which becomes the epoch of
        the next group.

        A process dies at most once, and no process forgets a join or a death that it has learnt of. Two processes whose
        numbers are equal know the same joins and deaths, if one of them knows all joins and deaths that the other
        process knows.
        """
        return sum(1 + (process in self.membership.dead) for process in list(self.membership.joined))

    def watch(self):
        """Raise Changed if a process has died or joined, so that the ranks must meet. The training loop calls `watch`
        before each step, and the driver calls it while this rank waits."""
        self._listen()
        if self.has_changed and not self.is_meeting:
            raise Changed

    def meet(self, numbers: Sequence[float]):
        """Generator (schedule) that forms a new group: it waits until all training processes know of each other, and
        returns a dictionary from each process to its ``numbers``.

        If some process has ended its training, the schedule returns None, because then all processes may end their
        training.
        """
        membership, self.is_meeting = self.membership, True
        try:
            while True:
                epoch = self._known()
                self._tell(epoch, numbers)
                yield Until(lambda epoch=epoch: self._has_met(epoch), "a meeting of all remaining ranks after a death")
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
        """Return two communicators of the ranks in this group, for counted and for uncounted messages. The returned
        communicators replace `comm` and `uncounted_comm`, the communicators of all ranks, and use their traffic
        counters."""
        return self.communicator(self.comm), self.communicator(self.uncounted_comm)

    def close(self):
        """Generator (schedule) that cancels or completes all receives of this group. When the schedule has ended, the
        MPI library no longer writes messages into arrays of this group."""
        for backend in self._backends:
            yield from backend.close()
        self._backends.clear()

    def communicator(self, whole: Communicator) -> Communicator:
        """Return a communicator of the ranks in this group that replaces ``whole``, a communicator of all ranks."""
        ranks = [self.membership.joined[process] for process in self.processes]
        tag = TAGS * (1 + self.epoch - self.size)
        self._backends.append(GroupBackend(whole.backend.processes, self.membership, self.processes, tag))
        return Communicator(self._backends[-1], ranks, whole.traffic)

    def _tell(self, epoch: int, numbers: Sequence[float]):
        """Send a `KnownProcesses` message to all other processes that train."""
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
        """Receive the `KnownProcesses` messages of other processes, and record the joins and deaths of which the
        messages tell."""
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
    """A `grsgd.comm.backend.Backend` that carries the messages between the processes of one group, until a process dies
    or joins.

    ``Test()`` of a message to or from a dead process raises LostRank, and records the death in the membership.

    Parameters
    ----------
    whole
        A backend of all processes, by which this backend sends messages.

    processes
        The processes of the group, in the order of their numbers in the group.

    first_tag
        Tag with which ``whole`` sends the messages that have tag 0 in the group.
    """

    survives_deaths = False
    """The value is False, because the remaining ranks do not finish the present step after a death."""
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
        if source == ANY_RANK:
            return any(self._has_come(rank, tag) for rank in range(self.size))
        return self.whole.Iprobe(self.processes[source], self.first_tag + tag)

    def dup(self):
        raise NotImplementedError("a communicator of ranks that may die cannot be duplicated")

    def subset(self, ranks):
        raise NotImplementedError("a communicator of ranks that may die has no subsets")

    def Ibcast(self, array, root):
        raise NotImplementedError("the MPI library cannot broadcast among ranks that may die")

    def Iallreduce(self, array):
        raise NotImplementedError("the MPI library cannot all-reduce over ranks that may die")

    def free(self):
        """Do nothing, because other groups still use the backend of all processes."""

    def close(self):
        """Generator (schedule) that cancels all receives that are not complete, and waits until no receive is under way
        any more.

        The backend keeps the buffers of messages that were sent and that no rank will receive, because the MPI library
        may still read these buffers.
        """
        receiving = [request for request in self._receiving if not is_over(request)]
        for request in receiving:
            request.Cancel()
        yield Until(lambda: all(map(is_over, receiving)), "the end of messages that are not needed any more")
        UNRECEIVED.extend(request for request in self._sending if not is_over(request))

    def _has_come(self, source: int, tag: int) -> bool:
        """Return True if a message from rank ``source`` with ``tag`` has arrived. If the process of rank ``source`` has
        died, return False."""
        try:
            return self.Iprobe(source, tag)
        except RuntimeError as error:
            if not has_died(error):
                raise
            self.membership.note_death(self.processes[source])
            return False

    def _keep(self, kept: list, peer: int, request: Request) -> WithMember:
        if len(kept) > MANY:
            kept[:] = [request for request in kept if not is_over(request)]
        kept.append(WithMember(self.membership, self.processes[peer], request))
        return kept[-1]


MANY = 64
"""Number of messages in a list of `GroupBackend` above which the backend removes completed messages from the list."""
UNRECEIVED: list[WithMember] = []
"""Messages that had been sent but not received when `GroupBackend.close` was called. The buffers of these messages must
stay allocated, because the MPI library may still read them."""


def is_over(request: WithMember) -> bool:
    """Return True if the message of ``request`` is complete, or has failed because a process has died."""
    try:
        return request.Test()
    except RuntimeError as error:
        if not has_died(error):
            raise
        return True
