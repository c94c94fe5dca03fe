"""The backend of a simulated communicator, which sends and receives the messages of one simulated rank."""

import itertools

from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.backend import ANY_RANK
from grsgd.comm.communicator import Communicator


class SimulatedBackend:
    """A `grsgd.comm.backend.Backend` that sends and receives messages through a `MessageFabric`, the simulated
    connection of all ranks.

    Parameters
    ----------
    fabric
        The `MessageFabric` of all ranks.
    group
        The name of this communicator's group. Messages of groups with different names never match.
    members
        The ranks of the group, numbered as in the fabric.
    rank
        The rank of this process in the group.
    """

    survives_deaths = False
    shares_memory = False

    def __init__(self, fabric, group: tuple, members: tuple[int, ...], rank: int):
        self.fabric, self.group, self.members, self.rank = fabric, group, members, rank
        self.size = len(members)
        self.fabric_rank = members[rank]
        self._broadcasts = itertools.count()
        self._children = itertools.count()
        self._allreduces = itertools.count()
        self._calculated = itertools.count()
        self._subsets: dict[tuple[int, ...], int] = {}
        self._lost: tuple[int, ...] = ()
        self._for_allreduce: Communicator | None = None

    @property
    def has_multicast(self):
        return self.fabric.network.has_multicast

    @property
    def hosts(self):
        """Number of the host on which each rank of the group runs, as a list. On every network except ``hosts:HxR`` (H
        hosts of R ranks each), each rank has a host of its own."""
        hosts = self.fabric.network.spec.hosts
        return [member // hosts.ranks if hosts else member for member in self.members]

    @property
    def lost(self):
        known = self.fabric.known_dead[self.fabric_rank]
        if len(known) != len(self._lost):  # `_lost` stores the tuple, because `lost` is read at every event
            self._lost = tuple(rank for rank, process in enumerate(self.members) if process in known)
        return self._lost

    def Isend(self, array, dest, tag):
        return self.fabric.send(self.group, array, self.fabric_rank, self.members[dest], tag, False)

    def Issend(self, array, dest, tag):
        return self.fabric.send(self.group, array, self.fabric_rank, self.members[dest], tag, True)

    def Irecv(self, array, source, tag):
        source = source if source == ANY_RANK else self.members[source]
        return self.fabric.receive(self.group, array, self.fabric_rank, source, tag)

    def Iprobe(self, source, tag):
        source = source if source == ANY_RANK else self.members[source]
        return self.fabric.probe(self.group, self.fabric_rank, source, tag)

    def Ibcast(self, array, root):
        number = next(self._broadcasts)
        return self.fabric.broadcast(self.group, self.members, array, self.fabric_rank, self.members[root], number)

    def Iallreduce(self, array):
        """Begin an all-reduce with the ring algorithm, whichever algorithm a real MPI library would choose."""
        if self._for_allreduce is None:
            self._for_allreduce = Communicator(self.dup())
        tag = next(self._allreduces) % 100  # all-reduces that are under way at the same time have different tags
        return self.fabric.drivers[self.fabric_rank].start(ring_allreduce(self._for_allreduce, array, tag))

    def calculate(self, schedule, comm: Communicator, x, options: dict):
        """Begin an all-reduce whose end time is calculated at once, without a simulation of each message. Return None
        if the end time cannot be calculated.

        The end time of an all-reduce cannot be calculated while this rank runs a schedule in the background.
        """
        allreduces = self.fabric.allreduces
        if allreduces is None or not self.fabric.drivers[self.fabric_rank].is_alone_in_foreground():
            return None
        return allreduces.begin((self.group, next(self._calculated)), schedule, comm, x, options)

    def dup(self):
        return SimulatedBackend(self.fabric, (*self.group, next(self._children)), self.members, self.rank)

    def subset(self, ranks):
        members = tuple(self.members[rank] for rank in ranks)
        number = self._subsets[members] = self._subsets.get(members, -1) + 1
        group = (*self.group, members, number)
        return SimulatedBackend(self.fabric, group, members, members.index(self.fabric_rank))

    def free(self):
        """Do nothing, because a simulated backend holds no resources."""
