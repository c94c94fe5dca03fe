"""Algorithms whose ranks compute parts of one batch that they share."""

from grsgd.algorithms.base import Algorithm


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
    def options_by_mpi(cls, options) -> dict:
        """Return the options that change, by name, so that the same packets travel by MPI, as on a simulated network.
        """
        return {}

    def blocks(self, batch: int) -> list[tuple[int, int, int]]:
        """Return what this rank computes of a common batch of so many samples: (number, begin, end) of each block."""
        raise NotImplementedError(f"{self.name} has a common batch and no blocks()")

    def block_gradient_ready(self, block: int):
        """Take over the gradient of a block, which lies in the replica: the sum over the block's samples, divided by
        the number of samples in the batch. The next block's overwrites it."""
        raise NotImplementedError(f"{self.name} has a common batch and no block_gradient_ready()")
