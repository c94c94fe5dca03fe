"""Base class of algorithms in which all ranks share one batch per step, and each rank computes the gradients of some
blocks of the batch."""

from grsgd.algorithms.base import GradientAlgorithm


class CommonBatchAlgorithm(GradientAlgorithm, name=None):
    """Base class of algorithms whose ranks compute the gradients of `blocks`, which are parts of a batch that all ranks
    share. In algorithms that are not derived from `CommonBatchAlgorithm` each rank has its own batch."""

    _decides_who_computes = True
    needs_no_gradient = False
    """Whether this rank may skip its next gradient, because the other ranks have already ended the step. The method
    `before_backward` decides the value of ``needs_no_gradient`` in each step."""
    lost: frozenset[int] = frozenset()
    """Ranks that stopped sending messages, so that the run went on without them. The set ``lost`` is complete only
    after training."""

    @classmethod
    def options_by_mpi(cls, options) -> dict:
        """Return, by name, new values of options with which MPI sends the packets in place of IP multicast, so
        that the run can be simulated."""
        return {}

    @property
    def num_blocks(self) -> int:
        """Number of blocks into which the batch of all ranks is cut."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define num_blocks")

    def blocks(self, batch: int) -> list[tuple[int, int, int]]:
        """Return this rank's blocks of a batch of ``batch`` samples that all ranks share: for each block its number,
        and the begin and end of its range of samples."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define blocks()")

    def block_gradient_ready(self, block: int):
        """Process the gradient of ``block``, which the replica holds at the time of the call. The gradient of a block
        is the sum over the block's samples, divided by the number of samples in the batch. After the call, the gradient
        of the next block overwrites the gradient of ``block`` in the replica."""
        raise NotImplementedError(f"{self.name}: algorithms with a common batch must define block_gradient_ready()")
