"""The ranks that are left begin again together, when the process of one of them has died, or another one has joined.

That is what a run does that goes on from a checkpoint on another number of ranks, without the checkpoint: all begin
with the average of their models, and the algorithm is made anew for as many ranks as there are. The step under way is
given up; one that sends gradients is taken again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from grsgd.algorithms.averaging import exact_average
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import LostRank
from grsgd.comm.elastic.group import Changed
from grsgd.models.flat import Flat

if TYPE_CHECKING:
    from grsgd.training.progress import Progress
    from grsgd.training.trainer import Trainer


class HowFar(NamedTuple):
    """The numbers that each rank tells the others: whether it has trained, how many steps all have taken, where they
    take the same ones, whether this one has its gradient of the next step, the samples of all ranks, the marks that
    this one has passed, seconds since the run began, and the samples of each rank, where they are counted so."""

    has_trained: float
    steps: float
    has_gradient: float
    samples: float
    marks: float
    seconds: float
    counts: np.ndarray

    @classmethod
    def of(cls, trainer: Trainer) -> HowFar:
        progress, has_trained = trainer.progress, trainer.has_trained
        seconds = progress.elapsed() if has_trained else 0.0
        marks, has_gradient = progress.marks.passed, trainer.kept is not None and trainer.kept.is_there
        return cls(has_trained, progress.steps, has_gradient, progress.samples, marks, seconds, progress.counts)

    @classmethod
    def read(cls, numbers: np.ndarray) -> HowFar:
        return cls(*numbers[:HOW_FAR_NUMBERS], numbers[HOW_FAR_NUMBERS:])


HOW_FAR_NUMBERS = len(HowFar._fields) - 1
"""Numbers of a `HowFar` beside the samples of each rank."""


class KeptGradient:
    """A rank's own gradient, so that a step that was broken off while gradients were summed is taken again with it.

    Nobody waits then for the gradient of a process that has joined just now: it has no share in the mean of this step.
    """

    def __init__(self, gradient: Flat, progress: Progress):
        self.gradient, self.progress = gradient, progress
        self.copy = gradient.like()
        self.computed_after = -1
        """How many steps had been taken when it was computed."""
        self.weight: float | None = None
        """With which it is put back; None where the step is begun with a new one."""
        self.is_absent = False
        """Whether this rank has no share in the mean of the step under way."""

    @property
    def is_there(self) -> bool:
        """Whether it is of the step under way."""
        return self.computed_after == self.progress.steps

    def keep(self):
        self.copy.tensor.copy_(self.gradient.tensor)
        self.computed_after, self.is_absent = self.progress.steps, False

    def settle(self, have: list[bool]):
        """Note, after a death, which ranks have their gradient of the step; as many as the mean will be of."""
        self.weight = None
        if any(have):
            self.weight = len(have) / sum(have) if self.is_there else 0.0
            self.progress.absent = have.count(False)
        self.is_absent = self.weight == 0

    def put_back(self) -> bool:
        """Put it back, if the step under way is taken again; returns whether it is."""
        weight, self.weight = self.weight, None
        if weight is not None:
            torch.mul(self.copy.tensor, weight, out=self.gradient.tensor)
        return weight is not None


def together(trainer: Trainer):
    """Schedule: all steps, with whichever ranks are left; after a death, or when a process has joined, they regroup."""
    group = trainer.group
    while True:
        try:
            if group.has_changed and not (yield from regroup(trainer)):
                return
            yield from trainer.to_the_end()
            # Until all have taken their last step:
            yield from halving_doubling_allreduce(trainer.algorithm.uncounted_comm, np.zeros(1))
            return
        except (LostRank, Changed):
            if not group.has_changed:
                raise


def regroup(trainer: Trainer):
    """Schedule: begin again from the average of all models; returns False where another rank has ended its training,
    and so this one may.

    Processes that have joined have no model yet. Where an algorithm keeps all models equal, those that are a step
    behind do not count either, so that the model is the one of the others, bit for bit. Momenta are averaged, too. A
    step that sends gradients is taken again with those that are there.
    """
    group, replica, driver = trainer.group, trainer.replica, trainer.driver
    began = driver.clock()
    driver.abandon()
    yield from group.close()
    driver.abandoned.clear()
    mine = HowFar.of(trainer)
    told = yield from group.meet([*mine[:HOW_FAR_NUMBERS], *mine.counts])
    if told is None:
        return False
    told = [HowFar.read(numbers) for numbers in told.values()]
    furthest = max(told, key=lambda each: each[:HOW_FAR_NUMBERS])
    furthest = furthest._replace(counts=np.max([each.counts for each in told], axis=0))
    if not furthest.has_trained:
        raise RuntimeError("the processes of all ranks that had a model have died")
    counts = [
        each.has_trained and (each.steps == furthest.steps or not trainer.algorithm.traits.equal_models)
        for each in told
    ]
    comm, uncounted = group.communicators()
    weight, averages = float(counts[comm.rank]), []
    flats = replica.params, replica.buffers, momenta(trainer)
    for flat in flats:
        averages.append(flat.like())
        averages[-1].tensor.copy_(flat.tensor)
        yield from exact_average(uncounted, averages[-1], weight, root=counts.index(True))
    # From here on this rank waits only where the algorithm's start() does; if that fails, ranks meet again.
    for flat, average in zip(flats, averages, strict=True):
        flat.tensor.copy_(average.tensor)
    set_momenta(trainer, averages[-1].tensor)
    yield from trainer.go_on_with(replace(trainer.context, comm=comm, uncounted_comm=uncounted), furthest)
    if trainer.kept is not None:
        trainer.kept.settle([each.has_gradient and is_counted for each, is_counted in zip(told, counts, strict=True)])
    stood_still = driver.clock() - began + trainer.last_wait
    trainer.longest_wait = max(trainer.longest_wait, stood_still)
    return True


def momenta(trainer: Trainer) -> Flat:
    """Return all that the optimizer remembers of all parameters, one after the other."""
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
    """Return the tensors that the optimizer remembers; before its first step they are made, of zeros."""
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
