"""Snapshots: copies of a rank's model with their times, which are kept during training and evaluated after it.

Evaluation during training would disturb the measurement: it takes time, and asynchronous ranks would have to wait.
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
"""Number of bytes of snapshots that a process keeps in memory; further snapshots go to a temporary file."""

PIECE = 2**20
"""Largest number of bytes in a piece of a stored copy (`Snapshots.pieces`)."""

NOT_KEPT, NOT_THERE = -1, -2
"""Numbers that stand for missing copies: NOT_KEPT if the disk was full, NOT_THERE if this process did not hold the rank
at the time of the snapshot."""


@dataclass(frozen=True)
class Moment:
    """Moment of a snapshot: ``time`` in seconds since the start, the rank's ``step``, and ``samples``, the number of
    samples of all ranks. ``train_loss`` has two numbers for each block of the batch: the rank's mean training loss
    since the last snapshot, and the block's weight in the loss of all ranks.

    If each rank has batches of its own, the number of a block is the number of the rank. A block that several ranks
    compute has one loss.
    """

    time: float
    step: int
    samples: int
    train_loss: dict[int, tuple[float, float]]


class Snapshots:
    """Snapshots of one rank, one per mark; marks are the points of a run at which snapshots are due.

    A rank that passes several marks in one step has one stored copy for all of them. So entry k of each list belongs to
    mark k on every rank.
    """

    def __init__(self, replica: Replica, memory: int | None = None, early: int = 0):
        self.replica = replica
        self.early = early
        """Number of marks at the beginning of the run that are part of the curve only if the run ends early."""
        self.moments: list[Moment] = []
        self.numbers: list[int] = []
        """Number of the stored copy for each mark; NOT_KEPT or NOT_THERE if no copy is stored."""
        self.weights: list[float] = []
        """Weight of the rank's model in the average of all ranks, by mark."""
        self.trouble: str | None = None
        """Reason why some copies were not kept."""
        self._memory = MEMORY if memory is None else memory
        self._file = tempfile.SpooledTemporaryFile(max_size=self._memory, prefix="grsgd-")
        weakref.finalize(self, self._file.close)

    @classmethod
    def kept(cls, replica: Replica, file, numbers: list[int], weights: list[float]) -> "Snapshots":
        """Return an object that can restore the snapshots of another process. ``file`` has the bytes of the
        snapshots."""
        snapshots = cls(replica)
        snapshots._file, snapshots.numbers, snapshots.weights = file, numbers, weights
        return snapshots

    def share(self) -> int:
        """Keep snapshots in a file that other processes can read, and return the file's descriptor. Call this method
        before the first snapshot."""
        self._file.close()
        self._file = SnapshotFile(self._memory)
        weakref.finalize(self, self._file.close)
        return self._file.fileno()

    def __len__(self) -> int:
        return len(self.moments)

    def take(self, moment: Moment, model: Sequence[torch.Tensor], marks: int = 1, weight: float = 1.0):
        """Keep ``model``, a flat tensor of parameters and a flat tensor of buffers, as the snapshot of the next
        ``marks`` marks."""
        has_content = not model[0].is_meta
        number = self.count if not has_content or self._store(model) else NOT_KEPT
        # This order lets a thread that copies numbers and then moments find a moment for each number.
        self.moments += [moment] * marks
        self.weights += [weight] * marks
        self.numbers += [number] * marks

    def _store(self, model: Sequence[torch.Tensor]) -> bool:
        """Store a copy of the model after the earlier copies; return whether there was room for it."""
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
        """Note that this process has no snapshots of the next ``marks`` marks. At these marks another process held the
        rank; that process has died."""
        self.moments += [Moment(-math.inf, 0, 0, {})] * marks
        self.weights += [0.0] * marks
        self.numbers += [NOT_THERE] * marks

    def pieces(self, number: int) -> Iterator[memoryview]:
        """Yield the bytes of stored copy number ``number`` in pieces that stay in a processor's cache. A piece is valid
        until the next piece is yielded. After `share`, any thread may call this method."""
        begin, end, memory = number * self.bytes, (number + 1) * self.bytes, memoryview(bytearray(PIECE))
        while begin < end:
            size = os.preadv(self._file.fileno(), [memory[: end - begin]], begin)
            if not size:
                raise OSError(f"snapshot {number} ends after {begin - number * self.bytes} of {self.bytes} bytes")
            yield memory[:size]
            begin += size

    def append(self, content: bytes):
        """Store ``content``, the bytes of a copy that another process has kept. The copy's number must already be in
        ``numbers``."""
        self._file.seek(0, 2)
        self._file.write(content)
        self._file.flush()

    @property
    def count(self) -> int:
        """Number of stored copies."""
        return 1 + max((number for number in self.numbers if number >= 0), default=-1)

    @property
    def bytes(self) -> int:
        """Size of a stored copy in bytes."""
        return sum(flat.array.nbytes for flat in (self.replica.params, self.replica.buffers))

    def keep_first(self, marks: int):
        """Forget the snapshots after the first ``marks`` marks."""
        del self.moments[marks:], self.numbers[marks:], self.weights[marks:]

    def warnings(self) -> list[str]:
        missing = self.numbers.count(NOT_KEPT)
        return [f"{missing} of {len(self)} snapshots were not kept: {self.trouble}"] if missing else []

    def restore(self, index: int) -> bool:
        """Copy the snapshot of mark ``index`` into the replica. Return False, and leave the replica as it is, if the
        snapshot is NOT_THERE."""
        if self.numbers[index] == NOT_THERE:
            return False
        flats = (self.replica.params, self.replica.buffers)
        self._file.seek(self.numbers[index] * self.bytes)
        for flat in flats:
            host = np.frombuffer(self._file.read(flat.array.nbytes), str(flat.array.dtype)).copy()
            flat.tensor.copy_(host_tensor(host))
        return True


def common_marks(numbers: list[list[int]], first: int = 0) -> list[int]:
    """Return the marks at which no rank lacks a snapshot (NOT_KEPT), and some rank has another snapshot than at the
    mark before. Ranks without a process at a mark (NOT_THERE) need no snapshot.

    ``numbers`` has `Snapshots.numbers` of each rank. Marks below ``first`` are left out.
    """
    rows = list(zip(*numbers, strict=False))[first:]
    kept = [
        NOT_KEPT not in row and set(row) != {NOT_THERE} and (at == 0 or row != rows[at - 1])
        for at, row in enumerate(rows)
    ]
    return [first + at for at, is_kept in enumerate(kept) if is_kept]


def train_loss(moments: list[Moment]) -> float:
    """Return the training loss of all ranks together at one mark, from the ranks' ``moments``; NaN if no rank has a
    loss."""
    losses = {}
    for moment in moments:
        losses |= moment.train_loss
    return weighted_mean(losses.values())


def weighted_mean(values: Iterable[tuple[float, float]]) -> float:
    """Return the weighted mean of (value, weight) pairs, without the pairs whose value is NaN; NaN if none are left.
    Sums are exactly rounded, so the order of the pairs does not matter."""
    known = [(value * weight, weight) for value, weight in values if not math.isnan(value)]
    return math.fsum(product for product, _ in known) / math.fsum(weight for _, weight in known) if known else math.nan
