"""Classes that compute a rank's gradients. `OwnBatches` uses batches of the rank's own samples, and `CommonBatch` uses
the rank's blocks of a batch that all ranks share.

`OwnBatches` and `CommonBatch` store the gradient in the rank's replica, and return the losses. Neither class
communicates.
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
"""Fraction of a gradient's computing time that the forward pass takes. A backward pass has about twice the operations
of a forward pass."""


@dataclass(frozen=True)
class Block:
    """Block of samples: the samples number ``begin`` to ``end - 1`` of each batch. ``batches`` yields the (inputs,
    targets) of the block's samples for each batch.

    A rank that draws its own batches has one block, whose number is the number of the rank.
    """

    number: int
    begin: int
    end: int
    batches: Iterator

    @property
    def samples(self) -> int:
        return self.end - self.begin


class OwnBatches:
    """Computation of gradients from batches of this rank's own samples."""

    def __init__(self, gradient: BatchGradient, block: Block):
        self.gradient, self.blocks = gradient, [block]
        self.samples = block.samples
        """Number of samples from which this rank computes one gradient."""
        self.weights = {block.number: block.samples}
        """Dict from the number of this rank's block to the weight of the block's loss in the mean loss of all ranks."""

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
        """Return an object that computes gradients from the shards that rank ``rank`` holds, from batch number
        ``first`` on. Each shard is held by ``replication`` of the ``workers`` ranks that train."""
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
        """Compute the gradient of the next batch, and store it in the replica. Return the mean loss of the batch in a
        dict, whose key is the number of this rank's block."""
        (block,), gradient, replica = self.blocks, self.gradient, self.gradient.replica
        x, y = next(block.batches)
        count = gradient.task.count(y)  # counted before the batch is copied to a GPU, where count() would wait
        return {block.number: gradient.compute(*to_device(x, y, replica.device, replica.dtype), count)}

    def close(self):
        """End the worker processes that load the data, if any."""
        close(self.blocks)


class CommonBatch:
    """Computation of the gradients of this rank's blocks of a batch that all ranks share. The algorithm receives one
    gradient for each block of samples.

    All random choices for a block of samples depend only on the seed, the number of the block and the step. So all
    ranks that compute the same block get the same gradient.
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
        """Prepare to compute gradients of ``blocks``, the rank's blocks of a common batch with ``batch`` samples.

        ``ready(number)`` is called when the gradient of block ``number`` is complete. ``step`` is the number of the
        first step for which gradients are computed.
        """
        self.gradient, self.blocks, self.batch, self.seed, self.ready = gradient, blocks, batch, seed, ready
        self.samples = sum(block.samples for block in blocks)
        """Number of samples of all blocks that this rank computes in a step. If several ranks compute each block, a
        rank computes more than data.batch_size samples in a step."""
        self.weights = {block.number: block.samples for block in blocks}
        """Dict from the number of each block of this rank to the weight of the block's loss in the mean loss of all
        ranks."""
        self.step = step
        torch.backends.cudnn.deterministic = True  # the gradient of a block must be the same on all ranks, bit for bit

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
        """Return an object that computes gradients of this rank's blocks, which ``algorithm`` chooses, from batch
        number ``first`` on. The common batch of all ranks has ``ranks`` times data.batch_size samples. Only the first
        ``most`` samples of each block are used; if ``most`` is None, all samples are used."""
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
        """Compute a gradient for each of this rank's blocks of the next common batch. Return the blocks' mean losses,
        by the numbers of the blocks."""
        gradient, replica = self.gradient, self.gradient.replica
        losses = {}
        for block in self.blocks:
            x, y = next(block.batches)
            # Each block is weighted by its number of samples, even if samples have different numbers of items (tokens).
            items = gradient.task.count(y) * self.batch / block.samples
            x, y = to_device(x, y, replica.device, replica.dtype)
            seed_torch(replica.device, Purpose.BLOCK_DROPOUT, self.seed, self.step, block.number)
            loss = gradient.compute(x, y, items)
            self.ready(block.number)
            losses[block.number] = loss * self.batch / block.samples
        self.step += 1
        return losses

    def skip(self):
        """Skip the next batch without computing gradients."""
        for block in self.blocks:
            next(block.batches)
        self.step += 1

    def close(self):
        close(self.blocks)


def stages(
    sizes: list[int], ready: Callable[[int], None], begin: float = FORWARD_SHARE
) -> list[tuple[float, Callable[[], None]]]:
    """Return the stages of a simulated gradient computation (`Compute`). A stage is a pair: a fraction of the computing
    time, and a function that calls ``ready(i)`` for a parameter i. The simulated backward pass begins after the
    fraction ``begin`` of the computing time. The simulated backward pass finishes the gradients of the parameters from
    the last to the first, in times proportional to ``sizes``."""
    found, done, total = [], 0, sum(sizes)
    for i in reversed(range(len(sizes))):
        done += sizes[i]
        found.append((begin + (1 - begin) * done / total, partial(ready, i)))
    return found


def begin_of_last_backward(wanted: Gradient, samples: int) -> float:
    """Return the fraction of a gradient's computing time before which no parameter's gradient can be complete.

    The backward pass of the last micro-batch begins after the returned fraction of the time. With ``compile`` the
    result is 1, because a compiled backward pass returns all gradients at its end.
    """
    parts = math.ceil(samples / (wanted.micro_batch or samples))
    if wanted.compile:
        return 1.0
    return FORWARD_SHARE if parts == 1 else 1 - (1 - FORWARD_SHARE) / parts


def close(blocks: list[Block]):
    for block in blocks:
        block.batches.close()


def slice_batches(stream, begin: int, end: int):
    """Yield the elements number ``begin`` to ``end - 1`` of every array that ``stream`` yields."""
    return (batch[begin:end] for batch in stream)


def check_common_batch(config: Config, size: int, algorithm: CommonBatchAlgorithm):
    """Raise ConfigError for settings of the section ``[data]`` that an algorithm with a common batch of ``size``
    samples does not allow."""
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
    """Return the two functions of a training step on one rank, for measurements of their times. The first returned
    function computes the gradient. The second returned function updates the model. Neither of the two functions
    communicates.

    ``on_each_gradient()`` is called each time the backward pass has finished the gradient of a parameter.
    """
    replica = Replica(model, getattr(torch, config.dtype), flat_gradients=False)
    if on_each_gradient is not None:
        replica.on_each_gradient(on_each_gradient)
    gradients = OwnBatches.of(config, dataset, replica, rank=0, workers=1, replication=1)
    optimizer = build_optimizer(config.optimizer, model.parameters())
    return gradients.next_gradient, partial(unwrapped.step, optimizer)
