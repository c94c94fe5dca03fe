"""Hosts of several ranks each on one switch: the ranks of a host share its network card."""

from grsgd.simulate.cabling.cable import Cable, Cabling

SWITCH = "switch"
MEMORY_BANDWIDTH = 150e9 / 8
"""Bytes/s of messages within a host: about what ``grsgd calibrate`` has found between two ranks of one machine."""
MEMORY_LATENCY = 1e-6
"""Seconds of the same: about that of MPI libraries through shared memory."""


class HostCards(Cabling):
    """``hosts`` hosts of ``ranks`` ranks, placed host by host. A host's card has one bandwidth in each direction.

    The latency is that between two hosts, as on a switch without further cables. All messages within a host share the
    bandwidth of its memory, which is a place of its own.
    """

    form = "hosts:8x4"
    names = ()

    def __init__(
        self,
        hosts: int,
        ranks: int,
        bandwidth: float,
        latency: float,
        memory: tuple[float, float] = (MEMORY_BANDWIDTH, MEMORY_LATENCY),
    ):
        """``memory``: bandwidth and latency of messages within a host."""
        super().__init__(bandwidth, latency)
        self.ranks, self.memory = ranks, memory
        self.places = hosts * ranks

    @staticmethod
    def check(*numbers: int):
        """Raise ValueError for what cannot be built."""
        if len(numbers) != 2 or min(numbers) < 1:
            raise ValueError("must be HOSTSxRANKS, both 1 or more")

    def way(self, source, dest):
        begin, end = (rank // self.ranks for rank in (source, dest))
        return [f"host {begin}", *([memory_of(begin)] if begin == end else [SWITCH, f"host {end}"])]

    def cable(self, source, dest):
        if dest == memory_of(source.removeprefix("host ")):
            return Cable(source, dest, *self.memory)
        return Cable(source, dest, self.bandwidth, 0.0 if source == SWITCH else self.latency)


def memory_of(host: int | str) -> str:
    """Return how the memory of a host is called."""
    return f"memory {host}"
