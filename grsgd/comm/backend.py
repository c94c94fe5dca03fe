"""Backends, which carry the messages of a `Communicator`: the interface `Backend` of all backends, and the backend that
sends NumPy arrays by MPI."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from grsgd.comm.watchdog import within
from grsgd.mpi_environment import fault_tolerant

ANY_RANK = -1
"""Value of the parameter ``source`` with which a receive takes a message from any rank."""
MAX_ELEMENTS = 2**31 - 1
"""The largest number of elements in one MPI message. It is the largest C int, because MPI libraries before version 4 of
the standard count elements with a C int."""
PROCESS_FAILURES = ("MPI_ERR_PROC_FAILED", "MPIX_ERR_PROC_FAILED", "MPI_ERR_REVOKED", "MPIX_ERR_REVOKED")
"""Names of the errors that fault-tolerant MPI libraries (ULFM) raise after a rank's process has died. An MPI error with
another name ends the whole job."""


class Request(Protocol):
    """A request, the handle of a message that is being sent or received."""

    def Test(self) -> bool:
        """Return whether the message of this request is complete."""


class Receive(Request, Protocol):
    """A request of a receive: a message under way to this rank."""

    def Cancel(self):
        """Cancel the receive, unless a message has begun to arrive. For a cancelled receive, ``Test()`` returns
        True."""


class Backend(Protocol):
    """Interface of a group of ranks that send each other non-blocking messages: the functions of MPI, without counting
    of bytes.

    Implementations are `MpiBackend`, `grsgd.comm.gpu.backend.GpuBackend` and
    `grsgd.simulator.backend.SimulatedBackend`. Arrays must be contiguous. The caller must not change the array of a
    message until ``Test()`` of the message's request returns True. Messages from one rank to another with one tag
    arrive in the order in which they were sent.
    """

    rank: int
    size: int
    lost: tuple[int, ...]
    """Ranks whose processes are known to have died, because a call of `Iprobe` has noticed their deaths."""
    survives_deaths: bool
    """Whether the other ranks continue the run after the process of a rank has died. If the value is False, the death
    of a process ends the run."""
    shares_memory: bool
    """Whether the ranks of one host can share memory by mapping one file."""
    has_multicast: bool | None
    """Whether a broadcast leaves the sender's host only once, for all receivers together. The value is None if the
    backend does not know whether a broadcast is sent once, so that a test with IP multicast must show it."""
    hosts: list | None
    """One value per rank that identifies the rank's host. The value is None if this backend does not know the hosts, so
    that the ranks must exchange the names of their hosts."""

    def Isend(self, array, dest: int, tag: int) -> Request:
        """Start to send ``array`` to rank ``dest``. The returned request is complete when the caller may change
        ``array``."""

    def Issend(self, array, dest: int, tag: int) -> Request:
        """Start to send ``array`` to rank ``dest``. The returned request is complete when rank ``dest`` has begun to
        receive the message."""

    def Irecv(self, array, source: int, tag: int) -> Receive:
        """Start to receive a message from rank ``source`` (or `ANY_RANK`) into ``array``, which may be longer than the
        message."""

    def Ibcast(self, array, root: int) -> Request:
        """Start to copy ``array`` of rank ``root`` to ``array`` of all other ranks. All ranks must call the collectives
        of a backend in the same order."""

    def Iallreduce(self, array) -> Request:
        """Start to sum ``array`` over all ranks, in place. All ranks must call the collectives of a backend in the same
        order."""

    def Iprobe(self, source: int, tag: int) -> bool:
        """Return whether a message from rank ``source`` (or `ANY_RANK`) with ``tag`` has arrived and waits to be
        received."""

    def dup(self) -> "Backend":
        """Return a new backend of all ranks of this backend, whose messages are separate from the messages of this
        backend. A receive of the new backend never gets a message of this backend, and vice versa. All ranks of this
        backend must call `dup`."""

    def subset(self, ranks: Sequence[int]) -> "Backend":
        """Return a new backend of the ranks ``ranks`` of this backend, whose messages are separate from the messages of
        this backend. A receive of the new backend never gets a message of this backend, and vice versa. Only the ranks
        in ``ranks`` call `subset`."""

    def free(self):
        """Free this backend, which `dup` or `subset` has made. All ranks of the backend must call this method, while no
        message is under way."""


class MpiBackend:
    """The `Backend` that sends NumPy arrays by MPI.

    Parameters
    ----------
    mpi
        An mpi4py intracommunicator. The backend uses this communicator itself, and not a copy.
    timeout
        Seconds after which the job ends if MPI has not finished making another communicator from ``mpi``.
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
        """Return a living rank from which a message with ``tag`` has arrived, or None if no message with ``tag`` has
        arrived. The search begins after the rank that the last call returned, so that every sender gets its turn."""
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
        """Acknowledge the deaths of processes to the MPI library, which then allows receives from any rank again. After
        the acknowledgement, a receive from a dead rank still fails."""
        self.mpi.Ack_failed(self.size)
        self.lost = died_in(self.mpi)

    def dup(self):
        with within(self.timeout, "making a communicator of all ranks"):
            return self.of(self.mpi.Dup())

    def subset(self, ranks):
        with within(self.timeout, f"making a communicator of ranks {', '.join(map(str, ranks))}"):
            return self.of(subset(self.mpi, ranks))

    def of(self, mpi) -> "MpiBackend":
        """Return a new `MpiBackend` for ``mpi``, another mpi4py communicator."""
        return MpiBackend(mpi, self.timeout)

    def free(self):
        self.mpi.Free()


