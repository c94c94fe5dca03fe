"""The training loop of one rank. It knows no algorithm by name, and nothing of MPI: it is a schedule itself."""

import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.central import CentralAlgorithm, Excluded, rest_of, workers_of
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.equal_models import EqualModels
from grsgd.algorithms.hooks import schedule_of
from grsgd.comm.allreduce import broadcast
from grsgd.comm.elastic.group import Group
from grsgd.comm.pollables import Compute, Delay
from grsgd.comm.stop_signal import Stopped
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.errors import ConfigError
from grsgd.models.replica import Replica
from grsgd.runs.ending import NON_FINITE_LOSS, STOP_CRITERIA
from grsgd.training.evaluation import Quality, quality
from grsgd.training.gradients import CommonBatch, OwnBatches, stages
from grsgd.training.optimizer import build_optimizer
from grsgd.training.progress import Progress, make_progress
from grsgd.training.regroup import HOW_FAR_NUMBERS, HowFar, KeptGradient, together
from grsgd.training.schedule import ScheduledOptimizer
from grsgd.training.snapshots import MEMORY, Moment, Snapshots
from grsgd.training.stragglers import DelayModel
from grsgd.training.times import RankTotals, timed


def ignore(*_):
    """Do nothing after a step, or after a snapshot was evaluated."""


