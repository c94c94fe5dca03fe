"""The emulated clusters (testbeds) on which simulated times are compared with measured times."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from grsgd.testbed.hosts import Testbed, fair_share

SHARE_OF_CORES = 0.5
"""Fraction of a host's fair share of the machine's cores that the host gets, so that hosts seldom wait for others.

The kernel needs the remaining processor time, because it emulates the network.
"""


@dataclass(frozen=True)
class EmulatedCluster:
    """A testbed on which simulated times are compared with measured times.

    ``slow``: by number of the host, the factor by which the host computes more slowly. ``slow_links``: by number of
    the host, the rate of its link if it differs from ``rate``.
    """

    name: str
    what: str
    hosts: int
    rate: str
    cpu: float | None = None
    """Number of cores of each host.

    The default number of cores of a host is `SHARE_OF_CORES` times a fair share of the machine's cores.
    """
    slow: Mapping[int, float] = field(default_factory=dict, hash=False)
    slow_links: Mapping[int, str] = field(default_factory=dict, hash=False)

    def cores(self) -> float:
        return SHARE_OF_CORES * fair_share(self.hosts) if self.cpu is None else self.cpu

    def testbed(self) -> Testbed:
        """Return the testbed, a context manager. Raises TestbedError."""
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
