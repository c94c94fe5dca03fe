"""One rank's end of a group of ranks: non-blocking buffer messages, counted as they leave."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager

import numpy as np

from grsgd.comm.traffic import Traffic
from grsgd.watchdog import within

ANY_RANK = -1
"""As a source: a message from whichever rank."""


MOST_ELEMENTS = 2**31 - 1
"""What a C int can count, and so MPI libraries before version 4 of the standard."""
PROCESS_FAILURES = ("MPI_ERR_PROC_FAILED", "MPIX_ERR_PROC_FAILED")
"""What fault-tolerant MPI libraries (ULFM) call it when a rank's process has died; others end the whole job."""


class LostRank(RuntimeError):
    """The process of the rank that a message goes to or comes from has died."""


class Message:
    """A message under way: a pollable that knows what it is, so that a time-out can name it.

    ``subject``: what the message is about, if whoever sent it says so.
    """

    __slots__ = ("request", "verb", "nbytes", "peer", "tag", "subject")

    def __init__(self, request, verb, nbytes, peer, tag):
        self.request, self.verb, self.nbytes, self.peer, self.tag = request, verb, nbytes, peer, tag
        self.subject = None

    def Test(self) -> bool:
        """Whether it is complete; raises LostRank."""
        try:
            return self.request.Test()
        except RuntimeError as error:
            if has_died(error):
                raise LostRank(f"{self}: that rank's process has died") from None
            raise

    def __str__(self):
        peer = "any rank" if self.peer == ANY_RANK else f"rank {self.peer}"
        subject = f"{self.subject}: " if self.subject is not None else ""
        return f"{subject}{self.verb} {peer} ({self.nbytes} bytes, tag {self.tag})"