class Trainer:
    """One rank's part of a run: ``train()``, then ``evaluate()``, both schedules.

    Parameters
    ----------
    model
        Lies on the device it is to be trained on.
    snapshot_memory
        Bytes of snapshots that are kept in memory.
    early_marks
        How many snapshots are taken before the first of those that are evenly spread; a run that completes does not
        count them (`Snapshots.early`).
    on_step
        Called after each step with the progress of the run and the rank's loss, None where time alone is simulated.

    Raises
    ------
    ConfigError, DataError
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        model: torch.nn.Module,
        context: RankContext,
        *,
        snapshot_memory: int = MEMORY,
        early_marks: int = 0,
        on_step: Callable[[Progress, float | None], None] = ignore,
    ):
        self.config, self.data, self.context, self.on_step = config, dataset, context, on_step
        self.task = config.make_task()
        self.comm, self.driver, self.stop_signal = context.comm, context.driver, context.stop_signal
        options, traits, n = config.algorithm_options, config.traits, self.comm.size
        algorithm = config.algorithm_class
        self.group: Group | None = None
        """Those that train together, where the run goes on without those that die."""
        if context.membership is not None and traits.survives_deaths == "together":
            self.group = Group(context.membership, context.comm, context.uncounted_comm, HOW_FAR_NUMBERS + n)
            if self.has_trained:
                comm, uncounted = self.group.communicators()
                context = replace(context, comm=comm, uncounted_comm=uncounted)
        self.is_central = issubclass(algorithm, CentralAlgorithm)
        self.shares_batches = issubclass(algorithm, CommonBatchAlgorithm)
        self.workers = workers_of(algorithm, options, n)
        self.replica = Replica(
            model, getattr(torch, config.dtype), traits.sends_gradients and (n > 1 or not traits.supports_own_loop)
        )
        if self.replica.left_in_place:
            raise ConfigError(
                f"the model's buffer {self.replica.left_in_place[0]!r} lies in memory that something else of it sees "
                "(a larger tensor, an array of NumPy): register a copy (.clone()), or the larger tensor as a buffer"
            )
        of_progress = context if traits.synchronous else self.context
        self.progress = make_progress(
            config, len(dataset.train), self.workers, of_progress, self.is_central, early_marks
        )
        self.optimizer = ScheduledOptimizer(
            build_optimizer(config.optimizer, model.parameters()),
            config.schedule,
            self.progress,
            epoch=len(dataset.train),
            clock=self.driver.clock,
        )
        self.algorithm = self.make_algorithm(context)
        self.equal_models = EqualModels(self.algorithm, is_looked_at=False)
        self.gradients = self.make_gradients()
        """None on a rank that does not train."""
        self.loss: float | None = None
        """Of the last gradient."""
        self.kept: KeptGradient | None = None
        """The gradient of a step that may be broken off, where the step sends it."""
        if self.group is not None and self.replica.grads is not None:
            self.kept = KeptGradient(self.replica.grads, self.progress)
        self.delays = DelayModel(config.stragglers, self.comm.rank, config.seed)
        self.totals = RankTotals()
        self.longest_wait = 0.0
        """Seconds of the longest wait for others before or after a gradient."""
        self.last_wait = 0.0
        self.membership = context.membership
        """Which process holds which rank, where the run goes on without those that die."""
        self.changing = threading.Lock()
        """With a membership: held while this thread changes the model, and not while it waits."""
        self.final: tuple[torch.Tensor, torch.Tensor] | None = None
        """With a membership, after training: the model, before all are averaged."""
        self.snapshots = Snapshots(self.replica, snapshot_memory, early_marks)
        self.losses: dict[int, list[float]] = {}
        """The losses since the last snapshot, by number of the block."""
        self.has_ended = False
        """Whether training is over, and the last snapshot taken."""
        self.checkpoints = None
        """The `Checkpoints` that are taken, if any."""
        self.on_started: Callable[[], None] = lambda: None
        """Called when the algorithm has started, before the first step: where a run goes on, it restores the rank."""
        self.on_begun: Callable[[], None] = lambda: None
        """Called when the algorithm has begun what goes on in the background."""
        self.stages: list = []
        """Of computing a gradient, where the driver calls them: each gradient of a parameter is there."""

    def make_algorithm(self, context: RankContext) -> Algorithm:
        config, context = self.config, replace(context, progress=self.progress)
        return config.algorithm_class(config.algorithm_options, self.replica, self.optimizer, context)

    def make_gradients(self, first: int = 0) -> OwnBatches | CommonBatch | None:
        """Return what computes this rank's gradients, from step ``first`` on; None on a rank that does not train."""
        config, replica, n = self.config, self.replica, self.comm.size
        torch.backends.cudnn.deterministic = self.shares_batches  # all get the same of a block, bit for bit
        if self.shares_batches:
            return CommonBatch.of(config, self.data, replica, self.algorithm, n, first)
        if self.comm.rank < self.workers:
            shards = self.comm.rank, self.workers, self.context.replication
            return OwnBatches.of(config, self.data, replica, *shards, first)
        return None

    def go_on_from(self, step: int):
        """Compute the gradients of the steps from this one on."""
        if self.gradients is not None:
            self.gradients.close()
        self.gradients = self.make_gradients(step)

    def broadcast_initial_model(self):
        """Schedule: give all ranks the model of rank 0."""
        for array in (self.replica.params.array, self.replica.buffers.array):
            yield from broadcast(self.context.uncounted_comm, array)
        self.replica.note_buffers()

    def train(self):
        """Schedule: train, drain, average. Returns why it ended; after an early end the replicas stay as they are."""
        config = self.config
        self.driver.watch = self.watch
        try:
            if self.has_trained:
                yield from schedule_of(self.algorithm.start)
                self.on_started()
                self.progress.start()
            if self.algorithm.traits.sends_early and self.comm.size > 1 and self.delays.is_none:
                self.tell_of_gradients()
            if self.algorithm.traits.in_background and self.comm.size > 1 and self.driver.progress_mode == "inline":
                self.replica.on_each_gradient(self.driver.poll)
            yield from self.to_the_end() if self.group is None else together(self)
            if self.has_trained:
                self.take_snapshot(self.progress.marks.total - len(self.snapshots))
            if self.membership is None:  # else others may die meanwhile: see grsgd.job.survivors
                yield from schedule_of(self.algorithm.average)
                yield from self.equal_models.at_end()
        except Stopped as stopped:
            self.driver.abandon()  # what is under way in the background must not change the replica any more
            if len(self.snapshots) < self.progress.marks.total:  # else the run was over but for the average
                self.take_snapshot()
            return str(stopped)
        finally:
            self.has_ended = True
            self.driver.watch = None
            if self.membership is not None:
                self.final = tuple(tensor.clone() for tensor in self.algorithm.snapshot())
                self.membership.finish(to_all=self.group is not None)
            if self.gradients is not None:
                self.gradients.close()
        return next(key for key in STOP_CRITERIA if getattr(config.train, key) is not None)

    def tell_of_gradients(self):
        """Tell the algorithm of each gradient as soon as it is there; a rank with delays has none before they are
        over."""
        if self.driver.calls_stages:
            self.stages = stages([p.numel() for p in self.replica.trained], self.algorithm.gradient_ready)
        else:
            self.replica.on_gradient(self.algorithm.gradient_ready)

    @property
    def has_trained(self) -> bool:
        """Whether this process has ever trained: one that has joined may find the run at its end."""
        return self.group is None or self.group.epoch is not None

    def to_the_end(self):
        """Schedule: all steps, and rests between them."""
        while True:
            yield from self.begin()
            ended = yield from self.steps() if self.gradients is not None else self.serve()
            if self.checkpoints is not None:
                self.checkpoints.leave_steps()
            # Tells the others that this rank stops: they may wait for it.
            yield from schedule_of(self.algorithm.drain if ended else rest_of(self.algorithm))
            if self.comm.rank in self.lost:
                raise Stopped("the others went on without this rank, which was silent for too long")
            yield from self.progress.finish()
            if self.checkpoints is None or (yield from self.checkpoints.at_rest(self, ended)):
                break

    def go_on_with(self, context: RankContext, furthest: HowFar):
        """Schedule, on all ranks of a group at once, which have the same model now: go on from the furthest one's step.

        The algorithm is made anew for the group.
        """
        before, progress = self.algorithm, self.progress
        self.algorithm = self.make_algorithm(context)
        self.algorithm.rng, self.algorithm.staleness = before.rng, before.staleness
        yield from schedule_of(self.algorithm.start)
        self.algorithm.k = int(furthest.steps)
        missing = int(furthest.marks) - progress.marks.passed
        first = progress.go_on(context.uncounted_comm, furthest)
        if not progress.began:  # this process has joined just now
            progress.elapsed_before = furthest.seconds
            progress.start()
            self.snapshots.skip(missing)
            self.go_on_from(first)
        elif missing:
            self.take_snapshot(missing)

    def begin(self):
        """Schedule: begin what goes on in the background."""
        yield from schedule_of(self.algorithm.begin)
        self.on_begun()
        self.progress.begin()

    def watch(self):
        """Look for what other ranks, or signals, ask for; also called while this rank waits."""
        self.stop_signal.watch()
        if self.group is not None:
            self.group.watch()
        if self.checkpoints is not None:
            self.checkpoints.watch(self.totals.steps)

    def steps(self):
        """Schedule: step after step until the run ends, or all ranks are to rest; returns whether it has ended."""
        for step in itertools.count(self.totals.steps):
            if (yield from self.check_progress()):
                return True
            if self.checkpoints is not None and (yield from self.checkpoints.before_step(self, step)):
                return False
            begin, counted = self.driver.clock(), self.totals.seconds
            try:
                yield from self.step(step)
            except Excluded:
                return True
            self.totals.steps += 1
            if self.kept is None or not self.kept.is_absent:
                self.totals.samples += self.config.data.batch_size
            self.progress.advance(self.config.data.batch_size)
            if self.equal_models.is_due(self.totals.steps):
                yield from self.equal_models.look(self.totals.steps)
            self.watch()
            rest = self.driver.clock() - begin - (self.totals.seconds - counted)
            self.totals.compute_seconds += max(rest, 0.0)  # rounding, in simulated time

    def serve(self):
        """Schedule, on a rank that does not train: take snapshots until the others have ended, or rest; returns whether
        the run has ended, as far as this rank knows."""
        while not (yield from self.algorithm.serve()):
            yield from self.check_progress()
            self.watch()
        return self.checkpoints is None

    def check_progress(self):
        """Schedule: take the snapshots that are due; returns whether the run has ended."""
        ended, marks = yield from self.progress.decide()
        if marks:
            self.take_snapshot(marks)
        return ended

    def step(self, step: int):
        """Schedule: one step, with its time split into computing, communicating and waiting."""
        self.driver.poll()
        yield from self.timed(self.algorithm.before_backward)
        if self.shares_batches and self.algorithm.needs_no_gradient:
            yield Compute(self.gradients.skip, 0)
        elif self.kept is None or not self.kept.put_back():  # else the step is taken again
            self.loss = yield from self.compute(step)
            if self.kept is not None:
                self.kept.keep()
        yield from self.timed(self.algorithm.step)
        self.on_step(self.progress, self.loss)

    def compute(self, step: int):
        """Schedule: the gradient of a step, and this rank's delay; returns the loss as `note_losses` does."""
        begin = self.driver.clock()
        amount = self.gradients.samples / self.config.data.batch_size
        gradient = Compute(self.gradients.next_gradient, amount, self.stages)
        yield gradient
        delay = self.delays.delay(step, gradient.seconds)
        if delay > 0:
            yield Delay(delay)
        self.totals.compute_seconds += self.driver.clock() - begin
        return self.note_losses(gradient.value, step)

    def note_losses(self, losses: dict[int, float] | None, step: int) -> float | None:
        """Keep the losses of the blocks for the next snapshot; returns their mean, None where there is none.

        Raises Stopped, on all ranks, if it is not finite.
        """
        if not losses:  # None where time alone is simulated; empty on a rank without a block
            return None
        weights = self.gradients.weights
        loss = sum(losses[number] * weight for number, weight in weights.items()) / self.gradients.samples
        if not math.isfinite(loss):
            self.stop_signal.stop(f"{NON_FINITE_LOSS} ({loss}) on rank {self.comm.rank} at step {step}")
        for number, value in losses.items():
            self.losses.setdefault(number, []).append(value)
        return loss

    def timed(self, hook):
        """Schedule: one of the algorithm's hooks, timed."""
        if self.membership is not None:
            hook = partial(locked, hook, self.changing)
        waited = self.driver.wait_seconds
        try:
            yield from timed(hook, self.totals, self.driver, self.optimizer)
        finally:
            self.last_wait = self.driver.wait_seconds - waited
            self.longest_wait = max(self.longest_wait, self.last_wait)

    def model(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the parameters and buffers of this rank, the final ones after training."""
        return self.final if self.final is not None else self.algorithm.snapshot()

    def take_snapshot(self, marks: int = 1):
        """Take a snapshot that stands for as many marks as have been passed since the last one."""
        weights = self.gradients.weights if self.gradients is not None else {}
        losses = {number: (float(np.mean(values)), weights[number]) for number, values in self.losses.items()}
        moment = Moment(self.progress.elapsed(), self.totals.steps, self.progress.trained, losses)
        self.snapshots.take(moment, self.algorithm.snapshot(), marks, self.algorithm.weight)
        if len(self.snapshots) > self.snapshots.early:  # the first of the others has all losses since the start
            self.losses.clear()

    @property
    def lost(self) -> frozenset[int]:
        """After training, ranks that do not answer any more and were left behind."""
        return self.algorithm.lost if self.is_central or self.shares_batches else frozenset()

    def evaluate(
        self,
        comm,
        marks: list[int],
        on_each: Callable[[int], None] = ignore,
        evaluated: Callable[[torch.nn.Module, Quality], None] = ignore,
    ):
        """Schedule, on all ranks at once: the `Quality` of the snapshots at ``marks``, then of the final model.

        ``comm`` is used for nothing else: after an early end, messages may be left on the others. ``on_each``: called
        after each snapshot with how many are done. ``evaluated``: called with each averaged model, the final one too,
        which is left in the replica.
        """
        final = [tensor.clone() for tensor in self.model()]
        qualities = yield from self.evaluate_snapshots(comm, marks, on_each, evaluated)
        self.replica.params.tensor.copy_(final[0])
        self.replica.buffers.tensor.copy_(final[1])
        quality = yield from self.quality(comm, self.algorithm.weight)
        evaluated(self.replica.model, quality)
        return qualities, quality

    def evaluate_snapshots(self, comm, marks: list[int], on_each=ignore, evaluated=ignore):
        """Schedule: the same without the final model; the last of the averaged models is left in the replica."""
        qualities: list[Quality] = []
        for mark in marks:
            known = self.snapshots.restore(mark)
            qualities.append((yield from self.quality(comm, self.snapshots.weights[mark], known)))
            evaluated(self.replica.model, qualities[-1])
            on_each(len(qualities))
        return qualities

    def quality(self, comm, weight: float, known: bool = True):
        """Schedule, on all ranks at once: the `Quality` of the models in the replicas."""
        if self.is_central:
            yield from self.algorithm.broadcast_model(comm)
        replicas = self.config.train.evaluate_replicas
        return (yield from quality(comm, self.replica, self.data.test, self.task, replicas, weight, known))


def locked(hook: Callable, lock: threading.Lock):
    """Schedule: a hook, with ``lock`` held while it does something, and not while it waits."""
    with lock:
        schedule = hook()
    error = None
    while schedule is not None:
        try:
            with lock:
                pending = next(schedule) if error is None else schedule.throw(error)
        except StopIteration:
            return
        error = None
        try:
            yield pending
        except Exception as caught:  # fails where the hook waits, so that it can clean up
            error = caught
