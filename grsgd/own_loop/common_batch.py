"""Optimizer for users' own loops in which all ranks share each batch, and compute its gradient block by block."""

from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from coding.partition import part
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.models.digests import digests
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from grsgd.own_loop.resume import KEY
from grsgd.own_loop.share_of_data import count_of
from grsgd.seeding import Purpose, seed_torch

BATCHES = "batches"
"""Key of the number of batches in the entry of the algorithm in a ``state_dict()``."""


class CommonBatchOptimizer(DistributedOptimizer):
    """Optimizer with which a user's loop computes the gradient of a batch that all ranks share, block by block
    (`blocks`).

    The ranks exchange gradients at the end of the loop over `blocks`. So a script can clip the gradient directly after
    the loop, and ``step()`` sends nothing.
    """

    algorithm: CommonBatchAlgorithm

    def __init__(self, *arguments):
        super().__init__(*arguments)
        torch.backends.cudnn.deterministic = True  # all ranks get the same gradient of a block, bit for bit
        self._batches = 0
        """Number of batches whose gradients have been computed, including batches before a saved state that was
        loaded."""
        self._has_gradient = False
        """Whether the gradient of a whole batch has been computed since the last step."""

    def blocks(self, samples):
        """Yield this rank's blocks of a batch, as `SharingOptimizer.blocks` does. Within a block, torch draws the same
        random numbers on all ranks.

        After a loop over all blocks, each parameter's gradient is the gradient of the whole batch. If a parameter had a
        gradient before the loop, the gradient of the batch is added to the earlier gradient.

        Raises RuntimeError on all ranks if two ranks compute the same block of different batches. Ranks are compared in
        the first step, and in every 100th step.
        """
        replica, algorithm, samples = self.replica, self.algorithm, count_of(samples)
        if samples < algorithm.num_blocks:
            raise ValueError(f"blocks({samples}): {algorithm.name} cuts the batch into {algorithm.num_blocks} blocks")
        self._check()
        self._begin_step()
        self.times.forward(0)
        before = [None if p.grad is None else p.grad.detach().clone() for p in replica.trained]
        self._has_gradient, found = False, {}
        replica.zero_gradients()
        for number, begin, end in algorithm.blocks(samples):
            with drawing_alike(replica.device, self.seed, self._batches, number):
                yield slice(begin, end)
            with torch.no_grad():
                replica.collect_gradients()
                replica.grads.tensor.mul_((end - begin) / samples)
            if self._compares:
                (found[number],) = digests([replica.grads.tensor])
            self.times.run_update(partial(algorithm.block_gradient_ready, number))
            replica.zero_gradients()
        if self._compares:
            self.driver.run(check_same_batch(self._uncounted_comm, algorithm.num_blocks, found, samples))
        self._run(algorithm.reduce)
        with torch.no_grad():
            for p, earlier in zip(replica.trained, before, strict=True):
                if earlier is not None:
                    p.grad.add_(earlier)
        self._batches += 1
        self._has_gradient = True
        begin, end = part(algorithm.comm.rank, algorithm.comm.size, samples)  # count each sample on one rank only
        self.times.samples_of_step = end - begin

    @property
    def _compares(self) -> bool:
        """Whether the ranks compare their batches in the present step."""
        return self.steps == 0 or self.equal_models.is_due(self.steps + 1)

    def _apply(self):
        if not self._has_gradient:
            raise RuntimeError(
                f"step() without the gradient of a whole batch: {self.algorithm.name} needs a loop "
                "`for block in optimizer.blocks(len(x)):` over all blocks before each step"
            )
        self._has_gradient = False
        self.times.run_update(self.algorithm.update)

    def state_dict(self, *, algorithm: bool = True):
        saved = super().state_dict(algorithm=algorithm)
        if KEY in saved:
            saved[KEY][BATCHES] = self._batches
        return saved

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self._batches = state_dict.get(KEY, {}).get(BATCHES, 0)


@contextmanager
def drawing_alike(device: torch.device, seed: int, batch: int, block: int):
    """Seed torch's random generators for the code in the ``with`` block. The seed depends on the number ``batch`` of
    the batch and the number ``block`` of the block in the batch. Afterwards, restore the generators' earlier state."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        seed_torch(device, Purpose.BLOCK_DROPOUT, seed, batch, block)
        yield


def check_same_batch(comm, num_blocks: int, found: dict[int, int], samples: int):
    """Schedule that raises RuntimeError on all ranks if the ranks have given different batches to
    `CommonBatchOptimizer.blocks`.

    ``num_blocks`` is the number of blocks of all ranks. ``found`` maps the number of each of this rank's blocks to the
    digest of the block's gradient. ``samples`` is the number of samples of this rank's batch.
    """
    mine, holders = np.zeros((2, num_blocks + 1))
    mine[-1], holders[-1] = samples, 1
    for block, digest in found.items():
        mine[block], holders[block] = digest, 1
    sums = np.concatenate([mine, holders])
    yield from halving_doubling_allreduce(comm, sums)
    is_other = holders * (mine * sums[num_blocks + 1 :] != sums[: num_blocks + 1])
    yield from halving_doubling_allreduce(comm, is_other)
    if is_other[-1]:
        raise RuntimeError(f"{samples} samples in blocks() on rank {comm.rank}, another number on other ranks: {SAME}")
    if is_other.any():
        block = int(np.flatnonzero(is_other)[0])
        raise RuntimeError(f"the ranks have computed different gradients of block {block} of the batch: {SAME}")


SAME = "all ranks must give blocks() the same batches: seed shuffling alike on all ranks, and do not use grsgd.shard()"
