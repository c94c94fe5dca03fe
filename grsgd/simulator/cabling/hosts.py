"""A network of hosts that are connected by one switch. The ranks on a host share the host's network card."""

from grsgd.simulator.cabling.cable import Cable, Cabling

SWITCH = "switch"
MEMORY_BANDWIDTH = 150e9 / 8
"""Bytes/s of messages between ranks on one host: about the value that ``grsgd calibrate`` measures on one machine."""
MEMORY_LATENCY = 1e-6
"""Latency in seconds of messages between ranks on one host: about the latency of MPI libraries through shared
memory."""


class HostCards(Cabling):
    """A network of ``hosts`` hosts on one switch, with ``ranks`` ranks on each host. The first ``ranks`` ranks are on
    host 0, the next ``ranks`` ranks on host 1, and so on.

    The network card of a host has the same bandwidth in both directions. ``latency`` is the total latency in seconds
    between two hosts, so the cable from the switch to a host has latency 0. All messages between the ranks of a host
    share the bandwidth of the host's memory. The host's memory is a stop on the route of a message between ranks of the
    same host.
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
        """``memory``: bandwidth in bytes/s and latency in seconds of messages between ranks of the same host."""
        super().__init__(bandwidth, latency)
        self.ranks, self.memory = ranks, memory
        self.places = hosts * ranks

    @staticmethod
    def check(*numbers: int):
        """Raise ValueError unless ``numbers`` are two numbers, each 1 or more."""
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
    """Return the name of the memory of ``host``, a stop on the routes between ranks of this host."""
    return f"memory {host}"
