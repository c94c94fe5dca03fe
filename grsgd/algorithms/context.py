"""Context (communicators, driver and seed) that the algorithm and the trainer of one rank share.

A schedule is a generator that yields each object it waits for.
"""

from dataclasses import dataclass, field
from typing import Protocol

from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import Driver
from grsgd.comm.elastic.membership import Membership
from grsgd.comm.stop_signal import StopSignal


class StepsNoted(Protocol):
    """Object to which an algorithm with a central model reports the run's progress. Only algorithms with a central
    model report progress, because only the central model contains the gradients of all ranks."""

    def note_steps(self, steps: int, ahead: int = 0):
        """Set the total number of steps that all ranks have taken to ``steps``. The number ``steps`` includes ``ahead``
        steps that are only assumed to have been taken."""


class StepsIgnored:
    """Object that ignores reports on the run's progress, for a user's own training loop, which counts its steps
    itself."""

    def note_steps(self, steps: int, ahead: int = 0):
        """Ignore the reported number of steps."""


@dataclass
class RankContext:
    """Communicators, driver and seed of one rank.

    Parameters
    ----------
    comm
        Communicator of the algorithm's messages, which are counted as the algorithm's traffic.
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
        Object that knows which process holds each rank; None if the run ends when a process dies.
    progress
        Receiver to which a `CentralAlgorithm` reports the run's progress; ignored in a user's own loop.
    """

    comm: Communicator
    uncounted_comm: Communicator
    driver: Driver
    stop_signal: StopSignal | None = None
    seed: int = 0
    replication: int = 1
    membership: Membership | None = None
    progress: StepsNoted = field(default_factory=StepsIgnored)
