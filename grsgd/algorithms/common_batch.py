"""Algorithms with one batch per step for all ranks: each rank computes parts of this batch."""

from grsgd.algorithms.base import GradientAlgorithm


class CommonBatchAlgorithm(GradientAlgorithm, name=None):
    """Base class of algorithms whose ranks compute `blocks` of one common batch. In other algorithms each rank has its
    own batch."""

    _decides_who_computes = True
    needs_no_gradient = False
    """Whether this rank need not compute its next gradient: the other ranks have already ended the step that needs it.
    The value is known after `before_backward`."""
    lost: frozenset[int] = frozenset()
    """Ranks that stopped answering, if the run went on without these ranks. The set is filled after training."""

    @classmethod
    def options_by_mpi(cls, options) -> dict:
        """Return, by name, the options that must change so that the same packets are sent by MPI, as on a simulated
        network."""
        return {}

    @property
    def num_blocks(self) -> int:
        """Number of blocks into which the common batch is cut."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define num_blocks")

    def blocks(self, batch: int) -> list[tuple[int, int, int]]:
        """Return this rank's blocks of a common batch of ``batch`` samples: the number of each block, and the begin and
        end of its samples."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define blocks()")

    def block_gradient_ready(self, block: int):
        """Take over the gradient of ``block`` from the replica. The gradient of a block is the sum over the block's
        samples, divided by the number of samples in the batch. The replica's gradient of the next block overwrites the
        gradient of ``block``."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define block_gradient_ready()")
