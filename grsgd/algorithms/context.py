"""Connections and seed that the algorithm and the trainer of one rank share.

A schedule is a generator that yields each object it waits for.
"""

from dataclasses import dataclass, field
from typing import Protocol

from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import Driver
from grsgd.comm.elastic.membership import Membership
from grsgd.comm.stop_signal import StopSignal


class StepsNoted(Protocol):
    """Receiver of reports on the run's progress. Algorithms with a central model send these reports, because the
    central model contains the gradients of all ranks."""

    def note_steps(self, steps: int, ahead: int = 0):
        """Set the total number of steps of all ranks to ``steps``. Of these steps, ``ahead`` are assumed, and all
        others are known."""


class StepsIgnored:
    """Receiver of the run's progress in a user's own loop, whose script knows how far it is."""

    def note_steps(self, steps: int, ahead: int = 0):
        """Do nothing."""


@dataclass
class RankContext:
    """One rank's connections to the other ranks, and the seed of its random numbers.

    Parameters
    ----------
    comm
        Communicator of the algorithm's messages, which are counted as its traffic.
    uncounted_comm
        Communicator of messages that are not counted as the algorithm's traffic: the first broadcast of the model,
        reports of progress, the last average of all models.
    driver
        Driver that runs schedules, in real or in simulated time.
    stop_signal
        Signal of the end of the run; None in a user's own loop.
    seed
        Seed of the run; the same on all ranks.
    replication
        Number of ranks that hold each shard of the training data.
    membership
        Membership, which knows the process that holds each rank; None if the run ends when a process dies.
    progress
        Progress of the run, which a `CentralAlgorithm` writes; ignored in a user's own loop.
    """

    comm: Communicator
    uncounted_comm: Communicator
    driver: Driver
    stop_signal: StopSignal | None = None
    seed: int = 0
    replication: int = 1
    membership: Membership | None = None
    progress: StepsNoted = field(default_factory=StepsIgnored)
