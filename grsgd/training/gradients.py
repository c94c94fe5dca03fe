"""Sources of a rank's gradients: batches of the rank's own, or the rank's blocks of a batch that all ranks share.

Both sources leave the gradient in the replica and return the losses. Neither source communicates.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.config import Config
from grsgd.config.sections import Gradient
from grsgd.data import Dataset
from grsgd.data.shards import held_by, index_stream, shards
from grsgd.errors import ConfigError
from grsgd.models.replica import Replica, to_device
from grsgd.seeding import Purpose, seed_torch
from grsgd.training import unwrapped
from grsgd.training.batch_gradient import BatchGradient
from grsgd.training.optimizer import build_optimizer

FORWARD_SHARE = 1 / 3
"""Share of the forward pass in the time of a gradient: a backward pass has about twice the operations of a forward
pass."""


@dataclass(frozen=True)
class Block:
    """Samples ``begin`` to ``end`` of each batch; ``batches`` yields them as (images, labels).

    A rank with batches of its own has one block, whose number is the rank.
    """

    number: int
    begin: int
    end: int
    batches: Iterator

    @property
    def samples(self) -> int:
        return self.end - self.begin


class OwnBatches:
    """Gradients of batches that this rank alone computes."""

    def __init__(self, gradient: BatchGradient, block: Block):
        self.gradient, self.blocks = gradient, [block]
        self.samples = block.samples
        """Number of samples of one gradient."""
        self.weights = {block.number: block.samples}
        """Weight of each block's loss in the loss of all ranks."""

    @classmethod
    def of(
        cls,
        config: Config,
        dataset: Dataset,
        replica: Replica,
        rank: int,
        workers: int,
        replication: int,
        first: int = 0,
    ):
        """Return a source of gradients of this rank's shards, from batch number ``first`` on. Each shard is held by
        ``replication`` of the ``workers`` ranks that train."""
        seed_torch(replica.device, Purpose.DROPOUT, config.seed, rank)
        parts = shards(dataset.train.labels, workers, alpha=config.data.alpha, seed=config.seed)
        held = np.concatenate([parts[k] for k in held_by(rank, workers, replication)])
        stream = index_stream(held, config.data.batch_size, seed=config.seed, rank=rank, first=first)
        batches = dataset.train.batches(
            stream, augment=config.data.augment, seed=(config.seed, rank), workers=config.data.workers, first=first
        )
        gradient = BatchGradient(config.gradient, replica, config.make_task())
        return cls(gradient, Block(rank, 0, config.data.batch_size, batches))

    def next_gradient(self) -> dict[int, float]:
        """Leave the gradient of the next batch in the replica. Return the batch's mean loss, under the number of this
        rank's block."""
        (block,), gradient, replica = self.blocks, self.gradient, self.gradient.replica
        x, y = next(block.batches)
        count = gradient.task.count(y)  # y is counted before it is copied to a GPU, where counting would wait
        return {block.number: gradient.compute(*to_device(x, y, replica.device, replica.dtype), count)}

    def close(self):
        """End the processes that decode images, if any."""
        close(self.blocks)


