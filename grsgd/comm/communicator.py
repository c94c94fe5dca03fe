"""Messages between the ranks of a group. The bytes of the messages are counted, and error messages name the messages.

A schedule is a generator that yields each object it waits for.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from coding.partition import part
from grsgd.comm import tags
from grsgd.comm.backend import ANY_RANK, Backend, has_died
from grsgd.comm.traffic import Traffic


class LostRank(RuntimeError):
    """Error raised by a message to or from a rank whose process has died."""


class Message:
    """A message under way: a pollable whose ``str()`` describes the message, so that the error of a time-out can name
    it.

    ``subject`` names the purpose of the message; the sender or the receiver may set it.
    """

    __slots__ = ("request", "verb", "nbytes", "peer", "tag", "subject")

    def __init__(self, request, verb: str, nbytes: int, peer: int, tag: int):
        self.request, self.verb, self.nbytes, self.peer, self.tag = request, verb, nbytes, peer, tag
        self.subject = None

    def Test(self) -> bool:
        """Return whether the message is complete. Raises LostRank if the process of the other rank has died."""
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


def receive_if_come(comm, tag: int, size: int, dtype=np.uint8) -> np.ndarray | None:
    """Return a message of at most ``size`` elements that has arrived from any rank; None if no message has arrived.

    Messages of ranks whose processes have died are skipped: a probe finds such a message, but its receive may never
    complete.
    """
    if not comm.Iprobe(ANY_RANK, tag):
        return None
    for sender in range(comm.size):
        try:
            if sender in comm.lost or not comm.Iprobe(sender, tag):
                continue
            array = np.zeros(size, dtype)
            receiving = comm.Irecv(array, sender, tag)
            while not receiving.Test():  # this loop ends soon, because the probe has found the message
                pass
            return array
        except LostRank:
            continue
        except RuntimeError as error:
            if not has_died(error):
                raise
    return None


def until_over(messages: Iterable[Message]):
    """Schedule that waits for ``messages``. It waits for a message until the message is complete, or until the process
    of the message's sender or receiver has died."""
    for message in messages:
        try:
            yield message
        except LostRank:
            pass


