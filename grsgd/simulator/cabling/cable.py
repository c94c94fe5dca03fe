"""A cable, and the base class of all networks of cables."""

from itertools import pairwise
from typing import NamedTuple

Place = int | str
"""A place where a cable ends: the number of a rank, or the name of a host or a switch."""


class Cable(NamedTuple):
    """One direction of a cable. source, dest: names of the places where the cable begins and ends. bandwidth: in
    bytes/s. latency: in seconds."""

    source: str
    dest: str
    bandwidth: float
    latency: float


class Cabling:
    """A network of places (ranks, hosts and switches) that are joined by cables. All cables have the same bandwidth and
    latency, unless a subclass overrides `cable`.

    ``bandwidth``: bandwidth of a cable in bytes/s. ``latency``: latency of a cable in seconds. ``places``: largest
    number of ranks that the network can join. A route is computed when it is first needed, because most pairs of ranks
    never send to each other.
    """

    places: int

    def __init__(self, bandwidth: float, latency: float):
        self.bandwidth, self.latency = bandwidth, latency

    def way(self, source: int, dest: int) -> list[Place]:
        """Return the list of places that a message from rank ``source`` to rank ``dest`` passes, both ranks included.

        Raises ConfigError if no cables lead from ``source`` to ``dest``.
        """
        raise NotImplementedError

    def cable(self, source: Place, dest: Place) -> Cable:
        """Return the cable from ``source`` to ``dest``, two places that follow each other on a route."""
        return Cable(name(source), name(dest), self.bandwidth, self.latency)

    def route(self, source: int, dest: int) -> list[Cable]:
        """Return the cables on the route from rank ``source`` to rank ``dest``, in the order in which a message passes
        the cables.

        The route from a rank to itself has no cables.
        """
        return [self.cable(*ends) for ends in pairwise(self.way(source, dest))] if source != dest else []


def name(place: Place) -> str:
    """Return the name of a place; the name of the rank with the number 3 is ``rank 3``."""
    return f"rank {place}" if isinstance(place, int) else place
