"""Base class of optimizers that tell a user's loop the share of the data whose gradients this rank computes."""

import operator
from collections.abc import Iterable, Iterator
from typing import TypeVar

from coding.partition import part
from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.central import workers_of
from grsgd.own_loop.wrapping import WrappingOptimizer

Batch = TypeVar("Batch")


class SharingOptimizer(WrappingOptimizer):
    """Optimizer that says on which data this rank trains, so that one training script works with every algorithm."""

    algorithm: Algorithm

    @property
    def workers(self) -> int:
        """Number of ranks that train. Ranks with higher numbers do not train, and only serve the training ranks."""
        return workers_of(type(self.algorithm), self.algorithm.options, self.algorithm.comm.size)

    def batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield ``batches``, an iterable such as a DataLoader, on a rank that trains.

        A serving rank gets no batch from this method. A serving rank serves the training ranks until all training ranks
        have ended their loop over ``batches``. All ranks must make the same calls of this method.
        """
        yield from batches

    def blocks(self, samples: int) -> Iterator[slice]:
        """Yield, as slices, the blocks of a batch whose gradients this rank computes. All ranks must have the same
        batch.

        ``samples`` is the number of samples of the batch. For each block, the script computes the block's mean loss and
        calls ``backward()``. With ``cssgd`` and ``ssgd``, a rank may compute several blocks, and several ranks may
        compute the same block. After the loop over the blocks, the gradient is the gradient of the whole batch. With
        algorithms other than ``cssgd`` and ``ssgd``, the batch is cut into one block per worker, and the blocks have
        nearly equal sizes.

        Raises ValueError for a batch with too few samples, and TypeError if ``samples`` is no whole number.
        """
        begin, end = part(self.algorithm.comm.rank, self.workers, count_of(samples))
        if begin == end:
            raise ValueError(f"blocks({samples}): too few samples for {self.workers} ranks")
        yield slice(begin, end)


def count_of(samples) -> int:
    """Return ``samples`` as an int, the number of samples of a batch. Raises TypeError for another type, and ValueError
    below 1."""
    try:
        count = operator.index(samples if not isinstance(samples, bool) else "")
    except TypeError:
        kind = type(samples).__name__
        raise TypeError(f"blocks(): {kind} is no number of samples: give it len() of the batch") from None
    if count < 1:
        raise ValueError(f"blocks({count}): the number of samples must be 1 or more")
    return count
