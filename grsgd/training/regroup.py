"""Recovery of ranks that need each other in every step: after a death or a join, all ranks begin again.

All ranks take the average of their models, as in a run from a checkpoint of another number of ranks. The algorithm is
made anew for the present number of ranks. The step under way is given up; a step that sends gradients is taken again.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from grsgd.algorithms.averaging import exact_average
from grsgd.algorithms.context import RankContext
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import LostRank
from grsgd.comm.elastic.group import Changed, Group
from grsgd.models.flat import Flat
from grsgd.training.progress import Progress
from grsgd.training.surviving import Surviving
from grsgd.training.trainer import Trainer


class HowFar(NamedTuple):
    """Numbers that each rank tells the others when they meet.

    ``has_trained`` says whether the rank has a model. ``steps`` is the number of steps if all ranks take the same
    steps, else 0. ``has_gradient`` says whether the rank has its gradient of the next step. ``samples`` counts the
    samples of all ranks, and ``marks`` the marks that the rank has passed. ``seconds`` is the time since the run began.
    ``counts`` has the samples of each rank, float64 of shape [ranks], or [0] if ranks do not count the samples of
    others.
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
"""Number of values in a `HowFar`, without the samples of each rank."""


class NoGradient:
    """Replacement of `KeptGradient` for algorithms that send no gradients: a step that a death has interrupted is
    computed anew."""

    is_there = is_absent = False

    def keep(self):
        """Do nothing, because there is no gradient to keep."""

    def settle(self, have: list[bool]):
        """Do nothing, because no rank has kept a gradient."""

    def put_back(self) -> bool:
        """Return False: the gradient is to be computed."""
        return False


class KeptGradient:
    """Rank's own gradient, with which a step that was broken off while gradients were summed is taken again.

    No rank then waits for the gradient of a process that has just joined: it has no share in the mean of this step.
    """

    def __init__(self, gradient: Flat, progress: Progress):
        self.gradient, self.progress = gradient, progress
        self.copy = gradient.like()
        self.computed_after = -1
        """Number of steps that had been taken when the gradient was computed."""
        self.weight: float | None = None
        """Factor with which the gradient is put back; None if the step begins with a new gradient."""
        self.is_absent = False
        """Whether this rank has no share in the mean of the step under way."""

    @property
    def is_there(self) -> bool:
        """Whether the gradient belongs to the step under way."""
        return self.computed_after == self.progress.steps

    def keep(self):
        """Keep the gradient that the replica has now."""
        self.copy.tensor.copy_(self.gradient.tensor)
        self.computed_after, self.is_absent = self.progress.steps, False

    def settle(self, have: list[bool]):
        """Note, after a death, which ranks have their gradient of the step: the mean is taken over these gradients."""
        self.weight = None
        if any(have):
            self.weight = len(have) / sum(have) if self.is_there else 0.0
            self.progress.absent = have.count(False)
        self.is_absent = self.weight == 0

    def put_back(self) -> bool:
        """If the present step is taken again after a death, restore the kept gradient; return whether it was
        restored."""
        weight, self.weight = self.weight, None
        if weight is not None:
            torch.mul(self.copy.tensor, weight, out=self.gradient.tensor)
        return weight is not None