class Communicator:
    """Messages between the ranks of ``mpi``, an mpi4py intracommunicator, which this object does not free.

    Arrays are NumPy or CuPy and contiguous. A buffer belongs to its message until the message's ``Test()`` is true.
    Messages from one rank to another with one tag arrive in the order in which they were sent.

    ``device_end(mpi)`` makes what carries arrays in GPU memory (`grsgd.transfer`); without it there must be none.
    """

    timeout = 600.0
    """Seconds that making another communicator out of this one may take; then the job ends."""
    lost: tuple[int, ...] = ()
    """Ranks whose processes have died, as far as `Iprobe` has noticed."""

    def __init__(self, mpi, device_end: Callable | None = None):
        from mpi4py import MPI

        self._open(mpi, MPI.ANY_SOURCE, MPI.IN_PLACE, device_end)

    def _open(self, mpi, any_source, in_place, device_end=None):
        self.mpi = mpi
        self._make_device_end = device_end
        self._device_end = device_end(mpi) if device_end is not None else None
        self.rank: int = mpi.Get_rank()
        self.size: int = mpi.Get_size()
        self.members: tuple[int, ...] = tuple(range(self.size))
        """The ranks as they are called in the traffic: those of the communicator of which this is a `subset`."""
        self.traffic = Traffic(self.size)
        self._any_source = any_source
        self._in_place = in_place
        self._spare: dict[tuple, list] = {}

    def Isend(self, array, dest: int, tag: int = 0, header: int = 0) -> Message:
        """Send; complete when ``array`` may be reused. ``header`` bytes of it are bookkeeping, not payload."""
        self.traffic.count((self.members[dest],), array.nbytes, header)
        return Message(self._post("Isend", array, dest, tag), "send to", array.nbytes, self.members[dest], tag)

    def Issend(self, array, dest: int, tag: int = 0, header: int = 0) -> Message:
        """Like `Isend`, but complete only when the receiver has begun to receive."""
        self.traffic.count((self.members[dest],), array.nbytes, header)
        return Message(self._post("Issend", array, dest, tag), "send to", array.nbytes, self.members[dest], tag)

    def Irecv(self, array, source: int, tag: int = 0) -> Message:
        """Receive into ``array``, which may be longer than the message, from ``source`` or `ANY_RANK`."""
        mpi_source, peer = (self._any_source, ANY_RANK) if source == ANY_RANK else (source, self.members[source])
        return Message(self._post("Irecv", array, mpi_source, tag), "receive from", array.nbytes, peer, tag)

    def Iallreduce(self, array) -> Message:
        """The MPI library's own all-reduce (sum) of ``array``, in place.

        What the library sends cannot be seen from here. It is counted as what a bandwidth-optimal all-reduce sends,
        2(n-1)/n of the array, to the next rank.
        """
        own = array.size * (self.rank + 1) // self.size - array.size * self.rank // self.size
        if self.size > 1:
            self.traffic.count((self.members[(self.rank + 1) % self.size],), 2 * (array.size - own) * array.itemsize)
        request = self._end(array).Iallreduce(self._in_place, array)
        return Message(request, "all-reduce with", array.nbytes, ANY_RANK, 0)

    def Ibcast(self, array, root: int = 0) -> Message:
        """Copy ``root``'s array to all ranks of the group; all must call this, in the same order. A multicast, which
        counts once in ``traffic.sent_once``."""
        request = self._post("Ibcast", array, root)
        if self.rank == root:
            self.traffic.count([rank for rank in self.members if rank != self.members[root]], array.nbytes)
            return Message(request, "broadcast to", array.nbytes, ANY_RANK, 0)
        return Message(request, "broadcast from", array.nbytes, self.members[root], 0)

    def Iprobe(self, source: int, tag: int) -> bool:
        """Whether a message from ``source`` (or `ANY_RANK`) with ``tag`` waits to be received."""
        try:
            return self.mpi.Iprobe(self._any_source if source == ANY_RANK else source, tag)
        except RuntimeError as error:
            if source != ANY_RANK or not has_died(error):
                raise
            self.mpi.Ack_failed(self.size)  # whoever waits for that rank learns of it there
            self.lost = died_in(self.mpi)
            return False

    def duplicate(self) -> "Communicator":
        """The same ranks with messages and counters of their own; collective."""
        with within(self.timeout, "making a communicator of all ranks"):
            return type(self)(self.mpi.Dup(), self._make_device_end)

    def subset(self, ranks: Sequence[int]) -> "Communicator":
        """The given ranks with messages of their own, counted here. Only they call this; if several subsets are made,
        all ranks make theirs in one order. To be freed by `free`."""
        part = type(self)(self._create_group(ranks), self._make_device_end)
        part.members, part.traffic = tuple(self.members[rank] for rank in ranks), self.traffic
        part.timeout = self.timeout
        return part

    def _post(self, verb: str, array, *arguments):
        end = self._end(array)
        return getattr(end, verb)(countable(array) if end is self.mpi else array, *arguments)

    def _end(self, array):
        """What carries an array: MPI itself if it lies in host memory."""
        return self.mpi if self._device_end is None or type(array) is np.ndarray else self._device_end

    def _create_group(self, ranks):
        with within(self.timeout, f"making a communicator of ranks {', '.join(map(str, ranks))}"):
            return subset(self.mpi, ranks)

    def free(self):
        """Free what `subset` or `duplicate` made; collective, when no message is under way."""
        self.mpi.Free()

    @contextmanager
    def borrow(self, like, size: int):
        """A scratch array of ``size`` elements of ``like``'s kind, kept for the next borrower.

        Fresh memory costs a page fault every 4 KiB, many times the price of using it.
        """
        spare = self._spare.setdefault((type(like), like.dtype, size), [])
        try:
            array = spare.pop()
        except IndexError:  # not asked for before: a background thread may borrow at the same time
            array = type(like)(size, dtype=like.dtype)
        try:
            yield array
        finally:
            spare.append(array)


def countable(array):
    """``array``, in words of 8, 4 or 2 bytes if it has more elements than MPI can count. Raises ValueError."""
    if array.size <= MOST_ELEMENTS:
        return array
    for word in ("int64", "int32", "int16"):
        elements, rest = divmod(array.nbytes, np.dtype(word).itemsize)
        if rest == 0 and elements <= MOST_ELEMENTS:
            return array.reshape(-1).view(word)
    raise ValueError(f"a message of {array.nbytes} bytes: in words of at most 8 bytes more than MPI can count")


def has_died(error: RuntimeError) -> bool:
    """Whether an mpi4py exception says that a process has died."""
    return any(name in str(error) for name in PROCESS_FAILURES)


def died_in(mpi) -> tuple[int, ...]:
    """The ranks of ``mpi`` whose processes are known to have died; of a fault-tolerant MPI library."""
    everybody, dead = mpi.Get_group(), mpi.Get_failed()
    ranks = tuple(sorted(dead.Translate_ranks(None, everybody)))
    dead.Free()
    everybody.Free()
    return ranks


def subset(mpi, ranks: list[int]):
    """A communicator of the given ranks, which alone must call this; the others may have stopped for good."""
    everybody = mpi.Get_group()
    group = everybody.Incl(ranks)
    try:
        return mpi.Create_group(group)
    except RuntimeError as error:
        if not has_died(error):
            raise
        return mpi.Shrink()  # in which those that have died are left out by themselves
    finally:
        group.Free()
        everybody.Free()
