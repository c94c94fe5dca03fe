"""A network of cables that the user describes in a network file. Messages take the shortest routes over the cables in
the network file."""

from array import array
from collections import deque
from collections.abc import Iterable
from itertools import count

from grsgd.errors import ConfigError
from grsgd.simulator.cabling.cable import Cable, Cabling, Place, name

NOWHERE = -1
"""Number in place of the distance to a receiver, for a rank or switch from which no cables lead to the receiver."""


class OwnCabling(Cabling):
    """A network of ranks and switches that are joined by the ``cables`` of a network file. A cable carries messages in
    one direction only. Messages take a route with the least number of cables.

    Ranks forward messages for other ranks. If ``c`` cables at a rank or switch begin equally short routes to the
    receiver, the receiver's number chooses one of these cables, as in the rule D-mod-k (Zahavi 2010). The receiver's
    number modulo ``c`` is the index of the chosen cable. The index counts the ``c`` cables in the order of the network
    file. At the next rank or switch with several shortest routes, the quotient of the receiver's number and ``c`` is
    used in place of the receiver's number.

    Raises ValueError if two of ``cables`` have the same source and the same destination, or if a cable leads from a
    rank or switch to itself.
    """

    def __init__(self, cables: Iterable[tuple[Place, Place, float, float]], file: str = ""):
        """``cables``: source, destination, bandwidth in bytes/s and latency in seconds of each cable. ``file``: name of
        the network file, for error messages."""
        self.file = file
        self._cables: dict[tuple[Place, Place], Cable] = {}
        self._numbers: dict[Place, int] = {}
        for source, dest, bandwidth, latency in cables:
            cable = Cable(name(source), name(dest), bandwidth, latency)
            if source == dest:
                raise ValueError(f"cable: from {cable.source} to itself")
            if (source, dest) in self._cables:
                raise ValueError(f"cable: from {cable.source} to {cable.dest} is given twice")
            self._cables[source, dest] = cable
            for place in (source, dest):
                self._numbers.setdefault(place, len(self._numbers))
        self._places = list(self._numbers)
        self._following: list[list[int]] = [[] for _ in self._places]
        self._previous: list[list[int]] = [[] for _ in self._places]
        for source, dest in self._cables:
            self._following[self._numbers[source]].append(self._numbers[dest])
            self._previous[self._numbers[dest]].append(self._numbers[source])
        self._distances: dict[int, array] = {}
        self.places = next(rank for rank in count() if rank not in self._numbers)

    def cable(self, source, dest):
        return self._cables[source, dest]

    def way(self, source, dest):
        distances = self._distances_to(self._numbers[dest])
        place, rest = self._numbers[source], dest
        if distances[place] == NOWHERE:
            raise ConfigError(f"{self.file}: no cables lead from {name(source)} to {name(dest)}")
        way = [self._places[place]]
        while distances[place]:
            nearer = [other for other in self._following[place] if distances[other] == distances[place] - 1]
            rest, choice = divmod(rest, len(nearer))
            place = nearer[choice]
            way.append(self._places[place])
        return way

    def _distances_to(self, dest: int) -> array:
        """Return the least number of cables on a route to the place ``dest`` from each place (rank or switch), by
        breadth-first search."""
        if dest not in self._distances:
            distances = array("i", [NOWHERE]) * len(self._places)
            distances[dest] = 0
            waiting = deque([dest])
            while waiting:
                place = waiting.popleft()
                for previous in self._previous[place]:
                    if distances[previous] == NOWHERE:
                        distances[previous] = distances[place] + 1
                        waiting.append(previous)
            self._distances[dest] = distances
        return self._distances[dest]
