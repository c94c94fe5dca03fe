"""Output of lines on stderr about the deaths of processes that a job survives."""

import sys

from grsgd.comm.elastic.membership import Membership


class ToldDeaths:
    """Printer of lines about the ranks of a `Membership` whose processes die, and about the spares that take these
    ranks.

    Only the living process with the lowest number prints these lines. If the living process with the lowest number dies
    together with other processes, a line may be missing.
    """

    def __init__(self, membership: Membership):
        self.membership, self._told = membership, 0
        membership.on_change.append(self._tell)

    def _tell(self, rank: int):
        membership = self.membership
        new, self._told = membership.deaths[self._told :], len(membership.deaths)
        if membership.process != min(membership.living, default=None):
            return
        left = membership.size - len(membership.vacant)
        for death in new:
            say(f"rank {death.rank}: its process has died; {left} rank{'s' * (left != 1)} left")
        if (process := membership.holders[rank]) is not None:
            say(f"rank {rank}: process {process}, a spare, has taken this rank")


def say(line: str):
    """Print ``line`` on a new line of stderr, with the prefix "grsgd: "."""
    print(f"\ngrsgd: {line}", file=sys.stderr, flush=True)
