"""Exchange with neighbours."""

from collections.abc import Iterable


def neighbour_exchange(comm, x, receivers: Iterable[int], incoming: dict, tag: int = 0):
    """Send x to ``receivers`` and receive one array into ``incoming[source]`` from each of its keys.

    x may be read but not written until the schedule has ended.
    """
    receiving = [comm.Irecv(array, source, tag) for source, array in incoming.items()]
    yield receiving + [comm.Isend(x, receiver, tag) for receiver in receivers]
