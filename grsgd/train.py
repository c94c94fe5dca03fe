"""The training loop of one rank. It knows no algorithm by name, and nothing of MPI: it is a schedule itself."""

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from grsgd import data, learning_rate, models
from grsgd.algorithms import ALGORITHMS
from grsgd.comm.allreduce import broadcast
from grsgd.comm.control import Control, Stopped
from grsgd.comm.pollables import Compute, Delay
from grsgd.config import ENDS, Config, ConfigError
from grsgd.data import Dataset
from grsgd.data.part import part_of
from grsgd.data.shards import held_by, index_stream, shards
from grsgd.evaluate import Quality, quality
from grsgd.progress import FreeRunning, Lockstep, Progress
from grsgd.replica import Replica
from grsgd.snapshots import Moment, Snapshots
from grsgd.stragglers import DelayModel


@dataclass
class Measured:
    """What one rank measured; all times in seconds."""

    steps: int = 0
    samples: int = 0
    compute_seconds: float = 0.0
    communicate_seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class Block:
    """Samples ``begin`` to ``end`` of each batch, which ``batches`` yields, as (images, labels), one after the other.

    A rank with batches of its own has one block, whose number is the rank.
    """

    number: int
    begin: int
    end: int
    batches: Iterator

    @property
    def samples(self) -> int:
        return self.end - self.begin

    def key(self, seed: int, step: int) -> int:
        """A seed for what is random in a step, the same wherever the block is computed."""
        return int(np.random.SeedSequence((seed, step, self.number)).generate_state(1, np.uint64)[0])


def cut(stream, begin: int, end: int):
    """Elements ``begin`` to ``end`` of every array of ``stream``."""
    return (batch[begin:end] for batch in stream)


