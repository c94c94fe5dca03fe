"""Recovery from the death of a process, for algorithms in which each step needs messages of all ranks. The ranks
regroup (form a new group) after a process has died or joined.

To regroup, all ranks replace their models by the average of the models, and create a new object of the algorithm for
the present number of ranks. The step that a death has interrupted is given up. If the algorithm sends gradients, the
regrouped ranks take the interrupted step again.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from grsgd.algorithms.averaging import exact_average
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.hooks import schedule_of
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import LostRank
from grsgd.comm.elastic.group import Changed, Group
from grsgd.models.flat import Flat
from grsgd.training import momenta
from grsgd.training.progress import Progress
from grsgd.training.recovery import Recovery
from grsgd.training.surviving import Surviving
from grsgd.training.trainer import Trainer


class HowFar(NamedTuple):
    """Progress of one rank, which the rank sends to all other ranks when the ranks regroup.

    ``has_trained`` says whether the rank has a model. ``steps`` is the number of steps that each rank has taken, or 0
    if ranks take different numbers of steps. ``has_gradient`` says whether the rank has kept its gradient of the
    interrupted step. ``samples`` is the number of samples that all ranks have processed. ``marks`` is the number of
    marks (points at which a snapshot is taken) that the rank has passed. ``seconds`` is the time since the run began.
    ``counts`` has the number of samples of each rank, float64 of shape [ranks]; empty if ranks do not know these
    numbers.
    """

    has_trained: float
    steps: float
    has_gradient: float
    samples: float
    marks: float
    seconds: float
    counts: np.ndarray

    @classmethod
    def read(cls, numbers: np.ndarray) -> "HowFar":
        return cls(*numbers[:HOW_FAR_NUMBERS], numbers[HOW_FAR_NUMBERS:])


HOW_FAR_NUMBERS = len(HowFar._fields) - 1
"""Number of fields of `HowFar` that are single numbers; ``counts`` is an array."""


class NoGradient:
    """Substitute for `KeptGradient` in algorithms that send no gradients. Algorithms that send no gradients compute the
    gradient of an interrupted step anew."""

    is_there = is_absent = False
    weight = None

    def keep(self):
        """Do nothing, because algorithms that send no gradients keep no gradient."""

    def use_again(self):
        """Do nothing, because the algorithm does not sum gradients."""

    def settle(self, have: list[bool]):
        """Do nothing, because no rank has kept a gradient."""

    def put_back(self) -> bool:
        """Return False, because the gradient of the step must be computed anew."""
        return False


class KeptGradient:
    """Copy of this rank's gradient. If a step is interrupted while the ranks' gradients are summed, the rank uses this
    copy when it takes the step again.

    A process that has just joined has no gradient of the interrupted step. So the mean gradient of an interrupted step
    is taken over the ranks that have kept a gradient of this step.
    """

    def __init__(self, gradient: Flat, progress: Progress):
        self.gradient, self.progress = gradient, progress
        self.copy = gradient.like()
        self.computed_after = -1
        """Number of steps that this rank had taken when it computed the kept gradient."""
        self.weight: float | None = None
        """Factor by which `put_back` multiplies the kept gradient; None if the next step computes a new gradient."""
        self.is_absent = False
        """Whether the mean gradient of the present step lacks this rank's gradient."""
        self._is_used = False
        """Whether an unfinished sum over ranks may have overwritten the gradient in the replica."""

    @property
    def is_there(self) -> bool:
        """Whether the kept gradient belongs to the present step."""
        return self.computed_after == self.progress.steps

    def keep(self):
        """Copy the gradient that the replica holds now."""
        self.copy.tensor.copy_(self.gradient.tensor)
        self.computed_after, self.is_absent, self._is_used = self.progress.steps, False, False

    def use_again(self):
        """Use the kept gradient for the present step. If an interrupted sum may have overwritten the replica's
        gradient, restore the gradient first."""
        if self._is_used:
            self.gradient.tensor.copy_(self.copy.tensor)
        self.computed_after, self._is_used = self.progress.steps, True

    def settle(self, have: list[bool]):
        """Prepare to take the interrupted step again, if any rank has kept its gradient of the step. ``have`` says
        which ranks have kept their gradients. The mean gradient of the repeated step is taken over the kept
        gradients."""
        self.weight = None
        if any(have):
            self.weight = len(have) / sum(have) if self.is_there else 0.0
            self.progress.absent = have.count(False)
        self.is_absent = self.weight == 0

    def put_back(self) -> bool:
        """Restore the kept gradient in the replica if the present step is taken again. Return True if the kept gradient
        was restored."""
        weight, self.weight = self.weight, None
        if weight is not None:
            torch.mul(self.copy.tensor, weight, out=self.gradient.tensor)
        return weight is not None


