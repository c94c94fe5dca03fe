"""The connections and the seed that the algorithm and the trainer of one rank share."""

from dataclasses import dataclass
from typing import Protocol

from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import Driver
from grsgd.comm.elastic.membership import Membership
from grsgd.comm.stop_signal import StopSignal


class StepsNoted(Protocol):
    """How far the run is, for an algorithm that knows it because all gradients meet in its central model."""

    def note_steps(self, steps: int, ahead: int = 0):
        """Note that all ranks together have taken so many steps, of which ``ahead`` are only taken for granted."""


@dataclass
class RankContext:
    """One rank's connections to the others, and what decides its random numbers.

    Parameters
    ----------
    comm
        Carries the algorithm's messages, which are counted as its traffic.
    uncounted_comm
        Carries what is no part of the algorithm: the first broadcast, reports of progress, the last average.
    driver
        Runs schedules, in real or in simulated time.
    stop_signal
        Tells of the end of the run; None in a loop that grsgd did not write.
    seed
        The run's; the same on all ranks.
    replication
        On how many ranks each shard of the training data lies.
    membership
        Which process holds which rank, where the run goes on without those that die; else None.
    progress
        How far the run is: a `CentralAlgorithm` writes it. None in a loop that grsgd did not write.
    """

    comm: Communicator
    uncounted_comm: Communicator
    driver: Driver
    stop_signal: StopSignal | None = None
    seed: int = 0
    replication: int = 1
    membership: Membership | None = None
    progress: StepsNoted | None = None
