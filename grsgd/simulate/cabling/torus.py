"""A torus of any number of dimensions: every rank has a cable to both neighbours in each of them."""

import math

from grsgd.simulate.cabling.cable import Cabling


class Torus(Cabling):
    """Ranks in row-major order (the last coordinate varies fastest). Messages correct one coordinate after the other,
    the first one first (Dally, Seitz 1987), the shorter way round; where both ways are equally long, upwards from an
    even coordinate and downwards from an odd one, so that both directions carry alike. Ranks pass on what is for
    others, and may use all their cables at once. In a dimension of 2 both neighbours are one, with one cable.
    """

    form = "torus:8x8x8"
    names = ()

    def __init__(self, *sizes: int, bandwidth: float, latency: float):
        super().__init__(bandwidth, latency)
        self.sizes = sizes
        self.places = math.prod(self.sizes)

    @staticmethod
    def check(*sizes: int):
        """Raise ValueError for what cannot be built."""
        if min(sizes) < 2:
            raise ValueError("each dimension must be 2 or more")

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
