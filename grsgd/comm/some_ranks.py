"""Messages between some of the ranks of a group, sent by the MPI communicator of the whole group."""

from collections.abc import Sequence

from grsgd.comm.backend import Backend


class SomeRanks:
    """A `grsgd.comm.backend.Backend` for messages between some of the ranks of a group.

    The backend of the whole group sends the messages, with the tags that the caller gives. Two objects of this class
    that use the same tag at the same time may have only one rank in common. The constructor sends no message and does
    not block, so that schedules (generators that must not block) may call it.

    ``whole``: the backend of the whole group, which sends the messages. ``ranks``: numbers of the chosen ranks in the
    whole group. In this backend, the rank ``ranks[i]`` has the number i. ``ranks`` includes this rank.
    """

    survives_deaths = False
    lost = ()

    def __init__(self, whole: Backend, ranks: Sequence[int]):
        self.whole, self.ranks = whole, tuple(ranks)
        self.size, self.rank = len(self.ranks), self.ranks.index(whole.rank)
        self.shares_memory = whole.shares_memory
        self.has_multicast = False  # False, because `Ibcast` raises an error
        self.hosts = whole.hosts and [whole.hosts[rank] for rank in self.ranks]

    def Isend(self, array, dest, tag):
        return self.whole.Isend(array, self.ranks[dest], tag)

    def Issend(self, array, dest, tag):
        return self.whole.Issend(array, self.ranks[dest], tag)

    def Irecv(self, array, source, tag):
        return self.whole.Irecv(array, self.ranks[source], tag)

    def Iprobe(self, source, tag):
        return self.whole.Iprobe(self.ranks[source], tag)

    def Ibcast(self, array, root):
        raise NotImplementedError("the MPI library cannot broadcast among some ranks of a communicator")

    def Iallreduce(self, array):
        raise NotImplementedError("the MPI library cannot all-reduce over some ranks of a communicator")

    def dup(self):
        raise NotImplementedError("an object of SomeRanks cannot be duplicated")

    def subset(self, ranks):
        raise NotImplementedError("an object of SomeRanks has no subsets")

    def free(self):
        """Do nothing, because the MPI communicator of the whole group is still in use."""
