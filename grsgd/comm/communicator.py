"""Messages between the ranks of a group, named, and counted as they leave."""

from collections.abc import Iterable, Sequence

import numpy as np

from coding.partition import part
from grsgd.comm import tags
from grsgd.comm.backend import ANY_RANK, Backend, has_died
from grsgd.comm.traffic import Traffic


class LostRank(RuntimeError):
    """The process of the rank that a message goes to or comes from has died."""


class Message:
    """A message under way: a pollable that knows what it is, so that a time-out can name it.

    ``subject`` says what the message is about, where the sender or receiver sets it.
    """

    __slots__ = ("request", "verb", "nbytes", "peer", "tag", "subject")

    def __init__(self, request, verb: str, nbytes: int, peer: int, tag: int):
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


def receive_if_come(comm, tag: int, size: int, dtype=np.uint8) -> np.ndarray | None:
    """Return a message of any rank, of at most ``size`` elements, if one has come; else None.

    What a rank has sent whose process has died since is passed over: it may never be received, though probes find it.
    """
    if not comm.Iprobe(ANY_RANK, tag):
        return None
    for sender in range(comm.size):
        try:
            if sender in comm.lost or not comm.Iprobe(sender, tag):
                continue
            array = np.zeros(size, dtype)
            receiving = comm.Irecv(array, sender, tag)
            while not receiving.Test():  # it has come already: the probe found it
                pass
            return array
        except LostRank:
            continue
        except RuntimeError as error:
            if not has_died(error):
                raise
    return None


def until_over(messages: Iterable[Message]):
    """Schedule: wait until all of these are complete; one to or from a rank whose process has died is over, too."""
    for message in messages:
        try:
            yield message
        except LostRank:
            pass


class Communicator:
    """Messages between this rank and the others of a group, by any `Backend`; counts bytes and names messages.

    Parameters
    ----------
    backend
        What carries the messages.
    members, traffic
        Of a `subset`: its ranks as they are called in the traffic, and the counters of the whole group.
    """

    def __init__(self, backend: Backend, members: Sequence[int] | None = None, traffic: Traffic | None = None):
        self.backend, self.size = backend, backend.size
        self.members: Sequence[int] = range(self.size) if members is None else tuple(members)
        self.traffic = Traffic(self.size) if traffic is None else traffic
        self.shared: dict = {}
        """Memory that ranks of one host share (`grsgd.comm.allreduce.shared`), by what for."""
        self._spare: dict[tuple, list] = {}

    @property
    def rank(self) -> int:
        """This rank's number; of a spare that has taken a rank since, that one (`grsgd.comm.elastic.membership`)."""
        return self.backend.rank

    @property
    def lost(self) -> tuple[int, ...]:
        """Ranks whose processes have died, as far as `Iprobe` has noticed, and which no other process holds."""
        return self.backend.lost

    @property
    def survives_deaths(self) -> bool:
        """Whether the others go on when the process of a rank dies, whose messages raise LostRank."""
        return self.backend.survives_deaths

    def Isend(self, array, dest: int, tag: int = tags.ARRAYS, header: int = 0) -> Message:
        """Send; complete when ``array`` may be reused. ``header`` bytes of it are bookkeeping, not payload."""
        nbytes = array.nbytes
        peer = self._count(nbytes, dest, header)
        return Message(self.backend.Isend(array, dest, tag), "send to", nbytes, peer, tag)

    def Issend(self, array, dest: int, tag: int = tags.ARRAYS, header: int = 0) -> Message:
        """Like `Isend`, but complete only when the receiver has begun to receive."""
        nbytes = array.nbytes
        peer = self._count(nbytes, dest, header)
        return Message(self.backend.Issend(array, dest, tag), "send to", nbytes, peer, tag)

    def Irecv(self, array, source: int, tag: int = tags.ARRAYS) -> Message:
        """Receive into ``array``, which may be longer than the message, from ``source`` or `ANY_RANK`."""
        peer = ANY_RANK if source == ANY_RANK else self.members[source]
        return Message(self.backend.Irecv(array, source, tag), "receive from", array.nbytes, peer, tag)

    def Iallreduce(self, array) -> Message:
        """The backend's own all-reduce (sum) of ``array``, in place.

        What an MPI library sends cannot be seen from here. It is counted as what a bandwidth-optimal all-reduce sends,
        2(n-1)/n of the array, to the next rank.
        """
        begin, end = part(self.rank, self.size, array.size)
        if self.size > 1:
            nbytes = 2 * (array.size - (end - begin)) * array.itemsize
            self.traffic.count((self.members[(self.rank + 1) % self.size],), nbytes)
        return Message(self.backend.Iallreduce(array), "all-reduce with", array.nbytes, ANY_RANK, 0)

    def Ibcast(self, array, root: int = 0) -> Message:
        """Copy ``root``'s array to all ranks of the group; all must call this, in the same order. A multicast, which
        counts once in ``traffic.sent_once``."""
        request = self.backend.Ibcast(array, root)
        if self.rank == root:
            self.traffic.count([rank for rank in self.members if rank != self.members[root]], array.nbytes)
            return Message(request, "broadcast to", array.nbytes, ANY_RANK, 0)
        return Message(request, "broadcast from", array.nbytes, self.members[root], 0)

    def Iprobe(self, source: int, tag: int) -> bool:
        """Whether a message from ``source`` (or `ANY_RANK`) with ``tag`` waits to be received."""
        return self.backend.Iprobe(source, tag)

    def subset(self, ranks: Sequence[int]) -> "Communicator":
        """The given ranks with messages of their own, counted here. Only they call this; if several subsets are made,
        all ranks make theirs in one order. To be freed by `free`."""
        return type(self)(self.backend.subset(ranks), [self.members[rank] for rank in ranks], self.traffic)

    def free(self):
        """Free what `subset` has made; collective, when no message is under way."""
        self.shared.clear()
        self.backend.free()

    def borrow(self, like, size: int) -> "Borrowed":
        """A scratch array of ``size`` elements of ``like``'s kind, in a ``with`` statement; kept for the next borrower.

        Fresh memory costs a page fault every 4 KiB, many times the price of using it.
        """
        return Borrowed(self._spare.setdefault((type(like), like.dtype, size), []), like, size)

    def _count(self, nbytes: int, dest: int, header: int) -> int:
        """Count what is about to leave; returns the receiver as it is called in the traffic."""
        peer = self.members[dest]
        self.traffic.count_one(peer, nbytes, header)
        return peer


class Borrowed:
    """A scratch array that is lent as long as a ``with`` statement lasts; ``spare``: those of its kind that are not."""

    __slots__ = ("spare", "like", "size", "array")

    def __init__(self, spare: list, like, size: int):
        self.spare, self.like, self.size = spare, like, size

    def __enter__(self):
        try:
            self.array = self.spare.pop()
        except IndexError:  # not asked for before: a background thread may borrow at the same time
            self.array = type(self.like)(self.size, dtype=self.like.dtype)
        return self.array

    def __exit__(self, *_):
        self.spare.append(self.array)
