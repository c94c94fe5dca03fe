"""Membership: a record of which process holds (runs as) which rank, in a run in which a process may die and be replaced
by another process.

The first n processes of a job hold the n *ranks*: each of them trains as one rank. The other processes of the job are
*spares*, which wait until a process dies. When the process of a rank has died, the lowest living spare takes the lowest
rank without a process, and tells all other processes. No process makes decisions for all processes, and no process
waits for another process. Each process notices the deaths of other processes by itself, without a message. A spare that
has taken a rank sends a message to all other processes.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.backend import ANY_RANK, Backend, Request, has_died
from grsgd.comm.communicator import Communicator, LostRank, receive_if_come
from grsgd.comm.pollables import Until

LOOK_SECONDS = 2e-3
"""Number of seconds after which a process of a real (not simulated) job checks again which processes have died, and
which ranks spares have taken."""


class Death(NamedTuple):
    """Record that one process makes of the death of another process, which held a rank.

    ``noticed``: time in seconds (by ``clock()``) at which the recording process noticed the death. ``replaced``: time
    in seconds at which a spare took the rank of the dead process, or None if no spare has taken the rank.
    """

    rank: int
    process: int
    noticed: float
    replaced: float | None = None

    def after(self, began: float) -> tuple:
        """Return the tuple (rank, process, noticed, replaced) of this death, with times in seconds since ``began``."""
        replaced = None if self.replaced is None else self.replaced - began
        return self.rank, self.process, self.noticed - began, replaced


class Membership:
    """The processes that hold the ranks, as known to one process.

    Parameters
    ----------
    comm
        A communicator of all processes of the job, which carries only messages about processes.
    ranks
        Number of ranks. Process i holds rank i at first.
    clock
        Function that returns the time in seconds.
    look_seconds
        Seconds between two checks for deaths and messages.
    """

    def __init__(
        self, comm: Communicator, ranks: int, clock: Callable[[], float], look_seconds: float = LOOK_SECONDS
    ):
        self.comm, self.size, self.clock, self.look_seconds = comm, ranks, clock, look_seconds
        self.holders: list[int | None] = list(range(ranks))
        """The number of the process that holds each rank, or None if this process has died and no spare has taken the
        rank."""
        self.spares = set(range(ranks, comm.size))
        self.joined: dict[int, int] = {rank: rank for rank in range(ranks)}
        """The rank of each process that trains or has trained, as far as this process knows."""
        self.finished: set[int] = set()
        """The processes that have ended their training, as far as this process has learnt."""
        self.is_there = True
        """Whether this process, if it is a spare, may take a rank."""
        self.dead: set[int] = set()
        self.deaths: list[Death] = []
        self.on_change: list[Callable[[int], None]] = []
        """Functions that are called with the number of a rank when the process of this rank has died or been
        replaced."""
        self._sending: list = []
        self._noting = threading.RLock()
        """Lock that a thread holds while it records the death of a process or a new process of a rank. The lock is
        necessary because the trainer and a background schedule may notice a death at the same moment."""
        self._looked = -look_seconds

    @property
    def process(self) -> int:
        """Return the number of this process, from 0 to the number of processes of the job minus 1."""
        return self.comm.rank

    @property
    def rank(self) -> int | None:
        """Return the rank that this process holds, or None if this process is a spare."""
        return self.holders.index(self.process) if self.process in self.holders else None

    @property
    def vacant(self) -> tuple[int, ...]:
        """Return the ranks that no process holds."""
        return tuple(rank for rank, holder in enumerate(self.holders) if holder is None)

    @property
    def living(self) -> list[int]:
        """Return the numbers of all living processes of the job, including spares."""
        return [process for process in range(self.comm.size) if process not in self.dead]

    @property
    def training(self) -> dict[int, int]:
        """Return the rank of each living process that has a model, by the number of the process."""
        # copy the dictionary, because another thread may add to `self.joined` during the loop
        joined = dict(self.joined)
        return {process: rank for process, rank in joined.items() if process not in self.dead}

    def attend(self):
        """Generator (schedule), run in the background without end, that notices deaths and receives the messages of
        other processes."""
        yield Until(self._look_now_and_then, "deaths of other processes")

    def look(self):
        """Receive all messages that have arrived from other processes, and record deaths that are new to this
        process."""
        with self._noting:
            self._look()

    def _look(self):
        for rank, process in self._come(tags.TAKEOVER):
            self._hold(rank, process)
        for rank, process in self._come(tags.TRAINING):
            self.joined[process] = rank
        for _, process in self._come(tags.FINISHED):
            self.finished.add(process)
        for process in sorted(set(self.comm.lost) - self.dead):
            self.note_death(process)

    def note_death(self, process: int):
        """Record that ``process`` has died."""
        with self._noting:
            if process in self.dead:
                return
            rank = self.holders.index(process) if process in self.holders else None
            self._forget(process)
            if rank is not None:
                self.deaths.append(Death(rank, process, self.clock()))
                self._change(rank, None)

    def _forget(self, process: int):
        self.dead.add(process)
        self.spares.discard(process)

    def is_wanted(self) -> bool:
        """Record new deaths. Return True if this process is the spare that must take a rank now, because a rank has no
        process."""
        self.look()
        return bool(self.is_there and self.vacant and self.is_next)

    def take_over(self, rank: int | None = None) -> bool:
        """Let this spare take ``rank``, and tell all processes about it. Return True if the spare took a rank. If
        ``rank`` is None, the spare takes the lowest rank without a process, unless a spare with a lower number
        lives."""
        if rank is None:
            if not self.is_wanted():
                return False
            rank = self.vacant[0]
        self._hold(rank, self.process)
        self._tell(self.living, tags.TAKEOVER)
        return True

    def stand_by(self):
        """Generator (schedule), run by a spare, that waits until this spare has taken a rank or all training processes
        have ended. The schedule returns True if this spare has taken a rank."""
        yield Until(self.is_called, "a rank without a process")
        return self.rank is not None

    def is_called(self) -> bool:
        """If a rank has no process, let this spare take the rank. Return True if this spare has taken a rank, or if all
        training processes have ended."""
        return self.rank is not None or self.is_over or self.take_over()

    @property
    def is_next(self) -> bool:
        """Return True if this process is the spare that takes the next rank whose process has died."""
        return self.process == min(self.spares, default=None)

    def begin(self):
        """Tell all processes that this process, a former spare that has taken a rank, has begun to train."""
        self.joined[self.process] = self.rank
        self._tell(self.living, tags.TRAINING)

    def finish(self, to_all: bool):
        """Tell all processes, or only the spares if ``to_all`` is False, that this process has ended its training."""
        self._tell(self.living if to_all else self.spares, tags.FINISHED)

    @property
    def is_over(self) -> bool:
        """Return True if all processes that hold ranks have ended their training. Spares use this property."""
        holders = {holder for holder in self.holders if holder is not None}
        return holders <= self.finished

    def _come(self, tag: int):
        """Receive all messages with ``tag`` that have arrived, and yield the pair (rank, process) that each message
        contains."""
        while (message := receive_if_come(self.comm, tag, 2, np.int64)) is not None:
            yield tuple(int(number) for number in message)

    def _tell(self, processes: Iterable[int], tag: int):
        message = np.array([self.rank, self.process], np.int64)
        for process in set(processes) - {self.process}:
            self._sending.append(Tolerant(self.comm.Isend(message, process, tag), message))

    def _look_now_and_then(self) -> bool:
        now = self.clock()
        if now - self._looked >= self.look_seconds:
            self._looked = now
            self.look()
            self._sending = [sending for sending in self._sending if not sending.Test()]
        return False

    def _hold(self, rank: int, process: int):
        """Record that the former spare ``process`` has taken ``rank``.

        Spares take ranks in ascending order of their numbers as processes. If two processes have taken the same rank,
        the process with the lower number must therefore have died.
        """
        holder = self.holders[rank]
        self.spares.discard(process)
        if process in self.dead or (holder is not None and holder > process):
            return
        now = self.clock()
        if holder is not None:  # this process did not know that the rank's former process has died
            self._forget(holder)
            self.deaths.append(Death(rank, holder, now))
        for number, death in enumerate(self.deaths):
            if death.rank == rank and death.replaced is None:
                self.deaths[number] = death._replace(replaced=now)
        self._change(rank, process)

    def _change(self, rank: int, process: int | None):
        self.holders[rank] = process
        for tell in self.on_change:
            tell(rank)


class Tolerant:
    """A pollable for a sent message, whose ``Test()`` returns True when the message has been sent or the receiving
    process has died. ``content``: the array that was sent, which must stay allocated as long as the message is under
    way."""

    def __init__(self, message, content=None):
        self.message, self.content, self.is_over = message, content, False

    def Test(self) -> bool:
        if not self.is_over:
            try:
                self.is_over = self.message.Test()
            except LostRank:
                self.is_over = True
        return self.is_over

    def __str__(self):
        return str(self.message)


class Vacant:
    """A request of a message to or from a rank that has no process. ``Test()`` raises LostRank."""

    def __init__(self, rank: int):
        self.rank = rank

    def Test(self) -> bool:
        raise LostRank(f"rank {self.rank}: no process holds this rank")


class WithMember:
    """A request of a message to or from ``process``, which holds a rank. If the message fails because ``process`` has
    died, the request records the death in ``membership``."""

    def __init__(self, membership: Membership, process: int, request: Request):
        self.membership, self.process, self.request = membership, process, request

    def Test(self) -> bool:
        try:
            return self.request.Test()
        except RuntimeError as error:
            if has_died(error):
                self.membership.note_death(self.process)
            raise

    def Cancel(self):
        """Cancel the receive, unless the message has begun to arrive."""
        self.request.Cancel()


class FromMembers:
    """A request of a receive from any rank, which ignores messages of processes that have died.

    If the sending process is not known to hold a rank, the receive is complete only when the process has reported its
    rank.

    ``post()``: function that starts a receive and returns its request. When the receive is complete, the attribute
    ``source`` of this request is the number of the sending process.
    """

    def __init__(self, membership: Membership, post: Callable[[], Request]):
        self.membership, self.post = membership, post
        self.request = post()

    def Test(self) -> bool:
        while self.request.Test():
            if self.request.source not in self.membership.dead:
                return self.request.source in self.membership.holders
            self.request = self.post()
        return False


class MembersBackend:
    """A `grsgd.comm.backend.Backend` for messages between ranks whose processes may be replaced.

    If the process of a rank has died, ``Test()`` of a message to or from this rank raises LostRank. Each message is
    sent to the process that holds the receiving rank at the time of sending.

    ``processes``: a backend of all processes of the job, which carries only the messages between ranks.
    """

    survives_deaths = True
    shares_memory = False
    has_multicast = False
    hosts = None

    def __init__(self, processes: Backend, membership: Membership):
        self.processes, self.membership = processes, membership
        self.size = membership.size

    @property
    def rank(self) -> int | None:
        return self.membership.rank

    @property
    def lost(self) -> tuple[int, ...]:
        return self.membership.vacant

    def Isend(self, array, dest, tag):
        return self._with(dest, lambda process: self.processes.Isend(array, process, tag))

    def Issend(self, array, dest, tag):
        return self._with(dest, lambda process: self.processes.Issend(array, process, tag))

    def Irecv(self, array, source, tag):
        if source == ANY_RANK:
            return FromMembers(self.membership, lambda: self.processes.Irecv(array, ANY_RANK, tag))
        return self._with(source, lambda process: self.processes.Irecv(array, process, tag))

    def Iprobe(self, source, tag):
        if source == ANY_RANK:
            return self.processes.Iprobe(ANY_RANK, tag)
        process = self.membership.holders[source]
        return process is not None and self.processes.Iprobe(process, tag)

    def dup(self):
        return MembersBackend(self.processes.dup(), self.membership)

    def subset(self, ranks: Sequence[int]):
        raise NotImplementedError("a communicator of ranks whose processes may die has no subsets")

    def Ibcast(self, array, root):
        raise NotImplementedError("the MPI library cannot broadcast among ranks whose processes may die")

    def Iallreduce(self, array):
        raise NotImplementedError("the MPI library cannot all-reduce over ranks whose processes may die")

    def free(self):
        self.processes.free()

    def _with(self, rank: int, begin: Callable[[int], Request]) -> Request:
        process = self.membership.holders[rank]
        if process is None:
            return Vacant(rank)
        return WithMember(self.membership, process, begin(process))
