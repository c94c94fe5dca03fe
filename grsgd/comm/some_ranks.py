"""Messages between some of the ranks of a group, without an MPI communicator of their own."""

from collections.abc import Sequence

from grsgd.comm.backend import Backend


class SomeRanks:
    """Messages between some ranks of a group: a `grsgd.comm.backend.Backend`.

    The messages travel in the whole group, with its tags. Two objects of this class that use one tag at the same time
    must not have two ranks in common. Making an object of this class sends no message, so a schedule (a generator that
    yields each object it waits for) may make one.

    ``ranks``: numbers of the ranks in the group ``whole``, in the order of their numbers here; this rank is among them.
    """

    survives_deaths = False
    lost = ()

    def __init__(self, whole: Backend, ranks: Sequence[int]):
        self.whole, self.ranks = whole, tuple(ranks)
        self.size, self.rank = len(self.ranks), self.ranks.index(whole.rank)
        self.shares_memory = whole.shares_memory
        self.has_multicast = False  # `Ibcast` is not available
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
        """Do nothing: the communicator of the whole group is still used."""
