"""Timed copies of a replica, kept while training and evaluated after it.

Evaluation while training would disturb what is measured: it takes time, and it would make asynchronous ranks wait.
"""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch

from grsgd.replica import Replica

MEMORY = 256 * 2**20
"""Bytes of snapshots that a rank keeps in memory; with more, all go to a temporary file."""


@dataclass(frozen=True)
class Moment:
    """When a snapshot was taken: seconds since the start, the rank's step, samples of all ranks, and the mean
    training loss of the rank since the snapshot before."""

    time: float
    step: int
    samples: int
    train_loss: float


class Snapshots:
    """The snapshots of one rank, in the order in which they were taken."""

    def __init__(self, replica: Replica):
        self.replica = replica
        self.moments: list[Moment] = []
        self._file = tempfile.SpooledTemporaryFile(max_size=MEMORY, prefix="grsgd-")

    def __len__(self) -> int:
        return len(self.moments)

    def take(self, moment: Moment):
        self._file.seek(0, 2)
        for flat in (self.replica.params, self.replica.buffers):
            self._file.write(flat.tensor.cpu().numpy().data)
        self.moments.append(moment)

    def restore(self, index: int):
        """Put snapshot ``index`` back into the replica."""
        flats = (self.replica.params, self.replica.buffers)
        self._file.seek(index * sum(flat.array.nbytes for flat in flats))
        for flat in flats:
            host = np.frombuffer(self._file.read(flat.array.nbytes), str(flat.array.dtype)).copy()
            flat.tensor.copy_(torch.from_numpy(host))
