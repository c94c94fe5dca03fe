"""How ranks learn that another rank has taken its last step, in a loop that grsgd did not write."""

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import ANY_RANK, receive_if_come
from grsgd.comm.stop_signal import UnevenSteps


class LastSteps:
    """One rank's messages to all others that it has taken its last step, and how many there were.

    An algorithm in which all ranks take the same number of steps would else wait for a rank that comes no more.
    ``comm`` is used for nothing else with tag 1.
    """

    def __init__(self, comm, algorithm: str):
        self.comm, self.algorithm = comm, algorithm
        self.step = 0
        """The step under way on this rank, from 1; 0 between two steps."""
        self._steps: dict[int, int] = {}
        """How many, by rank that has taken its last."""

    def watch(self):
        """Raise UnevenSteps if this rank, which waits, does so in a step that another rank will not take."""
        while self.step and (message := receive_if_come(self.comm, tags.LAST_STEPS, 2, np.int64)) is not None:
            self._note(message)
        for rank, steps in self._steps.items():
            if self.step > steps:
                raise UnevenSteps(
                    f"rank {rank} finished after {steps} steps, rank {self.comm.rank} is in step {self.step}: "
                    f"{self.algorithm} needs the same number of steps on all ranks; "
                    "grsgd.shard(data, even=True) makes as many batches on all"
                )

    def announce(self, steps: int):
        """Tell all others that this rank has taken its last step; returns the messages, for `wait_for_others`."""
        self.step = 0
        message = np.array([self.comm.rank, steps], np.int64)
        return [
            self.comm.Isend(message, rank, tags.LAST_STEPS) for rank in range(self.comm.size) if rank != self.comm.rank
        ]

    def wait_for_others(self, sent):
        """Schedule: wait until all ranks have announced their last step."""
        yield sent
        while len(self._steps) < self.comm.size - 1:
            message = np.zeros(2, np.int64)
            yield self.comm.Irecv(message, ANY_RANK, tags.LAST_STEPS)
            self._note(message)

    def _note(self, message):
        self._steps[int(message[0])] = int(message[1])
