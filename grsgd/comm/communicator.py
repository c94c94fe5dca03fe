"""Communicators, which send messages between the ranks of a group by any backend. A communicator counts the bytes of
messages, and describes messages in errors.

A schedule is a generator that yields each object it waits for.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from coding.partition import part
from grsgd.comm import tags
from grsgd.comm.backend import ANY_RANK, Backend, has_died
from grsgd.comm.traffic import Traffic


class LostRank(RuntimeError):
    """Error raised if the process of a rank has died, for example by `Message.Test` of a message to or from the
    rank."""


class Message:
    """A message under way: a pollable whose ``str()`` describes the message for the error message of a time-out.

    ``subject`` describes the purpose of the message. The code that sends or receives the message may set ``subject``.
    """

    __slots__ = ("request", "verb", "nbytes", "peer", "tag", "subject")

    def __init__(self, request, verb: str, nbytes: int, peer: int, tag: int):
        self.request, self.verb, self.nbytes, self.peer, self.tag = request, verb, nbytes, peer, tag
        self.subject = None

    def Test(self) -> bool:
        """Return whether this message is complete. Raises LostRank if the process of the message's sender or receiver
        has died."""
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
    """Receive a message with ``tag`` that has arrived from any rank, and return an array of ``size`` elements that
    begins with the message. Return None if no message has arrived. A message may have at most ``size`` elements.

    Messages of ranks whose processes have died are ignored, because the receive of such a message may never complete.
    """
    if not comm.Iprobe(ANY_RANK, tag):
        return None
    for sender in range(comm.size):
        try:
            if sender in comm.lost or not comm.Iprobe(sender, tag):
                continue
            array = np.zeros(size, dtype)
            receiving = comm.Irecv(array, sender, tag)
            while not receiving.Test():  # this loop ends soon, because the message has arrived
                pass
            return array
        except LostRank:
            continue
        except RuntimeError as error:
            if not has_died(error):
                raise
    return None


def until_over(messages: Iterable[Message]):
    """Schedule that waits until each of ``messages`` is complete, or has failed because the process of its sender or
    receiver has died."""
    for message in messages:
        try:
            yield message
        except LostRank:
            pass


class Communicator:
    """Sender and receiver of messages between this rank and the other ranks of a group, by any `Backend`. A
    communicator counts sent bytes, and describes messages in errors.

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
        """Memory that the ranks of one host share (`grsgd.comm.allreduce.shared`), by tag or name."""
        self._spare: dict[tuple, list] = {}

    @property
    def rank(self) -> int:
        """Return the number of this rank in the group. On a spare process that has taken a rank
        (`grsgd.comm.elastic.membership`), return the number of the taken rank."""
        return self.backend.rank

    @property
    def lost(self) -> tuple[int, ...]:
        """Return the ranks whose processes have died, as far as `Iprobe` has noticed the deaths, and that no other
        process has taken."""
        return self.backend.lost

    @property
    def survives_deaths(self) -> bool:
        """Return whether the other ranks go on after the process of a rank has died. If True, messages to and from the
        dead rank raise LostRank."""
        return self.backend.survives_deaths

    def Isend(self, array, dest: int, tag: int = tags.ARRAYS, header: int = 0) -> Message:
        """Start to send ``array`` to rank ``dest``. The message is complete when the caller may change ``array``.

        ``header``: number of bytes in ``array`` that are bookkeeping and not payload.
        """
        nbytes = array.nbytes
        peer = self._count(nbytes, dest, header)
        return Message(self.backend.Isend(array, dest, tag), "send to", nbytes, peer, tag)

    def Issend(self, array, dest: int, tag: int = tags.ARRAYS, header: int = 0) -> Message:
        """Start to send ``array`` to rank ``dest``. The message is complete when rank ``dest`` has begun to receive the
        message."""
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

        A communicator cannot know the messages inside an MPI library. So ``traffic`` counts the bytes of a
        bandwidth-optimal all-reduce, 2(n-1)/n of the array on n ranks, as sent to the next rank.
        """
        begin, end = part(self.rank, self.size, array.size)
        if self.size > 1:
            nbytes = 2 * (array.size - (end - begin)) * array.itemsize
            self.traffic.count((self.members[(self.rank + 1) % self.size],), nbytes)
        return Message(self.backend.Iallreduce(array), "all-reduce with", array.nbytes, ANY_RANK, 0)

    def Ibcast(self, array, root: int = 0) -> Message:
        """Start to copy ``array`` of rank ``root`` to ``array`` of all other ranks. All ranks must call the collectives
        of a communicator in the same order.

        A broadcast is counted as a multicast: the bytes of the broadcast are counted once in ``traffic.sent_once``.
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
        """Return a new communicator of the ranks ``ranks`` of this communicator. No receive of one communicator gets a
        message of the other communicator. Both communicators use the same traffic counters.

        Only the ranks ``ranks`` call this method. If a rank makes several subsets, the rank must make them in the same
        order as all other ranks. Call `free` of the new communicator when the communicator is no longer used.
        """
        return type(self)(self.backend.subset(ranks), [self.members[rank] for rank in ranks], self.traffic)

    def free(self):
        """Free this communicator, which `subset` has made. All ranks of the communicator must call this method, while
        no message is under way."""
        self.shared.clear()
        self.backend.free()

    def borrow(self, like, size: int) -> "Borrowed":
        """Return a context manager that lends a scratch array of ``size`` elements, of the type and dtype of ``like``.

        After the ``with`` statement, the communicator keeps the array for the next call of `borrow`. Without this
        reuse, new memory would cost a page fault per 4 KiB, which takes many times as long as using the memory.
        """
        return Borrowed(self._spare.setdefault((type(like), like.dtype, size), []), like, size)

    def _count(self, nbytes: int, dest: int, header: int) -> int:
        """Count ``nbytes`` bytes that are sent to rank ``dest``. Return the number of rank ``dest`` in the counters of
        ``traffic``."""
        peer = self.members[dest]
        self.traffic.count_one(peer, nbytes, header)
        return peer


class Borrowed:
    """Context manager that lends a scratch array for the duration of a ``with`` statement.

    ``spare``: list of the arrays of the wanted type, dtype and size that are not lent at the moment.
    """

    __slots__ = ("spare", "like", "size", "array")

    def __init__(self, spare: list, like, size: int):
        self.spare, self.like, self.size = spare, like, size

    def __enter__(self):
        try:
            self.array = self.spare.pop()
        except IndexError:  # caught, not tested before, because another thread may borrow at the same time
            self.array = type(self.like)(self.size, dtype=self.like.dtype)
        return self.array

    def __exit__(self, *_):
        self.spare.append(self.array)
