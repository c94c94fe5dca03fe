"""Word that a rank has taken its last step, in a loop that grsgd did not write."""

import numpy as np

from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.control import UnevenSteps

TAG = 1


class LastSteps:
    """Word from each rank to all others that it has taken its last step, and how many there were.

    An algorithm in which all ranks take the same number of steps would else wait for a rank that comes no more.
    ``comm`` is used for nothing else with tag 1.
    """

    def __init__(self, comm, algorithm: str):
        self.comm, self.algorithm = comm, algorithm
        self.step = 0
        """The step under way on this rank, from 1; 0 between two steps."""
        self._steps: dict[int, int] = {}
        """By rank that has taken its last."""

    def watch(self):
        """Called while this rank waits; raises UnevenSteps if it waits in a step that another rank will not take."""
        while self.step and self.comm.Iprobe(ANY_RANK, TAG):
            word = np.zeros(2, np.int64)
            message = self.comm.Irecv(word, ANY_RANK, TAG)
            while not message.Test():  # it is here already: a probe found it
                pass
            self._note(word)
        for rank, steps in self._steps.items():
            if self.step > steps:
                raise UnevenSteps(
                    f"rank {rank} finished after {steps} steps, rank {self.comm.rank} is in step {self.step}: "
                    f"{self.algorithm} needs the same number of steps on all ranks"
                )

    def say(self, steps: int):
        """Tell all others that this rank has taken its last step; returns what `hear` has to wait for, too."""
        self.step = 0
        word = np.array([self.comm.rank, steps], np.int64)
        return [self.comm.Isend(word, rank, TAG) for rank in range(self.comm.size) if rank != self.comm.rank]

    def hear(self, sent):
        """Schedule: until all ranks have said so."""
        yield sent
        while len(self._steps) < self.comm.size - 1:
            word = np.zeros(2, np.int64)
            yield self.comm.Irecv(word, ANY_RANK, TAG)
            self._note(word)

    def _note(self, word):
        self._steps[int(word[0])] = int(word[1])
