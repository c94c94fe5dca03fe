"""A network of cables that the user describes in a network file, with the shortest routes over these cables."""

from array import array
from collections import deque
from collections.abc import Iterable
from itertools import count

from grsgd.errors import ConfigError
from grsgd.simulator.cabling.cable import Cable, Cabling, Place, name

NOWHERE = -1
"""Number that stands for the distance, in cables, of a place from which no cables lead to the receiver."""


class OwnCabling(Cabling):
    """A network of places (ranks and switches) that the directed ``cables`` of a network file join. Messages take a
    route of the fewest cables.

    Ranks forward messages for other ranks. If c cables at a place begin equally short routes to the receiver, the
    receiver's number chooses the cable, like D-mod-k in a fat tree (Zahavi 2010). The receiver's number is divided by
    c. The remainder is the index of the chosen cable, in the order of the network file. The quotient replaces the
    receiver's number in the next choice of a cable.

    Raises ValueError if two cables lead from one place to the same other place, or a cable leads from a place to
    itself.
    """

    def __init__(self, cables: Iterable[tuple[Place, Place, float, float]], file: str = ""):
        """``cables``: source, destination, bandwidth (bytes/s) and latency (s) of each cable. ``file``: name of the
        network file, with which error messages begin."""
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
        """Return the least number of cables from each place to the place ``dest``, by breadth-first search."""
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
