"""A torus network of any number of dimensions. In each dimension of the torus, every rank has one cable to each of its
two neighbours."""

import math

from grsgd.simulator.cabling.cable import Cabling


class Torus(Cabling):
    """A torus network of ranks. Ranks are numbered in row-major order: the last coordinate varies fastest. Each rank
    has cables to its neighbours in each dimension of the torus.

    A message travels along one dimension after the other, from the first dimension to the last (Dally, Seitz 1987). In
    each dimension the message takes the shorter way round the ring of ranks. If both ways round the ring are equally
    long, the message goes to higher coordinates from an even coordinate, and to lower coordinates from an odd one. Both
    directions of a dimension therefore carry equally many messages if each rank sends to the opposite rank. Ranks
    forward messages of other ranks, and can send over all their cables at the same time. In a dimension of size 2 both
    neighbours of a rank are the same rank, to which one cable leads.
    """

    form = "torus:8x8x8"
    names = ()

    def __init__(self, *sizes: int, bandwidth: float, latency: float):
        super().__init__(bandwidth, latency)
        self.sizes = sizes
        self.places = math.prod(self.sizes)

    @staticmethod
    def check(*sizes: int):
        """Raise ValueError unless the size of each dimension is 2 or more."""
        if min(sizes) < 2:
            raise ValueError("the size of each dimension must be 2 or more")

    def way(self, source, dest):
        way, stride, place = [source], self.places, source
        for size in self.sizes:
            stride //= size
            here, there = place // stride % size, dest // stride % size
            up = (there - here) % size
            is_up = 2 * up < size or (2 * up == size and here % 2 == 0)
            for _ in range(up if is_up else size - up):
                following = (here + (1 if is_up else -1)) % size
                place += (following - here) * stride
                here = following
                way.append(place)
        return way
