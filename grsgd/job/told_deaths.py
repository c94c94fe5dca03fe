"""Lines on stderr about the deaths of processes that a job survives."""

import sys
from functools import partial

from grsgd.comm.elastic.membership import Membership


def tell_deaths(membership: Membership):
    """Print a line whenever the process of a rank dies, and whenever a spare takes a rank.

    Only the lowest living process prints.
    """
    membership.on_change.append(partial(_tell, membership))


def _tell(membership: Membership, rank: int):
    if membership.process != membership.living[0]:
        return
    process = membership.holders[rank]
    left = membership.size - len(membership.vacant)
    died = f"its process has died; {left} rank{'s' * (left != 1)} left"
    line = died if process is None else f"process {process}, a spare, has taken this rank"
    print(f"\ngrsgd: rank {rank}: {line}", file=sys.stderr, flush=True)
