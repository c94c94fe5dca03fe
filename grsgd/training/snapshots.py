"""Snapshots: copies of a rank's model with their times, which are stored during training and evaluated after training.

An evaluation of the model during training would disturb the measurement of training times. An evaluation takes time,
and asynchronous ranks would have to wait for each other.
"""

import math
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from grsgd.models.digests import bytes_of
from grsgd.models.flat import host_tensor
from grsgd.models.replica import Replica
from grsgd.training.snapshot_file import SnapshotFile

MEMORY = 256 * 2**20
"""Number of bytes of snapshots that a process stores in memory; further snapshots go to a temporary file on disk."""

PIECE = 2**20
"""Largest number of bytes that `Snapshots.pieces` yields at once."""

NOT_KEPT, NOT_THERE = -1, -2
"""Values that replace the number of a stored snapshot if a rank has no snapshot. NOT_KEPT means that the snapshot could
not be stored, because the disk was full, or that its stored copy is damaged. NOT_THERE means that this process did not
hold the rank at the time of the snapshot."""


@dataclass(frozen=True)
class Moment:
    """Progress of a run at a snapshot, with the training loss.

    ``time`` is in seconds since the start of the run. ``step`` is the rank's number of steps, and ``samples`` the
    number of samples of all ranks. ``train_loss`` has two numbers for each block of the batch: the rank's mean training
    loss since the last snapshot, and the block's weight in the loss of all ranks.

    If each rank has batches of its own, the number of the block is the number of the rank. A block that several ranks
    compute has the same number on these ranks, and its loss counts once.
    """

    time: float
    step: int
    samples: int
    train_loss: dict[int, tuple[float, float]]


