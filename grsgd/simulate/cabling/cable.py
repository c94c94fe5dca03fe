"""A cable, and what all networks of cables have in common."""

from itertools import pairwise
from typing import NamedTuple


class Cable(NamedTuple):
    """One direction of a cable, from the place ``source`` to the place ``dest``: ``bandwidth`` in bytes/s, ``latency``
    in s. A place is a rank, a host or a switch."""

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

    def route(self, source: int, dest: int) -> list[Cable]:
        """Return the cables from one rank to another in the order in which a message passes them; none to itself.

        Raises ConfigError if there are none that lead there.
        """
        if source == dest:
            return []
        return [self.cable(place, following) for place, following in pairwise(self.way(source, dest))]

    def way(self, source: int, dest: int) -> list[str]:
        """Return the names of the places from one rank to another one, both included."""
        raise NotImplementedError

    def cable(self, source: str, dest: str) -> Cable:
        """Return the cable from one place to the next."""
        return Cable(source, dest, self.bandwidth, self.latency)


def rank_name(rank: int) -> str:
    """Return the name of the place that a rank has."""
    return f"rank {rank}"
