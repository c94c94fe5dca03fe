"""All-reduce in two stages: within hosts, and then between hosts. In the first stage, the ranks of each host add up
their arrays in memory that they share. In the second stage, ranks of different hosts add up the sums of their hosts by
messages.

An owner is a rank that adds up one part of the array. Every host has as many owners as there are ranks on the host with
the fewest ranks. Owner j of a host adds up part j of the arrays of the host's ranks. After owner j of each host has
added up part j within its host, the owners j of all hosts add up their sums of part j by messages. Each owner writes
the sum of its part to memory that all ranks of its host read. The links between hosts therefore carry as many bytes as
if each host had one rank, and all owners send at the same time.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

import numpy as np

from grsgd.comm.allreduce.allgather import ring_allgather
from grsgd.comm.allreduce.shared import VECTORS, check_host_memory, count, parts_allreduce
from grsgd.comm.allreduce.shared_sums import Buffers
from grsgd.comm.communicator import Communicator
from grsgd.comm.shared_memory import NoSharedMemory, allocate, host, text_array, text_of, uncounted
from grsgd.comm.some_ranks import SomeRanks

PIECE_BYTES = 4 * 1024 * 1024
"""Number of bytes of each piece into which an array is cut for the all-reduce in two stages. Each piece of an array is
summed within the hosts, and then between the hosts, before the next piece is summed."""
HOSTS = "hosts"
"""Key of the `Hosts` in a communicator's dictionary ``shared``."""


class Hosts(NamedTuple):
    """The hosts of a communicator's ranks, as seen by one rank.

    ``local``: communicator of the ranks on this rank's host.
    ``across``: communicator of this rank and of the owners of the same part on all other hosts, or None if this rank is
    no owner.
    ``count``: number of hosts.
    ``owners``: number of owners per host, which each sum one part of the array.
    """

    local: Communicator
    across: Communicator | None
    count: int
    owners: int


def hosts_of(comm: Communicator, tag: int):
    """Generator (schedule), run on all ranks at once, that returns the `Hosts` of ``comm``. If the backend does not
    know the hosts of the ranks, the ranks exchange the names of their hosts in the first call for ``comm``. The
    messages with the hosts' names are not counted as traffic."""
    if HOSTS in comm.shared:
        return comm.shared[HOSTS]
    hosts = comm.backend.hosts
    if hosts is None:
        names = [np.zeros(32, np.uint8) for _ in range(comm.size)]
        names[comm.rank][:] = np.frombuffer(hashlib.sha256(host().encode()).digest(), np.uint8)
        yield from ring_allgather(uncounted(comm), names, tag)
        hosts = [name.tobytes() for name in names]
    by_host = defaultdict(list)
    for rank, name in enumerate(hosts):
        by_host[name].append(rank)
    mine, owners = by_host[hosts[comm.rank]], min(map(len, by_host.values()))
    index = mine.index(comm.rank)
    across = some(comm, [ranks[index] for ranks in by_host.values()]) if index < owners else None
    return comm.shared.setdefault(HOSTS, Hosts(some(comm, mine), across, len(by_host), owners))


def some(comm: Communicator, ranks: list[int]) -> Communicator:
    """Return a communicator of the ranks ``ranks`` of ``comm``. The messages of the new communicator are sent by the
    backend of ``comm``, and counted in the traffic of ``comm``."""
    return Communicator(SomeRanks(comm.backend, ranks), [comm.members[rank] for rank in ranks], comm.traffic)


def allreduce_by_hosts(comm: Communicator, x, tag: int, scale: float, across: Callable[..., Generator]):
    """Generator (schedule) that sets x to ``scale`` times the sum of x over all ranks, first within each host and then
    between hosts.

    ``across(comm, part, tag, scale)``: a schedule that sets ``part`` to ``scale`` times the sum of ``part`` over the
    owners of the part, one owner per host. All owners of a part must compute sums with the same bits.

    Raises NoSharedMemory on all ranks if the ranks of some host cannot share memory.
    """
    if comm.size == 1 or x.size == 0:
        return
    hosts = yield from hosts_of(comm, tag)
    local, beyond = hosts.local, None
    if hosts.count > 1:
        beyond = partial(across, hosts.across, tag=tag, scale=scale)
        scale = 1.0
    if not comm.backend.shares_memory:
        if local.size > 1:
            yield from parts_allreduce(local, x, tag, scale, hosts.owners, beyond if hosts.across else None)
        else:
            yield from beyond(x)
        return
    check_host_memory(x)
    buffers = yield from buffers_of(comm, hosts, tag)
    if buffers is not None:
        count(local, x, hosts.owners)
        yield from buffers.sum_long(x, scale, local.shared.get(VECTORS, ()), beyond)
        return
    size = PIECE_BYTES // x.itemsize  # use the same size of pieces as hosts with several ranks
    for begin in range(0, x.size, size):
        yield from beyond(x[begin : begin + size])


def buffers_of(comm: Communicator, hosts: Hosts, tag: int):
    """Generator (schedule), run on all ranks at once, that returns the `Buffers` of this rank's host, or None if the
    host has one rank."""
    if (HOSTS, tag) in comm.shared:
        return comm.shared[HOSTS, tag]
    buffers, problems = None, [text_array("") for _ in range(comm.size)]
    if hosts.local.size > 1:
        try:
            memory = yield from allocate(hosts.local, 2 * PIECE_BYTES, tag)
            buffers = Buffers(hosts.local, memory, PIECE_BYTES, hosts.owners)
        except NoSharedMemory as error:
            problems[comm.rank] = text_array(error.why)
    yield from ring_allgather(uncounted(comm), problems, tag)
    if why := next(filter(None, map(text_of, problems)), None):
        raise NoSharedMemory(why)
    return comm.shared.setdefault((HOSTS, tag), buffers)