class Communicator:
    """Messages between this rank and the other ranks of a group, carried by any `Backend`. A communicator counts bytes
    and names messages.

    Parameters
    ----------
    backend
        The object that carries the messages.
    members
        Number of each rank in the counters of ``traffic``. In a `subset` these are the ranks' numbers in the whole
        group.
    traffic
        The counters; a `subset` shares the counters of the whole group.
    """

    def __init__(self, backend: Backend, members: Sequence[int] | None = None, traffic: Traffic | None = None):
        self.backend, self.size = backend, backend.size
        self.members: Sequence[int] = range(self.size) if members is None else tuple(members)
        self.traffic = Traffic(self.size) if traffic is None else traffic
        self.shared: dict = {}
        """Memory that ranks of one host share (`grsgd.comm.allreduce.shared`); the key is a tag or a name."""
        self._spare: dict[tuple, list] = {}

    @property
    def rank(self) -> int:
        """Return this rank's number. A spare process that has taken over a rank (`grsgd.comm.elastic.membership`)
        returns the number of this rank."""
        return self.backend.rank

    @property
    def lost(self) -> tuple[int, ...]:
        """Return the ranks whose processes have died, as far as `Iprobe` has noticed, and which no other process has
        taken over."""
        return self.backend.lost

    @property
    def survives_deaths(self) -> bool:
        """Return whether the other ranks go on when a rank's process dies. If so, messages to and from the dead rank
        raise LostRank."""
        return self.backend.survives_deaths

    def Isend(self, array, dest: int, tag: int = tags.ARRAYS, header: int = 0) -> Message:
        """Send ``array``; the message is complete when ``array`` may be reused.

        ``header``: number of bytes in ``array`` that are bookkeeping and not payload.
        """
        nbytes = array.nbytes
        peer = self._count(nbytes, dest, header)
        return Message(self.backend.Isend(array, dest, tag), "send to", nbytes, peer, tag)

    def Issend(self, array, dest: int, tag: int = tags.ARRAYS, header: int = 0) -> Message:
        """Send like `Isend`, but the message is complete only when the receiver has begun to receive."""
        nbytes = array.nbytes
        peer = self._count(nbytes, dest, header)
        return Message(self.backend.Issend(array, dest, tag), "send to", nbytes, peer, tag)

    def Irecv(self, array, source: int, tag: int = tags.ARRAYS) -> Message:
        """Receive into ``array``, which may be longer than the message, from rank ``source`` or from `ANY_RANK`."""
        peer = ANY_RANK if source == ANY_RANK else self.members[source]
        return Message(self.backend.Irecv(array, source, tag), "receive from", array.nbytes, peer, tag)

    def Iallreduce(self, array) -> Message:
        """Sum ``array`` over all ranks, in place, with the backend's own all-reduce.

        The messages inside an MPI library are unknown here. So the traffic counts the bytes of a bandwidth-optimal
        all-reduce, 2(n-1)/n of the array on n ranks. They count as sent to the next rank.
        """
        begin, end = part(self.rank, self.size, array.size)
        if self.size > 1:
            nbytes = 2 * (array.size - (end - begin)) * array.itemsize
            self.traffic.count((self.members[(self.rank + 1) % self.size],), nbytes)
        return Message(self.backend.Iallreduce(array), "all-reduce with", array.nbytes, ANY_RANK, 0)

    def Ibcast(self, array, root: int = 0) -> Message:
        """Copy the array of rank ``root`` to all ranks of the group; all ranks must call this, in the same order.

        The broadcast counts as a multicast: its bytes count once in ``traffic.sent_once``.
        """
        request = self.backend.Ibcast(array, root)
        if self.rank == root:
            self.traffic.count([rank for rank in self.members if rank != self.members[root]], array.nbytes)
            return Message(request, "broadcast to", array.nbytes, ANY_RANK, 0)
        return Message(request, "broadcast from", array.nbytes, self.members[root], 0)

    def Iprobe(self, source: int, tag: int) -> bool:
        """Return whether a message from rank ``source`` (or `ANY_RANK`) with ``tag`` has arrived and waits to be
        received."""
        return self.backend.Iprobe(source, tag)

    def subset(self, ranks: Sequence[int]) -> "Communicator":
        """Return a communicator of ``ranks``. Messages of the two communicators never match each other. Both
        communicators have the same traffic counters.

        Only the given ranks call this method. A rank that makes several subsets makes them in the same order as all
        other ranks. Call `free` on the result when it is no longer used.
        """
        return type(self)(self.backend.subset(ranks), [self.members[rank] for rank in ranks], self.traffic)

    def free(self):
        """Free a communicator that `subset` has made. Collective; no message may be under way."""
        self.shared.clear()
        self.backend.free()

    def borrow(self, like, size: int) -> "Borrowed":
        """Return a scratch array of ``size`` elements, of the type and dtype of ``like``, for a ``with`` statement.

        After the ``with`` statement the array is kept for the next borrower. Without this reuse, new memory would cost
        a page fault per 4 KiB, which takes many times as long as using the memory.
        """
        return Borrowed(self._spare.setdefault((type(like), like.dtype, size), []), like, size)

    def _count(self, nbytes: int, dest: int, header: int) -> int:
        """Count ``nbytes`` bytes that are about to be sent; return the number under which the traffic counts the
        receiver."""
        peer = self.members[dest]
        self.traffic.count_one(peer, nbytes, header)
        return peer


class Borrowed:
    """A scratch array that is lent for the duration of a ``with`` statement.

    ``spare``: the arrays of the same type, dtype and size that are not lent at the moment.
    """

    __slots__ = ("spare", "like", "size", "array")

    def __init__(self, spare: list, like, size: int):
        self.spare, self.like, self.size = spare, like, size

    def __enter__(self):
        try:
            self.array = self.spare.pop()
        except IndexError:  # no test before `pop`: a background thread may borrow at the same time
            self.array = type(self.like)(self.size, dtype=self.like.dtype)
        return self.array

    def __exit__(self, *_):
        self.spare.append(self.array)
