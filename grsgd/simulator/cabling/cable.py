"""A cable, and the base class of all networks of cables."""

from itertools import pairwise
from typing import NamedTuple

Place = int | str
"""The end of a cable: a rank by its number, or a host or switch by its name."""


class Cable(NamedTuple):
    """One direction of a cable: names of the place where it begins and of the place where it ends; bandwidth in
    bytes/s; latency in s."""

    source: str
    dest: str
    bandwidth: float
    latency: float


class Cabling:
    """Places that are joined by cables; all cables have one bandwidth and latency unless a subclass overrides `cable`.

    ``bandwidth``: bandwidth of a cable in bytes/s. ``latency``: latency of a cable in s. ``places``: number of ranks
    for which the network has room. A route is computed when it is first needed, because most pairs of ranks never send
    to each other.
    """

    places: int

    def __init__(self, bandwidth: float, latency: float):
        self.bandwidth, self.latency = bandwidth, latency

    def way(self, source: int, dest: int) -> list[Place]:
        """Return the places that a message passes from one rank to another, both ranks included.

        Raises ConfigError if no cables lead from ``source`` to ``dest``.
        """
        raise NotImplementedError

    def cable(self, source: Place, dest: Place) -> Cable:
        """Return the cable from ``source`` to ``dest``, which are neighbours on a route."""
        return Cable(name(source), name(dest), self.bandwidth, self.latency)

    def route(self, source: int, dest: int) -> list[Cable]:
        """Return the cables from one rank to another, in the order in which a message passes them.

        The route from a rank to itself has no cables.
        """
        return [self.cable(*ends) for ends in pairwise(self.way(source, dest))] if source != dest else []


def name(place: Place) -> str:
    """Return the name of a place: ``rank 3`` for the number 3."""
    return f"rank {place}" if isinstance(place, int) else place
