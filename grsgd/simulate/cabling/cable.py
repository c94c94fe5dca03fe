"""A cable, and what all networks of cables have in common."""

from itertools import pairwise
from typing import NamedTuple

Place = int | str
"""Where cables end: the number of a rank, or the name of a host or a switch."""


class Cable(NamedTuple):
    """One direction of a cable, between places by their names: ``bandwidth`` in bytes/s, ``latency`` in s."""

    source: str
    dest: str
    bandwidth: float
    latency: float


class Cabling:
    """Places that are joined by cables, all of one bandwidth (bytes/s) and one latency (s) unless a subclass says else.

    ``places``: for how many ranks there is room. Nothing is computed before it is asked for, because of all pairs of
    ranks few ever talk to each other.
    """

    places: int

    def __init__(self, bandwidth: float, latency: float):
        self.bandwidth, self.latency = bandwidth, latency

    def way(self, source: int, dest: int) -> list[Place]:
        """Return the places that a message passes from one rank to another one, both included.

        Raises ConfigError if no cables lead there.
        """
        raise NotImplementedError

    def cable(self, source: Place, dest: Place) -> Cable:
        """Return the cable from one place to the next."""
        return Cable(name(source), name(dest), self.bandwidth, self.latency)

    def route(self, source: int, dest: int) -> list[Cable]:
        """Return the cables from one rank to another in the order in which a message passes them; none to itself."""
        return [self.cable(*ends) for ends in pairwise(self.way(source, dest))] if source != dest else []


def name(place: Place) -> str:
    """Return how a place is called."""
    return f"rank {place}" if isinstance(place, int) else place
