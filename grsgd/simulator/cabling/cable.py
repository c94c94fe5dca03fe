"""The class of a cable, and the base class of all simulated networks of cables."""

from itertools import pairwise
from typing import NamedTuple

Place = int | str
"""An end of a cable: the number of a rank, or the name of a host or a switch."""


class Cable(NamedTuple):
    """One direction of a cable. source, dest: names of the ranks, hosts or switches at which the cable begins and ends.
    bandwidth: in bytes/s. latency: in seconds."""

    source: str
    dest: str
    bandwidth: float
    latency: float


class Cabling:
    """A network of places (ranks, hosts and switches) that are joined by cables. All cables of the network have the
    same bandwidth and latency, unless a subclass overrides the method `cable`.

    ``bandwidth``: bandwidth of a cable in bytes/s. ``latency``: latency of a cable in seconds. ``places``: largest
    number of ranks that the network can join. The route between two ranks is computed when a message first needs the
    route, because most pairs of ranks never send to each other.
    """

    places: int

    def __init__(self, bandwidth: float, latency: float):
        self.bandwidth, self.latency = bandwidth, latency

    def way(self, source: int, dest: int) -> list[Place]:
        """Return the list of places (ranks, hosts and switches) that a message from rank ``source`` to rank ``dest``
        passes, including ``source`` and ``dest``.

        Raises ConfigError if no cables lead from ``source`` to ``dest``.
        """
        raise NotImplementedError

    def cable(self, source: Place, dest: Place) -> Cable:
        """Return the cable from ``source`` to ``dest``, which are neighbouring places (ranks, hosts or switches) on a
        route."""
        return Cable(name(source), name(dest), self.bandwidth, self.latency)

    def route(self, source: int, dest: int) -> list[Cable]:
        """Return the cables on the route from rank ``source`` to rank ``dest``, in the order in which a message passes
        the cables.

        The route from a rank to itself has no cables.
        """
        return [self.cable(*ends) for ends in pairwise(self.way(source, dest))] if source != dest else []


def name(place: Place) -> str:
    """Return the name of ``place``, the end of a cable; for example, rank number 3 has the name ``rank 3``."""
    return f"rank {place}" if isinstance(place, int) else place
