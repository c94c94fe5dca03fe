"""A fat tree: three layers of switches with k ports each, with full bandwidth between any two halves of the ranks."""

from grsgd.simulator.cabling.cable import Cabling


class FatTree(Cabling):
    """A fat tree of k^3/4 ranks. A fat tree has (k/2)^2 core switches and k pods. A pod has k/2 edge and k/2
    aggregation switches.

    The design of the fat tree is by Al-Fares et al. (2008). Aggregation switch j of every pod has cables to the core
    switches j.0, j.1, ... Routes follow D-mod-k (Zahavi 2010): the digits of the receiver's number, to the base k/2,
    choose the aggregation switch and then the core switch. All messages to one rank therefore come down the same route.
    When every rank i sends to rank i + c, no two messages share a cable.
    """

    form = "fat-tree:k=8"
    names = ("k",)

    def __init__(self, k: int, bandwidth: float, latency: float):
        super().__init__(bandwidth, latency)
        self.half = k // 2
        self.places = k * self.half**2

    @staticmethod
    def check(k: int):
        """Raise ValueError unless ``k`` is even, and 2 or more."""
        if k < 2 or k % 2:
            raise ValueError("k must be even, and 2 or more")

    def way(self, source, dest):
        (pod, edge), (dest_pod, dest_edge) = (divmod(rank // self.half, self.half) for rank in (source, dest))
        up = [source, f"edge {pod}.{edge}"]
        down = [f"edge {dest_pod}.{dest_edge}", dest]
        if (pod, edge) == (dest_pod, dest_edge):
            return [*up, down[1]]
        rest, aggregation = divmod(dest, self.half)
        up.append(f"aggregation {pod}.{aggregation}")
        if pod == dest_pod:
            return up + down
        return [*up, f"core {aggregation}.{rest % self.half}", f"aggregation {dest_pod}.{aggregation}", *down]
