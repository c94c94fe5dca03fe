"""The clusters on which simulated times are held against those by the clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from grsgd.testbed.hosts import Testbed, fair_share

SHARE_OF_CORES = 0.5
"""The share that a host has of its fair part of the cores, so that hosts seldom wait for each other; the kernel, which
is the network, has the rest."""


@dataclass(frozen=True)
class EmulatedCluster:
    """A testbed. ``slow``: by host, how many times slower it computes; ``slow_links``: by host, the rate of its link
    where it is another."""

    name: str
    what: str
    hosts: int
    rate: str
    cpu: float | None = None
    """Cores of each host; None: most of a fair part."""
    slow: Mapping[int, float] = field(default_factory=dict, hash=False)
    slow_links: Mapping[int, str] = field(default_factory=dict, hash=False)

    def cores(self) -> float:
        return SHARE_OF_CORES * fair_share(self.hosts) if self.cpu is None else self.cpu

    def testbed(self) -> Testbed:
        """Return the hosts, to be entered. Raises TestbedError."""
        return Testbed(self.hosts, self.rate, self.cores(), self.slow, slow_links=self.slow_links)


SETTINGS = (
    EmulatedCluster("four", "four hosts with links of 100 Mbit/s", 4, "100mbit"),
    EmulatedCluster("eight", "eight hosts with links of 200 Mbit/s, a gigabit in slow motion", 8, "200mbit"),
    EmulatedCluster(
        "uneven",
        "four hosts, of which one computes half as fast and another has a link of 25 Mbit/s",
        *(4, "100mbit", None, {0: 2.0}, {3: "25mbit"}),
    ),
)
