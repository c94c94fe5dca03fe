"""A fat tree of switches with k ports each, in three layers, which has the full bandwidth between any two halves."""

from grsgd.simulate.cabling.cable import Cabling


class FatTree(Cabling):
    """k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3/4 ranks (Al-Fares et al. 2008).

    Aggregation switch j of every pod has cables to the core switches j.0, j.1 and so on. Messages go up by D-mod-k
    (Zahavi 2010): the digits of the receiver's number, to the base k/2, choose the aggregation switch and then the core
    switch. So all messages to one rank come down the same way, and those of all ranks i to i + c never meet.
    """

    form = "fat-tree:k=8"
    names = ("k",)

    def __init__(self, k: int, bandwidth: float, latency: float):
        super().__init__(bandwidth, latency)
        self.half = k // 2
        self.places = k * self.half**2

    @staticmethod
    def check(k: int):
        """Raise ValueError for what cannot be built."""
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
