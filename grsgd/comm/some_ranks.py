"""Messages between some of the ranks of a group, by the group's MPI communicator."""

from collections.abc import Sequence

from grsgd.comm.backend import Backend


class SomeRanks:
    """Messages between some ranks of a group: a `grsgd.comm.backend.Backend`.

    The messages are sent by the backend of the whole group, with the group's tags. Two objects of this class that use
    one tag at the same time must not have two ranks in common. The constructor sends no message and does not block, so
    a schedule (a generator that yields each object it waits for) may call the constructor.

    ``whole``: backend of the whole group. ``ranks``: numbers of the chosen ranks in the whole group. The rank
    ``ranks[i]`` has the number i in this object. ``ranks`` includes this rank.
    """

    survives_deaths = False
    lost = ()

    def __init__(self, whole: Backend, ranks: Sequence[int]):
        self.whole, self.ranks = whole, tuple(ranks)
        self.size, self.rank = len(self.ranks), self.ranks.index(whole.rank)
        self.shares_memory = whole.shares_memory
        self.has_multicast = False  # because `Ibcast` raises an error
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
        """Do nothing, because the communicator of the whole group is still in use."""