def seed_generators(seed: int, device: torch.device):
    """Seed what a model on ``device`` draws from. `torch.manual_seed` does so for every kind of device there may be and
    formats the stack for each that has not been used, which takes longer than the gradient of a small block."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


class Trainer:
    """One rank's part of a run: ``train()``, then ``evaluate()``, both schedules.

    ``comm`` carries the algorithm's messages; ``aside`` everything else. ``model`` lies on the device it is to be
    trained on. Raises ConfigError or DataError.
    """

    def __init__(self, config: Config, dataset: Dataset, model: torch.nn.Module, comm, aside, control: Control, driver):
        self.config, self.comm, self.aside, self.control, self.driver = config, comm, aside, control, driver
        self.data = dataset
        rank, n = comm.rank, comm.size
        options = config.algorithm_options
        algorithm = ALGORITHMS[config.algorithm.name]
        self.workers = algorithm.workers(options, n)
        """How many ranks train."""
        flat_gradients = algorithm.sends_gradients and (n > 1 or not algorithm.for_any_loop)
        self.replica = Replica(model, getattr(torch, config.dtype), flat_gradients)
        seed_generators(config.seed + rank, self.replica.device)  # dropout, if any, differs between ranks
        optimizer = config.optimizer.build(model.parameters())
        self.algorithm = algorithm(options, self.replica, optimizer, comm, aside, driver, config.seed)
        torch.backends.cudnn.deterministic = algorithm.shared_batch  # all get the same of a block, bit for bit
        if algorithm.shared_batch:
            self.blocks = self.blocks_of_common_batch()
        elif not self.algorithm.trains:
            self.blocks = []
        else:
            self.blocks = [Block(rank, 0, config.data.batch_size, self.own_batches())]
        self.samples_computed = sum(block.samples for block in self.blocks)
        """In a step; with redundancy more than data.batch_size."""
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.delays = DelayModel(config.stragglers, rank, config.seed)
        self.end = self.samples_at_end()
        if algorithm.counts_steps:
            kind, self.algorithm.before_update = Progress, self.follow_and_set_learning_rate
        else:
            kind = Lockstep if self.algorithm.synchronous else FreeRunning
        self.progress = kind(aside, driver, self.end, config.train.seconds, config.train.snapshots)
        self.measured = Measured()
        self.snapshots = Snapshots(self.replica)
        self.losses: dict[int, list[float]] = {}
        """By number of the block, since the last snapshot."""
        self.on_step = lambda loss: None
        """Called with the loss (None if there is none) after each step: progress lines."""

    def own_batches(self):
        """Batches of this rank's shards."""
        config, rank, n = self.config, self.comm.rank, self.workers
        parts = shards(self.data.train.labels, n, alpha=config.data.alpha, seed=config.seed)
        held = np.concatenate([parts[k] for k in held_by(rank, n, config.algorithm_options.rho)])
        stream = index_stream(held, config.data.batch_size, seed=config.seed, rank=rank)
        return self.data.train.batches(
            stream, augment=config.data.augment, seed=(config.seed, rank), workers=config.data.workers
        )

    def blocks_of_common_batch(self) -> list[Block]:
        """What this rank computes of the batches that all ranks share, of n times data.batch_size samples each.

        Everything is keyed by the block, so that all ranks that compute a block get the same gradient.
        """
        config, name = self.config, self.config.algorithm.name
        if config.data.alpha is not None:
            raise ConfigError(f"data.alpha = {config.data.alpha}: {name} has no shards, all ranks share every batch")
        if config.data.workers:
            raise ConfigError(f"data.workers = {config.data.workers}: {name} reads its blocks itself; allowed: 0")
        size = self.comm.size * config.data.batch_size
        everything = np.arange(len(self.data.train))
        blocks = []
        for number, begin, end in self.algorithm.blocks(size):
            if begin == end:
                raise ConfigError(
                    f"data.batch_size = {config.data.batch_size}: {name} with these options cuts the common batch of "
                    f"{size} samples into more blocks than that"
                )
            stream = cut(index_stream(everything, size, seed=config.seed, rank=0), begin, end)
            batches = self.data.train.batches(stream, augment=config.data.augment, seed=(config.seed, number))
            blocks.append(Block(number, begin, end, batches))
        return blocks

    def samples_at_end(self) -> int | None:
        """Samples of all ranks together after which the run ends; None if seconds decide."""
        train = self.config.train
        if train.epochs is not None:
            return math.ceil(train.epochs * len(self.data.train))
        if train.steps is not None:
            return train.steps * self.workers * self.config.data.batch_size
        return train.samples

    def same_start(self):
        """Schedule: give all ranks the model of rank 0."""
        for array in (self.replica.params.array, self.replica.buffers.array):
            yield from broadcast(self.aside, array)
        self.replica.note_buffers()

    def train(self):
        """Schedule: train, drain, average. Returns why it ended; after an early end the replicas stay as they are."""
        config = self.config
        try:
            self.algorithm.start()
            self.progress.start()
            if self.algorithm.in_background and self.comm.size > 1 and self.driver.progress == "inline":
                self.replica.on_each_gradient(self.driver.poll)
            yield from self.steps() if self.algorithm.trains else self.accompany()
            yield from self.algorithm.drain() or ()  # tells the others that this rank has ended: they may wait for it
            if self.comm.rank in self.algorithm.lost:
                raise Stopped("the others went on without this rank, which was silent for too long")
            yield from self.progress.finish()
            self.take_snapshot(config.train.snapshots - len(self.snapshots))
            yield from self.algorithm.average()
        except Stopped as stopped:
            self.driver.abandon()  # what is under way in the background must not change the replica any more
            if len(self.snapshots) < config.train.snapshots:  # else the run was over but for the average
                self.take_snapshot()
            return str(stopped)
        finally:
            for block in self.blocks:
                block.batches.close()  # ends the processes that decode images, if any
        return next(key for key in ENDS if getattr(config.train, key) is not None)

    def steps(self):
        """Schedule: step after step until the run ends."""
        for step in itertools.count():
            if self.algorithm.counts_steps:
                yield from self.communicate(self.algorithm.catch_up)
                self.follow()
            ended, marks = yield from self.progress.decide()
            if marks:
                self.take_snapshot(marks)
            if ended or self.algorithm.evicted:
                return
            yield from self.step(step)
            self.measured.steps += 1
            self.measured.samples += self.config.data.batch_size
            self.progress.advance(self.config.data.batch_size)
            self.control.watch()

    def accompany(self):
        """Schedule, on a rank that does not train: take snapshots until the others have ended."""
        while not (yield from self.algorithm.accompany()):
            self.follow()
            _, marks = yield from self.progress.decide()
            if marks:
                self.take_snapshot(marks)
            self.control.watch()

    def follow(self):
        """Learn from the algorithm how far the run is."""
        self.progress.samples = self.algorithm.steps * self.config.data.batch_size

    def follow_and_set_learning_rate(self):
        self.follow()
        self.set_learning_rate()

    def step(self, step: int):
        """Schedule: one step, with its time split into computing, communicating and waiting."""
        clock, measured, algorithm = self.driver.clock, self.measured, self.algorithm
        if not algorithm.counts_steps:
            self.set_learning_rate()
        self.driver.poll()
        yield from self.communicate(algorithm.before_backward)
        begin = clock()
        gradient = Compute(self.gradient, self.samples_computed / self.config.data.batch_size)
        yield gradient
        losses, loss = gradient.value, None
        delay = self.delays.delay(step, gradient.seconds)
        if delay > 0:
            yield Delay(delay)
        measured.compute_seconds += clock() - begin
        if losses:  # None where time alone is simulated; empty on a rank without a block
            loss = sum(losses[block.number] * block.samples for block in self.blocks) / self.samples_computed
            if not math.isfinite(loss):
                self.control.stop(f"non-finite loss ({loss}) on rank {self.comm.rank} at step {step}")
            for number, value in losses.items():
                self.losses.setdefault(number, []).append(value)
        yield from self.communicate(algorithm.step)
        self.on_step(loss)

    def communicate(self, hook):
        """Schedule: one of the algorithm's hooks, timed. Waiting is what the driver says it waited; updates, those that
        this rank's server makes in the meantime as well, are computing."""
        clock, measured, algorithm = self.driver.clock, self.measured, self.algorithm
        begin, waited, updated = clock(), self.driver.wait_seconds, algorithm.update_seconds
        yield from hook() or ()
        waited = self.driver.wait_seconds - waited
        busy = max(clock() - begin - waited, 0.0)  # rounding, in simulated time
        updated = min(algorithm.update_seconds - updated, busy)  # what a thread has updated took none of this time
        measured.wait_seconds += waited
        measured.compute_seconds += updated
        measured.communicate_seconds += busy - updated

    def gradient(self) -> dict[int, float]:
        """The mean loss of the next batch, by number of the block. The gradient is left in the replica, or block by
        block in the algorithm."""
        replica = self.replica
        if not self.algorithm.shared_batch:
            (block,) = self.blocks
            x, y = next(block.batches)
            replica.zero_gradients()
            loss = cross_entropy(replica.model(x.to(replica.device, replica.dtype)), y.to(replica.device))
            loss.backward()
            replica.collect_gradients()
            return {block.number: loss.item()}
        size = self.comm.size * self.config.data.batch_size
        losses = {}
        for block in self.blocks:
            x, y = next(block.batches)
            seed_generators(block.key(self.config.seed, self.measured.steps), replica.device)  # dropout, if any
            replica.zero_gradients()
            outputs = replica.model(x.to(replica.device, replica.dtype))
            loss = cross_entropy(outputs, y.to(replica.device), reduction="sum") / size
            loss.backward()
            replica.collect_gradients()
            self.algorithm.computed(block.number)
            losses[block.number] = loss.item() * size / block.samples
        return losses

    def set_learning_rate(self):
        if self.config.schedule.name == "constant" and not self.config.schedule.warmup:
            return
        factor = learning_rate.factor(self.config.schedule, self.progress.samples, len(self.data.train), self.end)
        for group, rate in zip(self.algorithm.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def take_snapshot(self, marks: int = 1):
        """A snapshot that stands for as many marks as have been passed since the last one."""
        weights = {block.number: block.samples for block in self.blocks}
        losses = {number: (float(np.mean(values)), weights[number]) for number, values in self.losses.items()}
        self.losses.clear()
        moment = Moment(self.progress.elapsed(), self.measured.steps, self.progress.samples, losses)
        with self.algorithm.lock:
            self.snapshots.take(moment, marks, self.algorithm.model(), self.algorithm.weight)

    def evaluate(self, comm, marks: list[int]):
        """Schedule, on all ranks at once: the `Quality` of the snapshots at ``marks``, then of the final model.

        ``comm`` is used for nothing else: after an early end, messages may be left on the others.
        """
        replicas = self.config.train.evaluate_replicas
        final = self.algorithm.model().tensor.clone(), self.replica.buffers.tensor.clone()
        qualities: list[Quality] = []
        for mark in marks:
            self.snapshots.restore(mark)
            yield from self.algorithm.publish(comm)
            weight = self.snapshots.weights[mark]
            qualities.append((yield from quality(comm, self.replica, self.data.test, replicas, weight)))
        self.replica.params.tensor.copy_(final[0])
        self.replica.buffers.tensor.copy_(final[1])
        yield from self.algorithm.publish(comm)
        return qualities, (yield from quality(comm, self.replica, self.data.test, replicas, self.algorithm.weight))


def use_threads():
    """Have torch compute with as many threads as OMP_NUM_THREADS says; one if it is not set, for ranks share cores."""
    torch.set_num_threads(torch.get_num_threads() if os.environ.get("OMP_NUM_THREADS") else 1)


def load_data(config: Config) -> Dataset:
    """The data of ``config``, the part that it names; raises ConfigError or DataError."""
    chosen = config.data
    try:
        whole = data.load(chosen.name, chosen.dir, seed=config.seed, **chosen.options)
    except TypeError as error:
        raise ConfigError(f"data {chosen.name}: {error}") from None
    return part_of(whole, chosen.only_classes, chosen.only_train, chosen.only_test)


def build_model(config: Config, dataset: Dataset, device: torch.device) -> torch.nn.Module:
    """The model of ``config`` as every rank starts with it; raises ConfigError."""
    seed_generators(config.seed, device)
    try:
        model = models.build(config.model.name, dataset.shape, dataset.classes, **config.model.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model.name = {config.model.name!r}: {error}") from None
    return model.to(device)
