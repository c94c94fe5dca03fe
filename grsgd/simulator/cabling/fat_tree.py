"""A fat-tree network: three layers of switches with k ports each, and full bandwidth between any two halves of the
ranks."""

from grsgd.simulator.cabling.cable import Cabling


class FatTree(Cabling):
    """A fat-tree network of k^3/4 ranks, whose switches have k ports each. A fat tree has (k/2)^2 core switches and k
    pods (groups of switches). Each pod has k/2 edge switches, to which ranks are connected, and k/2 aggregation
    switches.

    The fat tree is designed as in Al-Fares et al. (2008). Aggregation switch j of every pod has cables to the core
    switches named j.0, j.1, ... Routes follow the rule D-mod-k (Zahavi 2010). The digits of the receiver's number in
    base k/2 choose first the aggregation switch and then the core switch. All messages to one rank therefore come down
    over the same switches. When every rank i sends to rank i + c for a fixed c, no two messages share a cable.
    """

    form = "fat-tree:k=8"
    names = ("k",)

    def __init__(self, k: int, bandwidth: float, latency: float):
        super().__init__(bandwidth, latency)
        self.half = k // 2
        self.places = k * self.half**2

    @staticmethod
    def check(k: int):
        """Raise ValueError if ``k``, the number of ports of a switch, is odd or less than 2."""
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