class CommonBatch:
    """Gradients of this rank's blocks of a batch that all ranks share. The algorithm gets the gradients block by block.

    All random choices depend only on the seed, the block and the step. So all ranks that compute a block get the same
    gradient.
    """

    def __init__(
        self,
        gradient: BatchGradient,
        blocks: list[Block],
        batch: int,
        seed: int,
        ready: Callable[[int], None],
        step: int = 0,
    ):
        """``batch`` is the number of samples of all blocks of all ranks together. ``ready`` is called with a block's
        number when the block's gradient is complete. ``step`` is the number of the first step."""
        self.gradient, self.blocks, self.batch, self.seed, self.ready = gradient, blocks, batch, seed, ready
        self.samples = sum(block.samples for block in blocks)
        """Number of samples of one gradient of this rank. If several ranks compute each block, this number is larger
        than data.batch_size."""
        self.weights = {block.number: block.samples for block in blocks}
        """Weight of each block's loss in the loss of all ranks."""
        self.step = step
        torch.backends.cudnn.deterministic = True  # a block's gradient must be the same on all ranks, bit for bit

    @classmethod
    def of(
        cls,
        config: Config,
        dataset: Dataset,
        replica: Replica,
        algorithm: CommonBatchAlgorithm,
        ranks: int,
        first: int = 0,
        most: int | None = None,
    ):
        """Return a source of gradients of the algorithm's blocks, from batch number ``first`` on. A batch has ``ranks``
        times data.batch_size samples. Only the first ``most`` samples of each block are used; if ``most`` is None, all
        samples are used."""
        size = ranks * config.data.batch_size
        check_common_batch(config, size, algorithm)
        everything = np.arange(len(dataset.train))
        blocks = []
        for number, begin, end in algorithm.blocks(size):
            end = end if most is None else min(end, begin + most)
            stream = index_stream(everything, size, seed=config.seed, rank=0, first=first)
            batches = dataset.train.batches(
                slice_batches(stream, begin, end), augment=config.data.augment, seed=(config.seed, number), first=first
            )
            blocks.append(Block(number, begin, end, batches))
        gradient = BatchGradient(config.gradient, replica, config.make_task())
        return cls(gradient, blocks, size, config.seed, algorithm.block_gradient_ready, first)

    def next_gradient(self) -> dict[int, float]:
        """Compute the gradients of the next batch's blocks. Return each block's mean loss, by the block's number."""
        gradient, replica = self.gradient, self.gradient.replica
        losses = {}
        for block in self.blocks:
            x, y = next(block.batches)
            # Samples of all blocks have the same weight, however many items (tokens) a sample has.
            items = gradient.task.count(y) * self.batch / block.samples
            x, y = to_device(x, y, replica.device, replica.dtype)
            seed_torch(replica.device, Purpose.BLOCK_DROPOUT, self.seed, self.step, block.number)
            loss = gradient.compute(x, y, items)
            self.ready(block.number)
            losses[block.number] = loss * self.batch / block.samples
        self.step += 1
        return losses

    def skip(self):
        """Skip the next batch, without computing its gradients."""
        for block in self.blocks:
            next(block.batches)
        self.step += 1

    def close(self):
        close(self.blocks)


def stages(
    sizes: list[int], ready: Callable[[int], None], begin: float = FORWARD_SHARE
) -> list[tuple[float, Callable[[], None]]]:
    """Return the stages of a `Compute` at which ``ready(i)`` is called for each parameter. The stages model a
    backward pass that begins at the share ``begin`` of the time. It finishes the parameters from the last to the first,
    in times proportional to their ``sizes``."""
    found, done, total = [], 0, sum(sizes)
    for i in reversed(range(len(sizes))):
        done += sizes[i]
        found.append((begin + (1 - begin) * done / total, partial(ready, i)))
    return found


def begin_of_last_backward(wanted: Gradient, samples: int) -> float:
    """Return the share of a gradient's time after which the first parameter's gradient can be complete.

    The share ends where the backward pass of the last micro-batch begins. It is 1 with ``compile``: a compiled backward
    pass hands over all gradients at its end.
    """
    parts = math.ceil(samples / (wanted.micro_batch or samples))
    if wanted.compile:
        return 1.0
    return FORWARD_SHARE if parts == 1 else 1 - (1 - FORWARD_SHARE) / parts


def close(blocks: list[Block]):
    for block in blocks:
        block.batches.close()


def slice_batches(stream, begin: int, end: int):
    """Yield elements ``begin`` to ``end`` of every array of ``stream``."""
    return (batch[begin:end] for batch in stream)


def check_common_batch(config: Config, size: int, algorithm: CommonBatchAlgorithm):
    """Raise ConfigError for settings that a common batch of ``size`` samples does not allow."""
    name = algorithm.name
    if config.data.alpha is not None:
        raise ConfigError(f"data.alpha = {config.data.alpha}: {name} has no shards, all ranks share every batch")
    if config.data.replication > 1:
        raise ConfigError(f"data.replication = {config.data.replication}: {name} has no shards; allowed: 1")
    if config.data.workers:
        raise ConfigError(f"data.workers = {config.data.workers}: {name} reads its blocks itself; allowed: 0")
    if any(begin == end for _, begin, end in algorithm.blocks(size)):
        raise ConfigError(
            f"data.batch_size = {config.data.batch_size}: {name} with these options cuts the common batch of "
            f"{size} samples into more than {size} blocks"
        )


def step_alone(
    config: Config, dataset: Dataset, model: torch.nn.Module, on_each_gradient: Callable[[], None] | None = None
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return two functions, so that their times can be measured. The first computes the gradient of a training step of
    one rank, the second updates the model. Neither function communicates.

    ``on_each_gradient`` is called each time the backward pass has finished the gradient of a parameter.
    """
    replica = Replica(model, getattr(torch, config.dtype), flat_gradients=False)
    if on_each_gradient is not None:
        replica.on_each_gradient(on_each_gradient)
    gradients = OwnBatches.of(config, dataset, replica, rank=0, workers=1, replication=1)
    optimizer = build_optimizer(config.optimizer, model.parameters())
    return gradients.next_gradient, partial(unwrapped.step, optimizer)