class Regrouping(Surviving):
    """Recovery of a rank that regroups with the other remaining ranks after a process has died or joined.

    ``context`` is the trainer's `RankContext`, with communicators of all ranks and the membership (process of each
    rank).
    """

    tells_all_of_its_end = True

    def __init__(self, context: RankContext, checkpoints: Recovery | None = None):
        super().__init__(context.membership, checkpoints)
        self.group = Group(
            context.membership, context.comm, context.uncounted_comm, HOW_FAR_NUMBERS + context.comm.size
        )
        self.is_together = self.has_trained
        """Whether this rank trains in a group; False while the ranks regroup."""
        if self.is_together:
            self.checkpoints.gathered(self.group.communicator)

    @property
    def has_trained(self) -> bool:
        return self.group.epoch is not None

    @property
    def has_share(self) -> bool:
        return not self.kept.is_absent

    def context_of(self, context: RankContext) -> RankContext:
        """Return a copy of ``context`` whose communicators have the remaining ranks only. Return ``context`` itself if
        this process has not regrouped yet."""
        return self._of_group(context) if self.has_trained else context

    def _of_group(self, context: RankContext) -> RankContext:
        comm, uncounted = self.group.communicators()
        return replace(context, comm=comm, uncounted_comm=uncounted)

    def attach(self, trainer: Trainer):
        super().attach(trainer)
        gradient = trainer.replica.grads
        self.kept = NoGradient() if gradient is None else KeptGradient(gradient, trainer.progress)
        """Copy of this rank's gradient for the case that a death interrupts the step."""

    def take_over(self):
        self.membership.begin()
        yield from ()

    def watch(self):
        self.group.watch()
        if self.is_together:
            super().watch()

    def gradient(self, step: int):
        if not self.kept.put_back():  # if put_back() returns True, the step uses the kept gradient
            yield from super().gradient(step)
            self.kept.keep()

    def collected(self):
        if self.kept.weight is None:
            self.kept.keep()

    def put_back(self):
        self.kept.put_back() or self.kept.use_again()

    def train(self):
        """Take all steps of this rank, and regroup with the remaining ranks whenever a process has died or joined. This
        method is a generator (schedule) that the rank's driver (event loop) runs."""
        yield from self.whole(self._to_the_end)

    def _to_the_end(self):
        """Take all steps, and wait until every rank has taken its last step. This method is a generator (schedule) that
        the rank's driver (event loop) runs."""
        yield from self.trainer.to_the_end()
        yield from halving_doubling_allreduce(self.trainer.algorithm.uncounted_comm, np.zeros(1))

    def whole(self, part: Callable):
        group = self.group
        while True:
            try:
                if group.has_changed and not (yield from self.regroup()):
                    return False
                yield from schedule_of(part)
                return True
            except (LostRank, Changed):
                if not group.has_changed:
                    self.membership.look()  # finds out whether a death has caused the error
                if not group.has_changed:
                    raise

    def regroup(self):
        """Form a new group of all remaining ranks, which go on from the average of their models. This method is a
        generator (schedule) that the rank's driver (event loop) runs. Returns False if another rank has ended its
        training, so that this rank must end its training as well.

        Processes that have just joined have no model, and do not enter the average of the models. If the algorithm
        keeps all models equal, models that are one step behind do not enter the average either. So if the algorithm
        keeps all models equal, the average equals each of the averaged models bit for bit. The optimizer's momenta are
        averaged as well. If the interrupted step averages gradients, the ranks take this step again, with the mean of
        the gradients that ranks have kept.
        """
        group, driver, algorithm, self.is_together = self.group, self.trainer.driver, self.trainer.algorithm, False
        began = driver.clock()
        driver.abandon()
        yield from group.close()
        driver.abandoned.clear()
        mine = self._how_far()
        told = yield from group.meet([*mine[:HOW_FAR_NUMBERS], *mine.counts])
        if told is None:
            return False
        told = [HowFar.read(numbers) for numbers in told.values()]
        furthest = max(told, key=lambda each: each[:HOW_FAR_NUMBERS])
        furthest = furthest._replace(counts=np.max([each.counts for each in told], axis=0))
        if not furthest.has_trained:
            raise RuntimeError("the processes of all ranks that had a model have died")
        counts = [
            each.has_trained and (each.steps == furthest.steps or not algorithm.traits.equal_models) for each in told
        ]
        context = self._of_group(self.trainer.context)
        yield from self._average_models(context, counts)
        yield from self._go_on(context, furthest)
        giver = next(rank for rank, each in enumerate(told) if each.has_trained and each.steps == furthest.steps)
        wanted = [not each.has_trained or each.steps < furthest.steps for each in told]
        if any(wanted):
            yield from self.trainer.hand_over(context.uncounted_comm, giver, wanted[context.comm.rank])
        yield from self.checkpoints.regrouped(group.communicator, giver)
        self.is_together = True
        self.kept.settle([each.has_gradient and is_counted for each, is_counted in zip(told, counts, strict=True)])
        self.longest_wait = max(self.longest_wait, driver.clock() - began + self.last_wait)
        return True

    def _how_far(self) -> HowFar:
        progress, has_trained = self.trainer.progress, self.has_trained
        seconds = progress.elapsed() if has_trained else 0.0
        samples, marks = progress.samples, progress.marks.passed
        return HowFar(has_trained, progress.steps, self.kept.is_there, samples, marks, seconds, progress.counts)

    def _average_models(self, context: RankContext, counts: list[bool]):
        """Set the parameters, buffers and momenta of all ranks to their averages over the ranks for which ``counts`` is
        True. This method is a generator (schedule) that the rank's driver (event loop) runs."""
        replica = self.trainer.replica
        weight, averages, optimizer = float(counts[context.comm.rank]), [], self.trainer.optimizer.optimizer
        yield from momenta.agree(context.uncounted_comm, optimizer, weight)
        flats = replica.params, replica.buffers, momenta.momenta(optimizer, replica.device)
        for flat in flats:
            averages.append(flat.like())
            averages[-1].tensor.copy_(flat.tensor)
            yield from exact_average(context.uncounted_comm, averages[-1], weight, root=counts.index(True))
        # A death can interrupt exact_average() above, but not the copies in the loop below, which need no other rank.
        # After the copies, this rank waits in the algorithm's start(). If start() fails, the ranks regroup again.
        for flat, average in zip(flats, averages, strict=True):
            flat.tensor.copy_(average.tensor)
        momenta.set_momenta(optimizer, averages[-1].tensor)

    def _go_on(self, context: RankContext, furthest: HowFar):
        """Create a new object of the algorithm for ``context``, and set the progress to ``furthest``, the largest
        progress of any rank. All remaining ranks run this schedule (generator) at once."""
        trainer = self.trainer
        before, progress = trainer.algorithm, trainer.progress
        trainer.lifecycle = trainer.make_lifecycle(context)
        algorithm = trainer.algorithm
        algorithm.rng, algorithm.staleness = before.rng, before.staleness
        yield from trainer.lifecycle.start()
        algorithm.k = int(furthest.steps)
        missing = int(furthest.marks) - progress.marks.passed
        first = progress.go_on(context.uncounted_comm, furthest)
        if not progress.began:  # this process has just joined the run
            progress.elapsed_before = furthest.seconds
            progress.start()
            trainer.take_place(first, missing)
        elif missing:
            trainer.take_snapshot(missing)

