"""Communicators, which send messages between the ranks of a group through any `Backend`. A communicator counts the
bytes that it sends, and describes messages in the texts of errors.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from coding.partition import part
from grsgd.comm import tags
from grsgd.comm.backend import ANY_RANK, Backend, has_died
from grsgd.comm.traffic import Traffic


class LostRank(RuntimeError):
    """Error raised if the process of another rank has died, for example by `Message.Test` of a message to or from the
    dead rank."""


class Message:
    """A message that is being sent or received: a pollable whose string describes the message in the error after too
    long a wait.

    ``subject``: object whose string describes the purpose of the message. The code that sends or receives the message
    may set the attribute ``subject``.
    """

    __slots__ = ("request", "verb", "nbytes", "peer", "tag", "subject")

    def __init__(self, request, verb: str, nbytes: int, peer: int, tag: int):
        self.request, self.verb, self.nbytes, self.peer, self.tag = request, verb, nbytes, peer, tag
        self.subject = None

    def Test(self) -> bool:
        """Return True if the message has been sent, or has been received. Raises LostRank if the process of the rank at
        the other end of the message has died."""
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
    """If a message with ``tag`` has arrived from any rank, receive the message, and return an array of ``size``
    elements that begins with the message's content. Return None if no message with ``tag`` has arrived. The message may
    have at most ``size`` elements.

    Messages from ranks whose processes have died are ignored, because the receive of such a message may never complete.
    """
    if not comm.Iprobe(ANY_RANK, tag):
        return None
    for sender in range(comm.size):
        try:
            if sender in comm.lost or not comm.Iprobe(sender, tag):
                continue
            array = np.zeros(size, dtype)
            receiving = comm.Irecv(array, sender, tag)
            while not receiving.Test():  # this loop soon ends, because the message has already arrived
                pass
            return array
        except LostRank:
            continue
        except RuntimeError as error:
            if not has_died(error):
                raise
    return None


def until_over(messages: Iterable[Message]):
    """Generator (schedule) that waits until each message in ``messages`` is complete, or has failed because the process
    of its sender or receiver has died."""
    for message in messages:
        try:
            yield message
        except LostRank:
            pass


class Communicator:
    """Object by which this rank sends and receives messages to and from the other ranks of a group, through any
    `Backend`. A communicator counts the bytes that it sends, and describes messages in the texts of errors.

    Parameters
    ----------
    backend
        The backend that sends and receives the messages.
    members
        Number of each rank in the counters of ``traffic``. For a communicator that `subset` has made, these
        are the ranks' numbers in the whole group.
    traffic
        Counters of sent bytes. A communicator that `subset` has made uses the counters of the whole group.
    """

    def __init__(self, backend: Backend, members: Sequence[int] | None = None, traffic: Traffic | None = None):
        self.backend, self.size = backend, backend.size
        self.members: Sequence[int] = range(self.size) if members is None else tuple(members)
        self.traffic = Traffic(self.size) if traffic is None else traffic
        self.shared: dict = {}
        """Memory that the ranks of one host share (`grsgd.comm.allreduce.shared`), by the tag or the name under which
        it was allocated."""
        self._spare: dict[tuple, list] = {}

    @property
    def rank(self) -> int:
        """Return the number in the group of the rank that this process holds. If this process was a spare and has taken
        over a rank (`grsgd.comm.elastic.membership`), return the number of that rank."""
        return self.backend.rank

    @property
    def lost(self) -> tuple[int, ...]:
        """Return the ranks whose processes are known to have died (because `Iprobe` has noticed it) and that no other
        process has taken over."""
        return self.backend.lost

    @property
    def survives_deaths(self) -> bool:
        """Return True if the other ranks continue the run after the process of a rank has died. If the value is True,
        messages to and from a dead rank raise LostRank."""
        return self.backend.survives_deaths

    def Isend(self, array, dest: int, tag: int = tags.ARRAYS, header: int = 0) -> Message:
        """Start to send ``array`` to rank ``dest``. The returned message is complete when the caller may change
        ``array``.

        ``header``: number of bytes of ``array`` that are header (sender, step and so on) and not payload.
        """
        nbytes = array.nbytes
        peer = self._count(nbytes, dest, header)
        return Message(self.backend.Isend(array, dest, tag), "send to", nbytes, peer, tag)

    def Issend(self, array, dest: int, tag: int = tags.ARRAYS, header: int = 0) -> Message:
        """Start to send ``array`` to rank ``dest``. The returned message is complete when rank ``dest`` has begun to
        receive it."""
        nbytes = array.nbytes
        peer = self._count(nbytes, dest, header)
        return Message(self.backend.Issend(array, dest, tag), "send to", nbytes, peer, tag)

    def Irecv(self, array, source: int, tag: int = tags.ARRAYS) -> Message:
        """Start to receive a message from rank ``source`` (or `ANY_RANK`) into ``array``, which may be longer than the
        message."""
        peer = ANY_RANK if source == ANY_RANK else self.members[source]
        return Message(self.backend.Irecv(array, source, tag), "receive from", array.nbytes, peer, tag)

    def Iallreduce(self, array) -> Message:
        """Start to sum ``array`` over all ranks, in place, by the backend's own all-reduce.

        A communicator does not know which messages an MPI library sends in its all-reduce. Therefore ``traffic`` counts
        the bytes of a bandwidth-optimal all-reduce, 2(n-1)/n of the array on n ranks, as if this rank had sent them to
        the next rank.
        """
        begin, end = part(self.rank, self.size, array.size)
        if self.size > 1:
            nbytes = 2 * (array.size - (end - begin)) * array.itemsize
            self.traffic.count((self.members[(self.rank + 1) % self.size],), nbytes)
        return Message(self.backend.Iallreduce(array), "all-reduce with", array.nbytes, ANY_RANK, 0)

    def Ibcast(self, array, root: int = 0) -> Message:
        """Start to copy ``array`` of rank ``root`` to ``array`` of all other ranks. All ranks must call the collectives
        of a communicator in the same order.

        The broadcast counts as a multicast: its bytes are counted only once in ``traffic.sent_once``, and not once per
        receiver.
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
        """Return a new communicator of the ranks ``ranks`` of this communicator, whose messages are separate from the
        messages of this communicator. A receive of the new communicator never gets a message of this communicator, and
        vice versa. This communicator and the new communicator use the same traffic counters.

        Only the ranks in ``ranks`` call `subset`. If a rank calls `subset` several times, it must make the
        communicators in the same order as all other ranks. The caller must call `free` of the new communicator when the
        communicator is no longer used.
        """
        return type(self)(self.backend.subset(ranks), [self.members[rank] for rank in ranks], self.traffic)

    def free(self):
        """Free this communicator, which `subset` has made. All ranks of the communicator must call this method, while
        no message is under way."""
        self.shared.clear()
        self.backend.free()

    def borrow(self, like, size: int) -> "Borrowed":
        """Return a context manager that lends a scratch array with ``size`` elements, of the type and dtype of
        ``like``, to a ``with`` statement.

        After the ``with`` statement, the communicator keeps the array for the next call of `borrow`. Without the reuse
        of arrays, new memory would cost one page fault per 4 KiB, which takes many times as long as a computation in
        this memory.
        """
        return Borrowed(self._spare.setdefault((type(like), like.dtype, size), []), like, size)

    def _count(self, nbytes: int, dest: int, header: int) -> int:
        """Count ``nbytes`` bytes as sent to rank ``dest`` of this communicator. Return the number that rank ``dest``
        has in the counters of ``traffic``."""
        peer = self.members[dest]
        self.traffic.count_one(peer, nbytes, header)
        return peer


class Borrowed:
    """Context manager that lends a scratch array for the duration of a ``with`` statement.

    ``spare``: list of arrays of the same type, dtype and size that are not lent at the moment.
    """

    __slots__ = ("spare", "like", "size", "array")

    def __init__(self, spare: list, like, size: int):
        self.spare, self.like, self.size = spare, like, size

    def __enter__(self):
        try:
            self.array = self.spare.pop()
        # catch the error instead of testing `spare` before, because another thread may borrow an array at the same time
        except IndexError:
            self.array = type(self.like)(self.size, dtype=self.like.dtype)
        return self.array

    def __exit__(self, *_):
        self.spare.append(self.array)
