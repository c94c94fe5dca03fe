"""Base class of algorithms with one batch per step for all ranks, of which each rank computes some blocks."""

from grsgd.algorithms.base import GradientAlgorithm


class CommonBatchAlgorithm(GradientAlgorithm, name=None):
    """Base class of algorithms whose ranks compute the gradients of `blocks` of one common batch. In algorithms that
    are no `CommonBatchAlgorithm` each rank has its own batch."""

    _decides_who_computes = True
    needs_no_gradient = False
    """Whether this rank need not compute its next gradient, because the other ranks have already ended the step. The
    value of ``needs_no_gradient`` is known after `before_backward`."""
    lost: frozenset[int] = frozenset()
    """Ranks that stopped sending messages and without which the run went on. The set ``lost`` is filled after
    training."""

    @classmethod
    def options_by_mpi(cls, options) -> dict:
        """Return, by name, the new values of options that must change so that the same packets are sent by MPI, as on a
        simulated network."""
        return {}

    @property
    def num_blocks(self) -> int:
        """Number of blocks into which the common batch is cut."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define num_blocks")

    def blocks(self, batch: int) -> list[tuple[int, int, int]]:
        """Return this rank's blocks of a common batch of ``batch`` samples: for each block its number, and the begin
        and end of its range of samples."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define blocks()")

    def block_gradient_ready(self, block: int):
        """Copy the gradient of ``block`` from the replica, or use it. The gradient of a block is the sum over the
        block's samples, divided by the number of samples in the batch. The replica's gradient of the next block
        overwrites the gradient of ``block``."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define block_gradient_ready()")
