"""The processes that hold the ranks of a run in which processes may die and be replaced by others.

The first n processes of a job train; they hold the *ranks*. The other processes are *spares*, which wait. When a
process has died, the lowest living spare takes the lowest rank without a process, and tells all other processes. No
process decides for all processes, and no process waits for another process. Each process learns of deaths by itself,
and of a takeover by a message from the process that takes over.

A schedule is a generator that yields each object it waits for.
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
"""Number of seconds after which a process of a real job looks again for deaths and takeovers (a spare process takes a
rank)."""


class Death(NamedTuple):
    """The death of a rank's process, as one process has learnt of it.

    ``noticed``: time by ``clock()`` in seconds. ``replaced``: time when another process took the rank; None if no other
    process has taken it.
    """

    rank: int
    process: int
    noticed: float
    replaced: float | None = None

    def after(self, began: float) -> tuple:
        """Return the same death, with times in seconds since ``began``."""
        replaced = None if self.replaced is None else self.replaced - began
        return self.rank, self.process, self.noticed - began, replaced


class Membership:
    """One process's view of the processes that hold the ranks.

    Parameters
    ----------
    comm
        A communicator of all processes of the job, which carries nothing else.
    ranks
        Number of ranks; at first the first processes hold them.
    clock
        Function that returns the time in seconds.
    look_seconds
        Seconds between two looks for deaths and takeovers.
    """

    def __init__(
        self, comm: Communicator, ranks: int, clock: Callable[[], float], look_seconds: float = LOOK_SECONDS
    ):
        self.comm, self.size, self.clock, self.look_seconds = comm, ranks, clock, look_seconds
        self.holders: list[int | None] = list(range(ranks))
        """The process of each rank; None if this process has died and no other process has taken the rank."""
        self.spares = set(range(ranks, comm.size))
        self.joined: dict[int, int] = {rank: rank for rank in range(ranks)}
        """The rank of each process that has ever trained, as far as this process has heard."""
        self.finished: set[int] = set()
        """The processes that have ended their training, as far as this process has heard."""
        self.is_there = True
        """Whether this process may take a rank, if it is a spare."""
        self.dead: set[int] = set()
        self.deaths: list[Death] = []
        self.on_change: list[Callable[[int], None]] = []
        """Functions that are called with each rank whose process has changed or died."""
        self._sending: list = []
        self._noting = threading.RLock()
        """Lock that is held while a change is recorded: the trainer may learn of a death at the moment when a
        background schedule looks for deaths."""
        self._looked = -look_seconds

    @property
    def process(self) -> int:
        """Return this process's number."""
        return self.comm.rank

    @property
    def rank(self) -> int | None:
        """Return the rank that this process holds; None for a spare."""
        return self.holders.index(self.process) if self.process in self.holders else None

    @property
    def vacant(self) -> tuple[int, ...]:
        """Return the ranks that no process holds."""
        return tuple(rank for rank, holder in enumerate(self.holders) if holder is None)

    @property
    def living(self) -> list[int]:
        """Return all processes that live, spares included."""
        return [process for process in range(self.comm.size) if process not in self.dead]

    @property
    def training(self) -> dict[int, int]:
        """Return the rank of each process that lives and has a model."""
        joined = dict(self.joined)  # the copy is read, because another thread may add to `self.joined` meanwhile
        return {process: rank for process, rank in joined.items() if process not in self.dead}

    def attend(self):
        """Schedule, run in the background without end, that receives messages on deaths and takeovers."""
        yield Until(self._look_now_and_then, "deaths of other processes")

    def look(self):
        """Receive at once all messages on deaths and takeovers that have arrived."""
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
        """Look for deaths; return, on a spare, whether it is the spare to take a rank, and a rank has no process."""
        self.look()
        return bool(self.is_there and self.vacant and self.is_next)

    def take_over(self, rank: int | None = None) -> bool:
        """Take a rank, on a spare, and return whether that succeeded: ``rank``, or the lowest rank without a process,
        unless a lower spare lives."""
        if rank is None:
            if not self.is_wanted():
                return False
            rank = self.vacant[0]
        self._hold(rank, self.process)
        self._tell(self.living, tags.TAKEOVER)
        return True

    def stand_by(self):
        """Schedule, called on a spare, that waits until this process has taken a rank or all other processes have
        ended. Returns whether this process has taken a rank."""
        yield Until(self.is_called, "a rank without a process")
        return self.rank is not None

    def is_called(self) -> bool:
        """Return, on a spare, whether this process has taken a rank, now or before, or whether all other processes have
        ended."""
        return self.rank is not None or self.is_over or self.take_over()

    @property
    def is_next(self) -> bool:
        """Return, on a spare, whether this process takes the next rank that loses its process."""
        return self.process == min(self.spares, default=None)

    def begin(self):
        """Tell all processes that this process, which has taken a rank, trains from now on."""
        self.joined[self.process] = self.rank
        self._tell(self.living, tags.TRAINING)

    def finish(self, to_all: bool):
        """Tell all processes (or only the spares, if ``to_all`` is False) that this process has ended its training."""
        self._tell(self.living if to_all else self.spares, tags.FINISHED)

    @property
    def is_over(self) -> bool:
        """Return, on a spare, whether no process trains any more."""
        holders = {holder for holder in self.holders if holder is not None}
        return holders <= self.finished

    def _come(self, tag: int):
        """Yield (rank, process) of each message that has arrived."""
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
        """Record that ``process`` has taken ``rank``.

        Spares take ranks in ascending order. So if two processes have taken the same rank, the lower process has died.
        """
        holder = self.holders[rank]
        self.spares.discard(process)
        if process in self.dead or (holder is not None and holder > process):
            return
        now = self.clock()
        if holder is not None:  # this process has not yet learnt of the holder's death
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
    """A message that counts as complete also if the receiving process has died. ``content``: the sent array, which is
    kept as long as the message."""

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
    """A message to or from a rank that no process holds."""

    def __init__(self, rank: int):
        self.rank = rank

    def Test(self) -> bool:
        raise LostRank(f"rank {self.rank}: no process holds this rank")


class WithMember:
    """A message to or from the process that holds a rank. If the message fails, the death of this process is recorded
    in the membership."""

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
        """Cancel a receive; a receive that has begun to arrive goes on."""
        self.request.Cancel()


class FromMembers:
    """A receive from any rank that ignores messages of processes that have died.

    A message from a process that is not known to hold a rank waits until news of its takeover has arrived.

    ``post()`` begins the receive; once it is complete, its ``source`` is the sending process.
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
    """A `grsgd.comm.backend.Backend` for messages between ranks: each message is sent to the process that holds the
    rank.

    A message to or from a rank whose process has died raises LostRank when it is tested. Later messages to the rank go
    to the process that holds the rank at the time of sending.

    ``processes``: a backend of all processes that carries no messages but the messages between ranks.
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
