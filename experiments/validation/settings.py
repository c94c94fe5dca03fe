"""The emulated clusters on which simulated times are compared with measured times."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from grsgd.testbed.hosts import Testbed, fair_share

SHARE_OF_CORES = 0.5
"""Part of its fair share of the cores that a host gets, so that hosts seldom wait for each other.

The kernel, which emulates the network, uses the remaining processor time.
"""


@dataclass(frozen=True)
class EmulatedCluster:
    """A testbed for the comparison of simulated with measured times.

    ``slow``: by host, the factor by which it computes more slowly. ``slow_links``: by host, the rate of its link if the
    rate differs from ``rate``.
    """

    name: str
    what: str
    hosts: int
    rate: str
    cpu: float | None = None
    """Number of cores of each host; by default `SHARE_OF_CORES` times a fair share of the cores."""
    slow: Mapping[int, float] = field(default_factory=dict, hash=False)
    slow_links: Mapping[int, str] = field(default_factory=dict, hash=False)

    def cores(self) -> float:
        return SHARE_OF_CORES * fair_share(self.hosts) if self.cpu is None else self.cpu

    def testbed(self) -> Testbed:
        """Return the testbed, as a context to be entered. Raises TestbedError."""
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
