"""Algorithms whose ranks compute parts of one batch that they share."""

from grsgd.algorithms.base import GradientAlgorithm


class CommonBatchAlgorithm(GradientAlgorithm, name=None):
    """Base class of algorithms whose ranks compute `blocks` of one common batch. In other algorithms each rank has its
    own batch."""

    _decides_who_computes = True
    needs_no_gradient = False
    """Whether this rank is late: the other ranks have already ended the step that this rank would take. This is known
    after `before_backward`."""
    lost: frozenset[int] = frozenset()
    """Ranks that stopped answering and without which the run went on. They are known after training."""

    @classmethod
    def block_arrays(cls, options, ranks: int) -> int:
        """Return how many arrays of the model's size a rank holds only for the gradients of blocks."""
        return 0

    @classmethod
    def options_by_mpi(cls, options) -> dict:
        """Return the changed options, by name, with which the same packets travel by MPI, as on a simulated network."""
        return {}

    @property
    def num_blocks(self) -> int:
        """Number of blocks of all ranks."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define num_blocks")

    def blocks(self, batch: int) -> list[tuple[int, int, int]]:
        """Return this rank's blocks of a common batch of ``batch`` samples, as (number, begin, end)."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define blocks()")

    def block_gradient_ready(self, block: int):
        """Take over the gradient of ``block`` from the replica. The gradient of a block is the sum over the block's
        samples, divided by the number of samples in the batch. The next block overwrites this gradient."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define block_gradient_ready()")
