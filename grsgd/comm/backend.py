"""Carriers of a `Communicator`'s messages: MPI, MPI with arrays in GPU memory, or the simulator."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from grsgd.comm.watchdog import within
from grsgd.mpi_environment import fault_tolerant

ANY_RANK = -1
"""The source of a receive that takes a message from any rank."""
MAX_ELEMENTS = 2**31 - 1
"""The largest value of a C int: MPI libraries before version 4 of the standard count elements with a C int."""
PROCESS_FAILURES = ("MPI_ERR_PROC_FAILED", "MPIX_ERR_PROC_FAILED", "MPI_ERR_REVOKED", "MPIX_ERR_REVOKED")
"""Names of the errors that fault-tolerant MPI libraries (ULFM) raise after a rank's process has died. Other errors end
the whole job."""


class Request(Protocol):
    """A message under way."""

    def Test(self) -> bool:
        """Return whether the message is complete."""


class Receive(Request, Protocol):
    """A message under way to this rank."""

    def Cancel(self):
        """Become complete without a message, if no message has begun to arrive."""


class Backend(Protocol):
    """Non-blocking messages between the ranks of one group: the functions of MPI, without counting of bytes.

    Implementations are `MpiBackend`, `grsgd.comm.gpu.backend.GpuBackend` and
    `grsgd.simulator.backend.SimulatedBackend`.
    Arrays are contiguous; a buffer belongs to its message until the request's ``Test()`` is true. Messages from one
    rank to another with one tag arrive in the order in which they were sent.
    """

    rank: int
    size: int
    lost: tuple[int, ...]
    """Ranks whose processes have died, as far as calls of `Iprobe` have noticed."""
    survives_deaths: bool
    """Whether the other ranks go on after the process of a rank has died. If not, its death ends the run."""
    shares_memory: bool
    """Whether ranks of one host can share memory by a file that all of them map."""
    has_multicast: bool | None
    """Whether a broadcast leaves its sender once for all receivers; None if only a trial of IP multicast can tell."""
    hosts: list | None
    """Per rank, a value that identifies its host; None if this backend does not know the hosts, so that ranks must
    exchange them."""

    def Isend(self, array, dest: int, tag: int) -> Request:
        """Send ``array``; the request is complete when ``array`` may be reused."""

    def Issend(self, array, dest: int, tag: int) -> Request:
        """Send like `Isend`, but the request is complete only when the receiver has begun to receive."""

    def Irecv(self, array, source: int, tag: int) -> Receive:
        """Receive into ``array``, which may be longer than the message, from rank ``source`` or from `ANY_RANK`."""

    def Ibcast(self, array, root: int) -> Request:
        """Copy the array of rank ``root`` to all ranks of the group; all ranks must call this, in the same order."""

    def Iallreduce(self, array) -> Request:
        """Sum ``array`` over all ranks, in place; all ranks must call this, in the same order."""

    def Iprobe(self, source: int, tag: int) -> bool:
        """Return whether a message from rank ``source`` (or `ANY_RANK`) with ``tag`` has arrived and waits to be
        received."""

    def dup(self) -> "Backend":
        """Return a backend of the same ranks whose messages do not meet the messages of this backend. Collective."""

    def subset(self, ranks: Sequence[int]) -> "Backend":
        """Return a backend of the given ranks whose messages do not meet the messages of this backend. Only the given
        ranks call this method."""

    def free(self):
        """Free a backend that `dup` or `subset` has made. Collective; no message may be under way."""


class MpiBackend:
    """Messages of NumPy arrays by MPI.

    Parameters
    ----------
    mpi
        An mpi4py intracommunicator, which is used and not copied (`dup` copies it).
    timeout
        Seconds that making another communicator from this one may take; after that the job ends.
    """

    survives_deaths = False
    shares_memory = True
    has_multicast = None
    hosts = None

    def __init__(self, mpi, timeout: float = 600.0):
        from mpi4py import MPI

        self.mpi, self.timeout = mpi, timeout
        self.rank: int = mpi.Get_rank()
        self.size: int = mpi.Get_size()
        self.lost: tuple[int, ...] = ()
        self.fault_tolerant = fault_tolerant()
        self._last_sender = 0
        self._any_source, self._in_place = MPI.ANY_SOURCE, MPI.IN_PLACE

    def Isend(self, array, dest, tag):
        try:
            return self.mpi.Isend(countable(array), dest, tag)
        except RuntimeError as error:
            return failed(error)

    def Issend(self, array, dest, tag):
        try:
            return self.mpi.Issend(countable(array), dest, tag)
        except RuntimeError as error:
            return failed(error)

    def Irecv(self, array, source, tag):
        if source == ANY_RANK and self.fault_tolerant:
            return FromAnyRank(self, countable(array), tag)
        source = self._any_source if source == ANY_RANK else source
        try:
            return self.mpi.Irecv(countable(array), source, tag)
        except RuntimeError as error:
            return failed(error)

    def Ibcast(self, array, root):
        return self.mpi.Ibcast(countable(array), root)

    def Iallreduce(self, array):
        return self.mpi.Iallreduce(self._in_place, array)

    def Iprobe(self, source, tag):
        try:
            return self.mpi.Iprobe(self._any_source if source == ANY_RANK else source, tag)
        except RuntimeError as error:
            if source != ANY_RANK or not has_died(error):
                raise
            self.note_failures()
            return False

    def next_sender(self, tag: int) -> int | None:
        """Return a living rank from which a message with ``tag`` has arrived; None if no message has arrived. Senders
        take turns."""
        for step in range(1, self.size + 1):
            rank = (self._last_sender + step) % self.size
            if rank in self.lost:
                continue
            try:
                has_come = self.mpi.Iprobe(rank, tag)
            except RuntimeError as error:
                if not has_died(error):
                    raise
                self.note_failures()
                continue
            if has_come:
                self._last_sender = rank
                return rank
        return None

    def note_failures(self):
        """Acknowledge the deaths of processes, so that receives from any rank work again. A receive from a dead rank
        still fails."""
        self.mpi.Ack_failed(self.size)
        self.lost = died_in(self.mpi)

    def dup(self):
        with within(self.timeout, "making a communicator of all ranks"):
            return self.of(self.mpi.Dup())

    def subset(self, ranks):
        with within(self.timeout, f"making a communicator of ranks {', '.join(map(str, ranks))}"):
            return self.of(subset(self.mpi, ranks))

    def of(self, mpi) -> "MpiBackend":
        """Return a backend of this kind for another mpi4py communicator."""
        return MpiBackend(mpi, self.timeout)

    def free(self):
        self.mpi.Free()


class Failed:
    """A message that failed when it was posted; ``Test()`` raises its error."""

    def __init__(self, error: RuntimeError):
        self.error = error

    def Test(self) -> bool:
        raise self.error

    def Cancel(self):
        """Do nothing, because the message has failed already."""


def failed(error: RuntimeError) -> Failed:
    """Return a request whose ``Test()`` raises ``error`` if a process has died; raise any other error at once."""
    if not has_died(error):
        raise error
    return Failed(error)


class FromAnyRank:
    """A receive from any rank while ranks may die. Ranks take turns: it receives from the next rank from which a
    message has arrived.

    The receive is posted only when a message has arrived. A posted receive may match the announcement of a long message
    whose sender then dies: Open MPI 5 keeps this receive for ever and never reports the death.

    ``source``: the sender of the message, once the receive is complete.
    """

    def __init__(self, backend: MpiBackend, array, tag: int):
        self.backend, self.array, self.tag = backend, array, tag
        self.source: int | None = None
        self._request, self._sender = None, 0

    def Test(self) -> bool:
        if self.source is not None:
            return True
        if self._request is None:
            sender = self.backend.next_sender(self.tag)
            if sender is None:
                return False
            self._request, self._sender = self.backend.Irecv(self.array, sender, self.tag), sender
        try:
            if not self._request.Test():
                return False
        except RuntimeError as error:
            if not has_died(error):
                raise
            self._request = None
            return False
        self.source = self._sender
        return True


def countable(array):
    """Return ``array``, viewed as elements of 8, 4 or 2 bytes if it has more elements than MPI can count.

    Raises ValueError if even the view has too many elements.
    """
    if array.size <= MAX_ELEMENTS:
        return array
    for dtype in ("int64", "int32", "int16"):
        elements, rest = divmod(array.nbytes, np.dtype(dtype).itemsize)
        if rest == 0 and elements <= MAX_ELEMENTS:
            return array.reshape(-1).view(dtype)
    raise ValueError(f"a message of {array.nbytes} bytes has more elements of at most 8 bytes than MPI can count")


def has_died(error: RuntimeError) -> bool:
    """Return whether an mpi4py exception says that a process has died."""
    return any(name in str(error) for name in PROCESS_FAILURES)


def died_in(mpi) -> tuple[int, ...]:
    """Return the ranks of ``mpi`` whose processes are known to have died; the MPI library must be fault-tolerant."""
    everyone, dead = mpi.Get_group(), mpi.Get_failed()
    ranks = tuple(sorted(dead.Translate_ranks(None, everyone)))
    dead.Free()
    everyone.Free()
    return ranks


def subset(mpi, ranks: Sequence[int]):
    """Return an mpi4py communicator of ``ranks``. Only these ranks call this function, because the other ranks may have
    stopped for good."""
    everyone = mpi.Get_group()
    group = everyone.Incl(ranks)
    try:
        return mpi.Create_group(group)
    except RuntimeError as error:
        if not has_died(error):
            raise
        return mpi.Shrink()  # MPI leaves out the dead ranks
    finally:
        group.Free()
        everyone.Free()
