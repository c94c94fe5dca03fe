"""Timed copies of a replica, kept during training and evaluated after it.

Evaluation during training would disturb the measurement: it takes time, and asynchronous ranks would have to wait.
"""

import math
import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from grsgd.models.replica import Replica
from grsgd.training.snapshot_file import SnapshotFile

MEMORY = 256 * 2**20
"""Number of bytes of snapshots that a process keeps in memory; further snapshots go to a temporary file."""

NOT_KEPT, NOT_THERE = -1, -2
"""Numbers of missing copies: there was no room (NOT_KEPT), or the process did not hold the rank (NOT_THERE)."""


@dataclass(frozen=True)
class Moment:
    """Time of a snapshot in seconds since the start, the rank's step, the samples of all ranks, and the rank's training
    loss since the last snapshot. The loss has, by block of the batch, its mean and its weight in the loss of all ranks.

    The blocks of ranks with batches of their own are numbered by rank; a block that several ranks compute has one loss.
    """

    time: float
    step: int
    samples: int
    train_loss: dict[int, tuple[float, float]]


class Snapshots:
    """Snapshots of one rank, one per mark.

    A rank that passes several marks in one step has one snapshot for all of them. So number k is the model of every
    rank at mark k.
    """

    def __init__(self, replica: Replica, memory: int | None = None, early: int = 0):
        self.replica = replica
        self.early = early
        """Number of the first marks that count only in a run that ends early."""
        self.moments: list[Moment] = []
        self.numbers: list[int] = []
        """Number of the stored copy for each mark; NOT_KEPT or NOT_THERE if there is none."""
        self.weights: list[float] = []
        """Weight of the rank's model in the average of all ranks, by mark."""
        self.trouble: str | None = None
        """Reason why some copies were not kept."""
        self._memory = MEMORY if memory is None else memory
        self._file = tempfile.SpooledTemporaryFile(max_size=self._memory, prefix="grsgd-")
        weakref.finalize(self, self._file.close)

    @classmethod
    def kept(cls, replica: Replica, file, numbers: list[int], weights: list[float]) -> "Snapshots":
        """Return snapshots that another process has taken, to restore them; ``file`` has their bytes."""
        snapshots = cls(replica)
        snapshots._file, snapshots.numbers, snapshots.weights = file, numbers, weights
        return snapshots

    def share(self) -> int:
        """Keep snapshots in a file that other processes can read; call this method before the first snapshot. Returns
        the descriptor."""
        self._file.close()
        self._file = SnapshotFile(self._memory)
        weakref.finalize(self, self._file.close)
        return self._file.fileno()

    def __len__(self) -> int:
        return len(self.moments)

    def take(self, moment: Moment, model: Sequence[torch.Tensor], marks: int = 1, weight: float = 1.0):
        """Keep the parameters and buffers of ``model``, both flat, as its snapshot at the next ``marks`` marks."""
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
                self._file.write(tensor.cpu().numpy().data)
            self._file.flush()
            return True
        except OSError as error:  # $TMPDIR is full: the curve of the run gets fewer points
            self.trouble = f"{tempfile.gettempdir()}: {error.strerror}"
            self._file.truncate(begin)
            return False

    def skip(self, marks: int):
        """Take no snapshot at the next ``marks`` marks: another process, which has died, held the rank then."""
        self.moments += [Moment(-math.inf, 0, 0, {})] * marks
        self.weights += [0.0] * marks
        self.numbers += [NOT_THERE] * marks

    def content(self, number: int) -> bytes:
        """Return the bytes of stored copy ``number``; any thread may call it after `share`."""
        return os.pread(self._file.fileno(), self.bytes, number * self.bytes)

    def append(self, content: bytes):
        """Store ``content``, a copy of the model that another process has kept; the number of the copy is in `numbers`
        already."""
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
        """Put snapshot ``index`` back into the replica; return False if it is NOT_THERE, with weight 0."""
        if self.numbers[index] == NOT_THERE:
            return False
        flats = (self.replica.params, self.replica.buffers)
        self._file.seek(self.numbers[index] * self.bytes)
        for flat in flats:
            host = np.frombuffer(self._file.read(flat.array.nbytes), str(flat.array.dtype)).copy()
            flat.tensor.copy_(torch.from_numpy(host))
        return True


def common_marks(numbers: list[list[int]], first: int = 0) -> list[int]:
    """Return the marks at which every rank has kept a snapshot, and some rank a different one than at the mark before.
    Ranks that had no process at a mark need no snapshot of it.

    ``numbers`` are `Snapshots.numbers` of each rank; ``first`` is the first mark that counts.
    """
    rows = list(zip(*numbers, strict=False))[first:]
    kept = [
        NOT_KEPT not in row and set(row) != {NOT_THERE} and (at == 0 or row != rows[at - 1])
        for at, row in enumerate(rows)
    ]
    return [first + at for at, is_kept in enumerate(kept) if is_kept]


def train_loss(moments: list[Moment]) -> float:
    """Return the training loss of all ranks together, at one mark; NaN if there is none."""
    losses = {}
    for moment in moments:
        losses |= moment.train_loss
    return weighted_mean(losses.values())


def weighted_mean(values: Iterable[tuple[float, float]]) -> float:
    """Return the mean of (value, weight) pairs without NaN values, exactly rounded except for one division."""
    known = [(value * weight, weight) for value, weight in values if not math.isnan(value)]
    return math.fsum(product for product, _ in known) / math.fsum(weight for _, weight in known) if known else math.nan
