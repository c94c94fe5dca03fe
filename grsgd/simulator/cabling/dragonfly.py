"""A dragonfly network: groups of routers, with one cable between every two routers of a group, and one cable between
every two groups."""

from grsgd.simulator.cabling.cable import Cabling


class Dragonfly(Cabling):
    """A dragonfly network of ``a * h + 1`` groups of routers (Kim et al. 2008).

    A group has ``a`` routers; a router has ``p`` ranks, and ``h`` cables to routers of other groups.
    The ``a * h`` cables that lead from a group to other groups have numbers j = 0, 1, ...; cable j begins at the
    group's router ``j // h``. Cable j leads from group g to group ``g + j + 1``, modulo the number of groups (the
    relative arrangement of Hastings et al. 2015). Messages take the shortest route. A message goes to the router with
    the cable to the receiver's group, then over this cable, then to the receiver's router.
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
        """Raise ValueError if a dragonfly network with ``a`` routers per group, ``p`` ranks per router and ``h`` cables
        cannot be built."""
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
        """Return (group, number) of the router in the group ``group`` that has the cable to the group ``other``."""
        return group, (other - group - 1) % self.groups // self.cables
