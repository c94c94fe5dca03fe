"""Algorithms whose ranks compute parts of one batch that they share."""

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

from grsgd.algorithms.base import Algorithm


class Load(NamedTuple):
    """The work of the ranks in a run that is not decided yet.

    Parameters
    ----------
    batch
        Samples of the common batch.
    gradient
        ``gradient(samples)`` returns what computes so many samples, at most, of each of this rank's blocks.
    slowdown
        By which factor the configuration makes each rank slower: of shape [ranks].
    delays
        The seconds by which it prolongs steps besides: of shape [steps, ranks].
    """

    batch: int
    gradient: Callable[[int], Callable[[], object]]
    slowdown: np.ndarray
    delays: np.ndarray


class CommonBatchAlgorithm(Algorithm, name=None):
    """An algorithm whose ranks compute `blocks` of one common batch, instead of each rank a batch of its own."""

    _decides_who_computes = True
    needs_no_gradient = False
    """After `before_backward`, whether this rank is late: the others have ended the step that it is about to take."""
    lost: frozenset[int] = frozenset()
    """After training, ranks that do not answer any more and were left behind."""

    @classmethod
    def block_arrays(cls, options, ranks: int) -> int:
        """Return how many arrays of the model's size a rank holds for gradients of blocks alone."""
        return 0

    @classmethod
    def trial_options(cls, options):
        """Return options to measure with, if `choose_options` must decide some of ``options``; else None."""
        return None

    def choose_options(self, options, load: Load) -> Generator:
        """Schedule, on all ranks at once, of an object with `trial_options`: decide what ``options`` leave open.

        Returns the options that change, by name, and why so.
        """
        raise NotImplementedError(f"{self.name} has trial_options() and no choose_options()")

    def blocks(self, batch: int) -> list[tuple[int, int, int]]:
        """Return what this rank computes of a common batch of so many samples: (number, begin, end) of each block."""
        raise NotImplementedError(f"{self.name} has a common batch and no blocks()")

    def block_gradient_ready(self, block: int):
        """Take over the gradient of a block, which lies in the replica: the sum over the block's samples, divided by
        the number of samples in the batch. The next block's overwrites it."""
        raise NotImplementedError(f"{self.name} has a common batch and no block_gradient_ready()")