class Snapshots:
    """Snapshots of one rank, with one entry for each mark (point of a run at which snapshots are due). If a rank passes
    several marks in one step, one stored copy of the model is the snapshot of all these marks. So entry k of each list
    in this object belongs to mark (snapshot point) k on every rank.
    """

    def __init__(self, replica: Replica, memory: int | None = None, early: int = 0):
        self.replica = replica
        self.early = early
        """Number of marks (snapshot points) at the beginning of the run that the curve of test results shows only if
        the run ends early."""
        self.moments: list[Moment] = []
        self.numbers: list[int] = []
        """Number of the stored copy of the model for each mark (snapshot point). The number is NOT_KEPT or NOT_THERE if
        no copy of the mark is stored."""
        self.weights: list[float] = []
        """Weight of this rank's model in the average over all ranks, for each mark (snapshot point)."""
        self.trouble: str | None = None
        """Reason why some snapshots could not be stored; None if all were stored."""
        self._memory = MEMORY if memory is None else memory
        self._file = tempfile.SpooledTemporaryFile(max_size=self._memory, prefix="grsgd-")
        weakref.finalize(self, self._file.close)

    @classmethod
    def kept(cls, replica: Replica, file, numbers: list[int], weights: list[float]) -> "Snapshots":
        """Return an object that can only restore the snapshots of another process, whose bytes are in ``file``."""
        snapshots = cls(replica)
        snapshots._file, snapshots.numbers, snapshots.weights = file, numbers, weights
        return snapshots

    def share(self) -> int:
        """Store all snapshots in a file that other processes can read, and return the file's descriptor. Call the
        method `share` before the first snapshot."""
        self._file.close()
        self._file = SnapshotFile(self._memory)
        weakref.finalize(self, self._file.close)
        return self._file.fileno()

    def __len__(self) -> int:
        return len(self.moments)

    def take(self, moment: Moment, model: Sequence[torch.Tensor], marks: int = 1, weight: float = 1.0):
        """Store ``model``, a flat tensor of parameters and a flat tensor of buffers, as the snapshot of the next
        ``marks`` marks (snapshot points)."""
        has_content = not model[0].is_meta
        number = self.count if not has_content or self._store(model) else NOT_KEPT
        # Moments are appended before numbers. So a thread that copies the numbers first has a moment for each number.
        self.moments += [moment] * marks
        self.weights += [weight] * marks
        self.numbers += [number] * marks

    def _store(self, model: Sequence[torch.Tensor]) -> bool:
        """Append a copy of the model to the file of snapshots. Return False if the disk is full."""
        begin = self._file.seek(0, 2)
        try:
            for tensor in model:
                self._file.write(bytes_of(tensor).data)
            self._file.flush()
            return True
        except OSError as error:  # the disk of $TMPDIR is full, so the run's curve gets fewer points
            self.trouble = f"{tempfile.gettempdir()}: {error.strerror}"
            self._file.truncate(begin)
            return False

    def skip(self, marks: int):
        """Record that this process has no snapshots of the next ``marks`` marks (snapshot points), because a process
        that has died held the rank at that time."""
        self.moments += [Moment(-math.inf, 0, 0, {})] * marks
        self.weights += [0.0] * marks
        self.numbers += [NOT_THERE] * marks

    def pieces(self, number: int) -> Iterator[memoryview]:
        """Yield the bytes of the stored copy of the model with the number ``number``, in pieces that fit into a
        processor's cache. The memory of a piece is used again for the next piece. After a call of `share`, any thread
        may call this method."""
        begin, end, memory = number * self.bytes, (number + 1) * self.bytes, memoryview(bytearray(PIECE))
        while begin < end:
            size = os.preadv(self._file.fileno(), [memory[: end - begin]], begin)
            if not size:
                raise OSError(f"snapshot {number} ends after {begin - number * self.bytes} of {self.bytes} bytes")
            yield memory[:size]
            begin += size

    def append(self, content: bytes):
        """Store ``content``, the bytes of a snapshot that another process has taken. The number of the stored copy must
        already be in ``numbers``."""
        self._file.seek(0, 2)
        self._file.write(content)
        self._file.flush()

    @property
    def count(self) -> int:
        """Number of copies of the model that are stored."""
        return 1 + max((number for number in self.numbers if number >= 0), default=-1)

    @property
    def bytes(self) -> int:
        """Size in bytes of one stored copy of the model."""
        return sum(flat.array.nbytes for flat in (self.replica.params, self.replica.buffers))

    def keep_first(self, marks: int):
        """Remove the entries of all snapshots after the first ``marks`` marks (snapshot points)."""
        del self.moments[marks:], self.numbers[marks:], self.weights[marks:]

    def warnings(self) -> list[str]:
        missing = self.numbers.count(NOT_KEPT)
        return [f"{missing} of {len(self)} snapshots were not kept: {self.trouble}"] if missing else []

    def restore(self, index: int) -> bool:
        """Copy the snapshot of mark (snapshot point) number ``index`` into the replica. If the snapshot's number is
        NOT_THERE, do not change the replica, and return False."""
        if self.numbers[index] == NOT_THERE:
            return False
        flats = (self.replica.params, self.replica.buffers)
        self._file.seek(self.numbers[index] * self.bytes)
        for flat in flats:
            host = np.frombuffer(self._file.read(flat.array.nbytes), str(flat.array.dtype)).copy()
            flat.tensor.copy_(host_tensor(host))
        return True


def common_marks(numbers: list[list[int]], first: int = 0) -> list[int]:
    """Return the marks (snapshot points) that a run's curve of test results shows, from mark ``first`` on. At each
    returned mark, no rank lacks a snapshot (NOT_KEPT), and at least one rank has another snapshot than at the previous
    mark. A rank that had no process at a mark (NOT_THERE) needs no snapshot of this mark.

    ``numbers`` has `Snapshots.numbers` of each rank.
    """
    rows = list(zip(*numbers, strict=False))[first:]
    kept = [
        NOT_KEPT not in row and set(row) != {NOT_THERE} and (at == 0 or row != rows[at - 1])
        for at, row in enumerate(rows)
    ]
    return [first + at for at, is_kept in enumerate(kept) if is_kept]


def train_loss(moments: list[Moment]) -> float:
    """Return the mean training loss of all ranks at one mark (snapshot point). ``moments`` has each rank's `Moment`,
    which includes the rank's losses, at this mark. The result is NaN if no rank has a loss."""
    losses = {}
    for moment in moments:
        losses |= moment.train_loss
    return weighted_mean(losses.values())


def weighted_mean(values: Iterable[tuple[float, float]]) -> float:
    """Return the weighted mean of (value, weight) pairs, without the pairs whose value is NaN. Return NaN if all values
    are NaN. The sums are exactly rounded, so the result does not depend on the order of the pairs."""
    known = [(value * weight, weight) for value, weight in values if not math.isnan(value)]
    return math.fsum(product for product, _ in known) / math.fsum(weight for _, weight in known) if known else math.nan
