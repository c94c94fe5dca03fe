"""Share of the data whose gradients a rank computes, in loops that ask their optimizer for the share."""

import operator
from collections.abc import Iterable, Iterator
from typing import TypeVar

from coding.partition import part
from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.central import workers_of
from grsgd.own_loop.wrapping import WrappingOptimizer

Batch = TypeVar("Batch")


class SharingOptimizer(WrappingOptimizer):
    """Optimizer that determines on which data a loop trains, so that one script works with every algorithm."""

    algorithm: Algorithm

    @property
    def workers(self) -> int:
        """Number of ranks that train, the ranks with the lowest numbers; other ranks only serve them."""
        return workers_of(type(self.algorithm), self.algorithm.options, self.algorithm.comm.size)

    def batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield ``batches``, an iterable such as a DataLoader, on a rank that trains.

        A rank that only serves gets no batch: it serves the other ranks until all of them have ended their loop over
        ``batches``. All ranks must make the same calls of this method.
        """
        yield from batches

    def blocks(self, samples: int) -> Iterator[slice]:
        """Yield the blocks of a batch whose gradients this rank computes, as slices; all ranks have the same batch.

        ``samples`` is the number of samples of the batch. In the loop the script computes the mean loss of each block,
        and calls ``backward()``. With ``cssgd`` and ``ssgd`` several blocks may be this rank's, and several ranks may
        compute a block; after the loop the gradient is the gradient of the whole batch. With other algorithms rank i of
        n workers has one block, part i of n. All parts have nearly the same size.

        Raises ValueError for a batch with too few samples, and TypeError if ``samples`` is no whole number.
        """
        begin, end = part(self.algorithm.comm.rank, self.workers, count_of(samples))
        if begin == end:
            raise ValueError(f"blocks({samples}): too few samples for {self.workers} ranks")
        yield slice(begin, end)


def count_of(samples) -> int:
    """Return the number of samples of a batch; raises TypeError, and ValueError below 1."""
    try:
        count = operator.index(samples if not isinstance(samples, bool) else "")
    except TypeError:
        kind = type(samples).__name__
        raise TypeError(f"blocks(): {kind} is no number of samples: give it len() of the batch") from None
    if count < 1:
        raise ValueError(f"blocks({count}): the number of samples must be 1 or more")
    return count
