"""A dragonfly network: one cable between every two routers of a group, and one cable between every two groups."""

from grsgd.simulator.cabling.cable import Cabling


class Dragonfly(Cabling):
    """A dragonfly network of ``a * h + 1`` groups (Kim et al. 2008).

    A group has ``a`` routers; a router has ``p`` ranks and ``h`` cables to other groups.
    Cable j = 0, 1, ... of the a h cables that lead from a group to other groups is at the group's router j // h.
    Cable j leads to the group whose number is j + 1 greater, modulo the number of groups (the relative arrangement of
    Hastings et al. 2015). Messages take the shortest route. A message goes to the router that has the cable to the
    receiver's group, over this cable, and on to the receiver's router.
    """

    form = "dragonfly:a=4,p=2,h=2"
    names = ("a", "p", "h")

    def __init__(self, a: int, p: int, h: int, bandwidth: float, latency: float):
        super().__init__(bandwidth, latency)
        self.routers, self.ranks, self.cables = a, p, h
        self.groups = a * h + 1
        self.places = self.groups * a * p

    @staticmethod
    def check(a: int, p: int, h: int):
        """Raise ValueError for numbers from which no dragonfly can be built."""
        if min(a, p, h) < 1:
            raise ValueError("a, p and h must be 1 or more")

    def way(self, source, dest):
        begin, end = (divmod(rank // self.ranks, self.routers) for rank in (source, dest))
        routers = [begin, end]
        if begin[0] != end[0]:
            routers[1:1] = [self.gateway(begin[0], end[0]), self.gateway(end[0], begin[0])]
        names = dict.fromkeys(f"router {group}.{router}" for group, router in routers)
        return [source, *names, dest]

    def gateway(self, group: int, other: int) -> tuple[int, int]:
        """Return (group, number) of the router of ``group`` that has the cable to the group ``other``."""
        return group, (other - group - 1) % self.groups // self.cables