class Failed:
    """A request of a message whose send or receive failed as soon as it was started. `Failed.Test` raises the error
    with which the send or receive failed."""

    def __init__(self, error: RuntimeError):
        self.error = error

    def Test(self) -> bool:
        raise self.error

    def Cancel(self):
        """Do nothing, because the message has failed already."""


def failed(error: RuntimeError) -> Failed:
    """If ``error`` says that a process has died, return a request whose ``Test()`` raises ``error``. If ``error`` says
    something else, raise ``error``."""
    if not has_died(error):
        raise error
    return Failed(error)


class FromAnyRank:
    """A request of a receive from any rank, for jobs that continue after the death of a process.

    The request receives a message from each rank in turn, if a message from the rank has arrived. The request starts
    the receive in the MPI library only when a message has arrived. If the receive were started before, MPI could match
    it with the announcement of a long message, and the sender might die before the content is sent. In Open MPI 5, a
    receive matched with a dead sender's message never completes and never reports the death.

    When the receive is complete, the attribute ``source`` is the rank that sent the message.
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
    """Return ``array`` itself if MPI can count its elements. If ``array`` has too many elements for MPI, return a view
    of the same bytes as elements of 8, 4 or 2 bytes.

    Raises ValueError if every view of ``array`` has more than `MAX_ELEMENTS` elements.
    """
    if array.size <= MAX_ELEMENTS:
        return array
    for dtype in ("int64", "int32", "int16"):
        elements, rest = divmod(array.nbytes, np.dtype(dtype).itemsize)
        if rest == 0 and elements <= MAX_ELEMENTS:
            return array.reshape(-1).view(dtype)
    raise ValueError(f"a message of {array.nbytes} bytes has more elements of at most 8 bytes than MPI can count")


def has_died(error: RuntimeError) -> bool:
    """Return whether ``error``, an exception of mpi4py, says that a process has died."""
    return any(name in str(error) for name in PROCESS_FAILURES)


def died_in(mpi) -> tuple[int, ...]:
    """Return the ranks of ``mpi`` whose processes are known to have died. The MPI library must be fault-tolerant."""
    everyone, dead = mpi.Get_group(), mpi.Get_failed()
    ranks = tuple(sorted(dead.Translate_ranks(None, everyone)))
    dead.Free()
    everyone.Free()
    return ranks


def subset(mpi, ranks: Sequence[int]):
    """Return an mpi4py communicator of the ranks ``ranks`` of ``mpi``. Only the ranks in ``ranks`` call this function,
    because the other ranks may have died."""
    everyone = mpi.Get_group()
    group = everyone.Incl(ranks)
    try:
        return mpi.Create_group(group)
    except RuntimeError as error:
        if not has_died(error):
            raise
        return mpi.Shrink()  # `Shrink` makes a communicator without the dead ranks
    finally:
        group.Free()
        everyone.Free()
