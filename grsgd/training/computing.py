"""Computation of the gradients of one rank's steps, with injected delays and a record of the losses."""

import math
from functools import partial

import numpy as np
import torch

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.central import workers_of
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.algorithms.context import RankContext
from grsgd.comm.pollables import Compute, Delay
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.models.replica import Replica
from grsgd.runs.ending import NON_FINITE_LOSS
from grsgd.training.gradients import CommonBatch, OwnBatches, begin_of_last_backward, stages
from grsgd.training.stragglers import DelayModel
from grsgd.training.times import RankTotals


class GradientComputing:
    """Computation of one rank's gradients. The losses of all steps are stored until the next snapshot.

    ``totals`` are the sums of the rank's times, to which the computing time of each gradient is added.
    """

    def __init__(self, config: Config, dataset: Dataset, replica: Replica, context: RankContext, totals: RankTotals):
        self.config, self.data, self.replica, self.totals = config, dataset, replica, totals
        self.driver, self.stop_signal = context.driver, context.stop_signal
        self.rank, self.ranks, self.replication = context.comm.rank, context.comm.size, context.replication
        self.shares_batches = issubclass(config.algorithm_class, CommonBatchAlgorithm)
        self.workers = workers_of(config.algorithm_class, config.algorithm_options, self.ranks)
        self.delays = DelayModel(config.stragglers, self.rank, config.seed)
        self.gradients: OwnBatches | CommonBatch | None = None
        """Object that computes this rank's gradients; None on a rank that does not train."""
        self.loss: float | None = None
        """Loss of the batch of the last computed gradient; None if no loss is known."""
        self.losses: dict[int, list[float]] = {}
        """Losses of all steps since the last snapshot, in a dict whose keys are the numbers of blocks of samples."""
        self.stages: list = []
        """Stages of a gradient's computation in simulated time. At each stage the gradient of one parameter becomes
        complete."""

    def go_on_from(self, step: int, algorithm: Algorithm):
        """Prepare to compute gradients for ``algorithm``, from step number ``step`` on."""
        self.close()
        torch.backends.cudnn.deterministic = self.shares_batches  # gradients of one block must be equal on all ranks
        if self.shares_batches:
            self.gradients = CommonBatch.of(self.config, self.data, self.replica, algorithm, self.ranks, step)
        elif self.rank < self.workers:
            shards = self.rank, self.workers, self.replication
            self.gradients = OwnBatches.of(self.config, self.data, self.replica, *shards, step)

    def tell_early(self, algorithm: Algorithm):
        """Let the backward pass call `Algorithm.gradient_ready` for each parameter as soon as its gradient is complete.
        Do nothing unless the algorithm sends gradients before the end of the backward pass.

        A rank with injected delays does not call `Algorithm.gradient_ready` early, because its gradients count as
        complete only after the delay.
        """
        if not (algorithm.traits.sends_early and self.ranks > 1 and self.delays.is_none):
            return
        if self.driver.calls_stages:
            begin = begin_of_last_backward(self.config.gradient, self.config.data.batch_size)
            self.stages = stages([p.numel() for p in self.replica.trained], algorithm.gradient_ready, begin)
        else:
            self.replica.on_gradient(partial(self._gradient_ready, algorithm))

    def _gradient_ready(self, algorithm: Algorithm, parameter: int):
        """Tell the algorithm that the gradient of parameter number ``parameter`` is complete. Before the last
        micro-batch of a batch, do nothing, because the gradient is not complete yet."""
        if self.gradients.gradient.is_last:
            algorithm.gradient_ready(parameter)

    def gradient(self, step: int):
        """Compute the gradient of step number ``step``, and wait for the rank's injected delay. This method is a
        generator (schedule) that the rank's driver (event loop) runs.

        Raises Stopped on all ranks if the loss of any rank is not finite.
        """
        begin = self.driver.clock()
        amount = self.gradients.samples / self.config.data.batch_size
        gradient = Compute(self.gradients.next_gradient, amount, self.stages)
        yield gradient
        delay = self.delays.delay(step, gradient.seconds)
        if delay > 0:
            yield Delay(delay)
        self.totals.compute_seconds += self.driver.clock() - begin
        self.loss = self._mean(gradient.value, step)

    def skip(self):
        """Skip the batch of a step for which the algorithm needs no gradient of this rank. This method is a generator
        (schedule) that the rank's driver (event loop) runs."""
        yield Compute(self.gradients.skip, 0)

    def _mean(self, losses: dict[int, float] | None, step: int) -> float | None:
        """Store ``losses``, the losses of this rank's blocks of samples, for the next snapshot. Return the weighted
        mean of the losses, or None if ``losses`` is None or empty."""
        if not losses:  # losses are None if only times are simulated, and empty on a rank without a block of samples
            return None
        weights = self.gradients.weights
        loss = sum(losses[number] * weight for number, weight in weights.items()) / self.gradients.samples
        if not math.isfinite(loss):
            self.stop_signal.stop(f"{NON_FINITE_LOSS} ({loss}) on rank {self.rank} at step {step}")
        for number, value in losses.items():
            self.losses.setdefault(number, []).append(value)
        return loss

    def mean_losses(self) -> dict[int, tuple[float, float]]:
        """Return (mean loss since the last snapshot, weight in the loss of all ranks) of each block of samples, by the
        block's number."""
        weights = self.gradients.weights if self.gradients is not None else {}
        return {number: (float(np.mean(values)), weights[number]) for number, values in self.losses.items()}

    def close(self):
        """End the worker processes that load the data, if any."""
        if self.gradients is not None:
            self.gradients.close()
