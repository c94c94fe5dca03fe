"""A network of a user's own: places and cables as a file lists them, and the shortest routes over them."""

from array import array
from collections import deque
from collections.abc import Iterable
from itertools import count

from grsgd.errors import ConfigError
from grsgd.simulate.cabling.cable import Cable, Cabling, rank_name

NOWHERE = -1
"""The distance where no cables lead."""


class OwnCabling(Cabling):
    """Directed ``cables``; messages pass as few of them as they can, and ranks pass on what is for others.

    Where several cables lead on equally well, the receiver's number chooses, as D-mod-k does in a fat tree (Zahavi
    2010): its remainder by the number of cables chooses one, in the order of the file, and its quotient goes on to the
    next choice. Raises ValueError for two cables from one place to another, and for one from a place to itself.
    """

    def __init__(self, cables: Iterable[Cable], name: str = ""):
        """``name``: of the network, for errors."""
        self.name = name
        self._cables: dict[tuple[str, str], Cable] = {}
        self._numbers: dict[str, int] = {}
        for cable in cables:
            ends = cable.source, cable.dest
            if cable.source == cable.dest:
                raise ValueError(f"cable: from {cable.source} to itself")
            if ends in self._cables:
                raise ValueError(f"cable: from {cable.source} to {cable.dest} is given twice")
            self._cables[ends] = cable
            for place in ends:
                self._numbers.setdefault(place, len(self._numbers))
        self._names = list(self._numbers)
        self._following: list[list[int]] = [[] for _ in self._names]
        self._previous: list[list[int]] = [[] for _ in self._names]
        for source, dest in self._cables:
            self._following[self._numbers[source]].append(self._numbers[dest])
            self._previous[self._numbers[dest]].append(self._numbers[source])
        self._distances: dict[int, array] = {}
        self.places = next(rank for rank in count() if rank_name(rank) not in self._numbers)

    def cable(self, source, dest):
        return self._cables[source, dest]

    def way(self, source, dest):
        distances = self._distances_to(self._numbers[rank_name(dest)])
        place, rest = self._numbers[rank_name(source)], dest
        if distances[place] == NOWHERE:
            raise ConfigError(f"{self.name}: no cables lead from {rank_name(source)} to {rank_name(dest)}")
        way = [self._names[place]]
        while distances[place]:
            nearer = [other for other in self._following[place] if distances[other] == distances[place] - 1]
            rest, choice = divmod(rest, len(nearer))
            place = nearer[choice]
            way.append(self._names[place])
        return way

    def _distances_to(self, dest: int) -> array:
        """Return for each place how many cables lead from it to the place ``dest``, at least: breadth-first search."""
        if dest not in self._distances:
            distances = array("i", [NOWHERE]) * len(self._names)
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