class Regrouping(Surviving):
    """Recovery of a rank whose steps need all others: the remaining ranks meet, and begin again together.

    ``context`` is the context of all ranks, as the trainer has it, with a membership.
    """

    tells_all_of_its_end = True

    def __init__(self, context: RankContext):
        super().__init__(context.membership)
        self.group = Group(
            context.membership, context.comm, context.uncounted_comm, HOW_FAR_NUMBERS + context.comm.size
        )

    @property
    def has_trained(self) -> bool:
        return self.group.epoch is not None

    @property
    def has_share(self) -> bool:
        return not self.kept.is_absent

    def context_of(self, context: RankContext) -> RankContext:
        """Return the context of the group only, or of all ranks on a process that has not met the others yet."""
        return self._of_group(context) if self.has_trained else context

    def _of_group(self, context: RankContext) -> RankContext:
        comm, uncounted = self.group.communicators()
        return replace(context, comm=comm, uncounted_comm=uncounted)

    def attach(self, trainer: Trainer):
        super().attach(trainer)
        gradient = trainer.replica.grads
        self.kept = NoGradient() if gradient is None else KeptGradient(gradient, trainer.progress)
        """Keeper of this rank's gradient, for the case that a death interrupts the step."""

    def take_over(self):
        self.membership.begin()
        yield from ()

    def watch(self):
        self.group.watch()

    def gradient(self, step: int):
        if not self.kept.put_back():  # if put back, the gradient is applied again
            yield from super().gradient(step)
            self.kept.keep()

    def train(self):
        """Schedule that takes all steps with the remaining ranks; after a death, or when a process has joined, the
        ranks regroup."""
        group = self.group
        while True:
            try:
                if group.has_changed and not (yield from self.regroup()):
                    return
                yield from self.trainer.to_the_end()
                # All ranks wait here until every rank has taken its last step.
                yield from halving_doubling_allreduce(self.trainer.algorithm.uncounted_comm, np.zeros(1))
                return
            except (LostRank, Changed):
                if not group.has_changed:
                    raise

    def regroup(self):
        """Schedule that begins again from the average of all models, and returns False if another rank has ended its
        training, so that this rank may end, too.

        Processes that have joined have no model yet. If an algorithm keeps all models equal, models that are a step
        behind do not count either, so that the average equals the other models bit for bit. Momenta are averaged, too.
        If the step that was broken off averages gradients, it is taken again as the mean of those already computed.
        """
        group, driver, algorithm = self.group, self.trainer.driver, self.trainer.algorithm
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
        self.kept.settle([each.has_gradient and is_counted for each, is_counted in zip(told, counts, strict=True)])
        self.longest_wait = max(self.longest_wait, driver.clock() - began + self.last_wait)
        return True

    def _how_far(self) -> HowFar:
        progress, has_trained = self.trainer.progress, self.has_trained
        seconds = progress.elapsed() if has_trained else 0.0
        samples, marks = progress.samples, progress.marks.passed
        return HowFar(has_trained, progress.steps, self.kept.is_there, samples, marks, seconds, progress.counts)

    def _average_models(self, context: RankContext, counts: list[bool]):
        """Schedule that gives all ranks the average of the models, buffers and momenta of the ranks in ``counts``."""
        replica = self.trainer.replica
        weight, averages = float(counts[context.comm.rank]), []
        flats = replica.params, replica.buffers, momenta(self.trainer)
        for flat in flats:
            averages.append(flat.like())
            averages[-1].tensor.copy_(flat.tensor)
            yield from exact_average(context.uncounted_comm, averages[-1], weight, root=counts.index(True))
        # From here on this rank waits only if the algorithm's start() does; if start() fails, the ranks meet again.
        for flat, average in zip(flats, averages, strict=True):
            flat.tensor.copy_(average.tensor)
        set_momenta(self.trainer, averages[-1].tensor)

    def _go_on(self, context: RankContext, furthest: HowFar):
        """Schedule, called on all ranks of the group at once, that makes the algorithm anew for the group, and goes on
        from the step of the ``furthest`` rank."""
        trainer = self.trainer
        before, progress = trainer.algorithm, trainer.progress
        trainer.lifecycle = trainer.make_lifecycle(context)
        algorithm = trainer.algorithm
        algorithm.rng, algorithm.staleness = before.rng, before.staleness
        yield from trainer.lifecycle.start()
        algorithm.k = int(furthest.steps)
        missing = int(furthest.marks) - progress.marks.passed
        first = progress.go_on(context.uncounted_comm, furthest)
        if not progress.began:  # this process has just joined
            progress.elapsed_before = furthest.seconds
            progress.start()
            trainer.snapshots.skip(missing)
            trainer.computing.go_on_from(first, algorithm)
        elif missing:
            trainer.take_snapshot(missing)


def momenta(trainer: Trainer) -> Flat:
    """Return the optimizer's tensors of all parameters, in one flat array."""
    tensors, dtype, device = remembered(trainer), trainer.replica.dtype, trainer.replica.device
    flat = Flat.zeros(sum(tensor.numel() for tensor in tensors), dtype, device)
    if tensors:
        flat.tensor.copy_(torch.cat([tensor.reshape(-1).to(device, dtype) for tensor in tensors]))
    return flat


def set_momenta(trainer: Trainer, content: torch.Tensor):
    tensors = remembered(trainer)
    for tensor, part in zip(tensors, content.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.reshape(tensor.shape))


def remembered(trainer: Trainer) -> list[torch.Tensor]:
    """Return the tensors of the optimizer's state; before its first step they are made, with zeros."""
    optimizer = trainer.optimizer.optimizer
    if not optimizer.state:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        before = [(p.detach().clone(), p.grad) for p in parameters]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        with torch.no_grad():
            for parameter, (content, gradient) in zip(parameters, before, strict=True):
                parameter.copy_(content)
                parameter.grad = gradient
        for of_one in optimizer.state.values():
            for value in of_one.values():
                if torch.is_tensor(value):
                    value.zero_()
    return [
        value
        for group in optimizer.param_groups
        for parameter in group["params"]
        for _, value in sorted(optimizer.state.get(parameter, {}).items())
        if torch.is_tensor(value)
    ]
