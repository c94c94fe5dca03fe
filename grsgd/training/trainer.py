"""Training loop of one rank, for all algorithms, and for real and simulated time. The training loop is a schedule (a
generator that the rank's driver runs)."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.central import CentralAlgorithm, Excluded
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.equal_models import EqualModels
from grsgd.algorithms.lifecycle import Lifecycle
from grsgd.comm.allreduce import broadcast
from grsgd.comm.stop_signal import Stopped
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.errors import ConfigError
from grsgd.models.replica import Replica
from grsgd.runs.ending import STOP_CRITERIA
from grsgd.training.computing import GradientComputing
from grsgd.training.optimizer import build_optimizer
from grsgd.training.progress import Progress, make_progress
from grsgd.training.recovery import Recovery
from grsgd.training.schedule import ScheduledOptimizer
from grsgd.training.snapshots import MEMORY, Moment, Snapshots
from grsgd.training.times import RankTotals, timed


def ignore(*_):
    """Do nothing. This function is the default for callbacks after a step or after the evaluation of a snapshot."""


class Trainer:
    """Training of the model on one rank. ``train()`` trains the model, and is a schedule (a generator that the rank's
    driver runs). The functions of `grsgd.training.run_evaluation` test the trained models.

    Parameters
    ----------
    model
        Model; all its tensors are on the device on which this rank trains.
    recovery
        Recovery object; by default the run ends if a process dies.
    snapshot_memory
        Number of bytes of snapshots that this process stores in memory; further snapshots are stored on disk.
    early_marks
        Number of early snapshots, before the first of the evenly spread snapshots: see `Snapshots.early`.
    compares_models
        Whether the ranks' models are compared regularly, if the algorithm keeps them equal: see `EqualModels`.
    on_step
        Function of (progress of the run, loss of the rank), called after each step. The loss is None in a run that only
        simulates times.

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
        recovery: Recovery | None = None,
        snapshot_memory: int = MEMORY,
        early_marks: int = 0,
        compares_models: bool = False,
        on_step: Callable[[Progress, float | None], None] = ignore,
    ):
        self.config, self.data, self.context, self.on_step = config, dataset, context, on_step
        self.task = config.make_task()
        self.comm, self.driver, self.stop_signal = context.comm, context.driver, context.stop_signal
        self.recovery = recovery or Recovery()
        traits, n = config.traits, self.comm.size
        of_algorithm = self.recovery.context_of(context)
        self.is_central = issubclass(config.algorithm_class, CentralAlgorithm)
        self.replica = Replica(
            model, getattr(torch, config.dtype), traits.sends_gradients and (n > 1 or traits.decides_who_computes)
        )
        if self.replica.left_in_place:
            raise ConfigError(
                f"the model's buffer {self.replica.left_in_place[0]!r} shares its memory with another object of the "
                "model, such as a larger tensor or a NumPy array: register a copy of the buffer (.clone()), or the "
                "larger tensor as a buffer"
            )
        self.totals = RankTotals()
        self.computing = GradientComputing(config, dataset, self.replica, context, self.totals)
        samples, workers = len(dataset.train), self.computing.workers
        of_progress = of_algorithm if traits.synchronous else context
        self.progress = make_progress(config, samples, workers, of_progress, self.is_central, early_marks)
        self.optimizer = ScheduledOptimizer(
            build_optimizer(config.optimizer, model.parameters()),
            config.schedule,
            self.progress,
            epoch=samples,
            clock=self.driver.clock,
        )
        self.lifecycle = self.make_lifecycle(of_algorithm)
        self.equal_models = EqualModels(self.algorithm, is_looked_at=compares_models, say=ignore)
        self.computing.go_on_from(0, self.algorithm)
        self.snapshots = Snapshots(self.replica, snapshot_memory, early_marks)
        self.has_ended = False
        """Whether training on this rank is over, and the last snapshot has been taken."""
        self.recovery.attach(self)

    def make_lifecycle(self, context: RankContext) -> Lifecycle:
        """Create the algorithm with ``context``, and return the `Lifecycle` that runs the algorithm's hooks."""
        config, context = self.config, replace(context, progress=self.progress)
        algorithm = config.algorithm_class(config.algorithm_options, self.replica, self.optimizer, context)
        return Lifecycle(algorithm)

    @property
    def algorithm(self) -> Algorithm:
        return self.lifecycle.algorithm

    @property
    def gradients(self):
        """Object that computes this rank's gradients (`grsgd.training.gradients`); None on a rank that does not
        train."""
        return self.computing.gradients

    def take_place(self, batches: int, marks: int):
        """Continue the training of a rank that this process has just taken over from an earlier process. Earlier
        processes of the rank have used ``batches`` batches and passed ``marks`` marks (points at which snapshots are
        taken)."""
        self.snapshots.skip(marks)
        self.computing.go_on_from(batches, self.algorithm)

    @property
    def reached(self) -> int:
        """Number of samples that all ranks have processed. Checkpoints are ordered and named by the number of samples
        that all ranks have processed."""
        return self.progress.samples

    is_one_schedule = True
    """Whether one schedule (generator) runs all steps of a rank. If ``is_one_schedule`` is True, all ranks begin an
    interrupted step anew after a death, and training ends on all ranks as soon as one rank has taken its last step."""
    hands_over = False
    """Whether the training loop has state of its own, besides the states of model, optimizer and progress."""

    def hand_over(self, comm, giver: int, is_wanted: bool):
        """Send the training loop's own state from rank ``giver`` to the ranks on which ``is_wanted`` is True. `Trainer`
        has no state of its own, and sends nothing.

        This method is a generator (schedule) that all ranks of ``comm`` run at once.
        """
        yield from ()

    def broadcast_initial_model(self):
        """Copy the model of rank 0 to all ranks. This method is a generator (schedule) that the rank's driver (event
        loop) runs."""
        for array in (self.replica.params.array, self.replica.buffers.array):
            yield from broadcast(self.context.uncounted_comm, array)
        self.replica.note_buffers()

    def train(self):
        """Take all steps, receive the messages under way, and make all replicas equal to the final model. This method
        is a generator (schedule) that the rank's driver (event loop) runs.

        Returns the reason why training ended. If training ends early, each replica keeps the model after the rank's
        last step.
        """
        self.driver.watch = self.watch
        try:
            if self.recovery.has_trained:
                yield from self.lifecycle.start()
                self.recovery.started()
                self.progress.start()
            self.computing.tell_early(self.algorithm)
            if self.algorithm.traits.in_background and self.comm.size > 1 and self.driver.progress_mode == "inline":
                self.replica.on_each_gradient(self.driver.poll)
            yield from self.recovery.train()
            if self.recovery.has_trained:
                self.take_snapshot(self.progress.marks.total - len(self.snapshots))
            yield from self.recovery.average()
        except Stopped as stopped:
            self.driver.abandon()  # activities in the background must not change the replica after the end
            if len(self.snapshots) < self.progress.marks.total:  # a snapshot is missing unless this rank took all steps
                self.take_snapshot()
            return str(stopped)
        finally:
            self.has_ended = True
            self.driver.watch = None
            self.recovery.ended()
            self.computing.close()
        return next(key for key in STOP_CRITERIA if getattr(self.config.train, key) is not None)

    def average(self):
        """Make all replicas equal to the final model. This method is a generator (schedule) that the rank's driver
        (event loop) runs."""
        yield from self.lifecycle.average()
        yield from self.equal_models.at_end()

    def to_the_end(self):
        """Take all steps, and pause between two steps whenever `Recovery.before_step` asks all ranks to pause. This
        method is a generator (schedule) that the rank's driver (event loop) runs."""
        is_over = False
        while not is_over:
            yield from self.begin()
            ended = yield from self.steps() if self.gradients is not None else self.serve()
            self.recovery.leave_steps()
            # The next line tells the other ranks, which may wait for this rank, that this rank stops.
            yield from self.lifecycle.drain() if ended else self.lifecycle.rest()
            if self.comm.rank in self.lost:
                raise Stopped("the other ranks went on without this rank, which was silent for too long")
            yield from self.progress.finish()
            is_over = yield from self.recovery.at_rest(ended)

    def begin(self):
        """Start the activities of the algorithm and of the progress in the background. This method is a generator
        (schedule) that the rank's driver (event loop) runs."""
        yield from self.lifecycle.begin()
        self.recovery.begun()
        self.progress.begin()

    def watch(self):
        """React to signals and to requests of other ranks. The trainer calls this method after each step, and the
        driver calls it while this rank waits."""
        self.stop_signal.watch()
        self.recovery.watch()

    def steps(self):
        """Take steps until the run ends, or until all ranks must pause. This method is a generator (schedule) that the
        rank's driver (event loop) runs. Returns True if the run has ended, and False if all ranks must pause."""
        batch = self.config.data.batch_size
        for step in itertools.count(self.totals.steps):
            if (yield from self.check_progress()):
                return True
            if (yield from self.recovery.before_step(step)):
                return False
            begin, counted = self.driver.clock(), self.totals.seconds
            try:
                yield from self.step(step)
            except Excluded:
                return True
            self.totals.steps += 1
            if self.recovery.has_share:
                self.totals.samples += batch
            self.progress.advance(batch)
            if self.equal_models.is_due(self.totals.steps):
                yield from self.equal_models.look(self.totals.steps)
            self.watch()
            rest = self.driver.clock() - begin - (self.totals.seconds - counted)
            self.totals.compute_seconds += max(rest, 0.0)  # rounding of simulated times may make the rest negative

    def serve(self):
        """Run the parameter server of this rank, which does not train, and take snapshots, until all training ranks
        have ended or pause. Return whether this rank knows that the run has ended. This method is a generator
        (schedule) that the rank's driver (event loop) runs."""
        while not (yield from self.algorithm.serve()):
            yield from self.check_progress()
            self.watch()
        return self.recovery.knows_the_end

    def check_progress(self):
        """Take the snapshots that are due, and return whether the run has ended. This method is a generator (schedule)
        that the rank's driver (event loop) runs."""
        ended, marks = yield from self.progress.decide()
        if marks:
            self.take_snapshot(marks)
        return ended

    def step(self, step: int):
        """Take one training step, and add its times of computing, communicating and waiting to ``totals``. This method
        is a generator (schedule) that the rank's driver (event loop) runs."""
        self.driver.poll()
        yield from self.timed(self.algorithm.before_backward)
        if self.computing.shares_batches and self.algorithm.needs_no_gradient:
            yield from self.computing.skip()
        else:
            yield from self.recovery.gradient(step)
        yield from self.timed(self.algorithm.step)
        self.on_step(self.progress, self.computing.loss)

    def timed(self, hook):
        """Run ``hook``, a hook of the algorithm, and add the hook's times to ``totals``. This method is a generator
        (schedule) that the rank's driver (event loop) runs."""
        yield from timed(self.recovery.guarded(hook), self.totals, self.driver, self.optimizer)

    def take_snapshot(self, marks: int = 1):
        """Take one snapshot of the model for the ``marks`` marks (points at which snapshots are due) that the run has
        passed since the last snapshot."""
        losses = self.computing.mean_losses()
        moment = Moment(self.progress.elapsed(), self.totals.steps, self.progress.trained, losses)
        self.snapshots.take(moment, self.algorithm.snapshot(), marks, self.algorithm.weight)
        if len(self.snapshots) > self.snapshots.early:  # the first snapshot after the early snapshots gets all losses
            self.computing.losses.clear()

    @property
    def lost(self) -> frozenset[int]:
        """Ranks that had sent no message for too long, so that the other ranks went on without them. The set of these
        ranks is complete only after training."""
        return self.algorithm.lost if self.is_central or self.computing.shares_batches else frozenset()
