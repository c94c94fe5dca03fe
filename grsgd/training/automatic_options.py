"""Options of an algorithm whose value ``"auto"`` is replaced after a short measurement, the trial."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from grsgd.algorithms.before_run import Load, Trial
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.algorithms.context import RankContext
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.training.gradients import CommonBatch
from grsgd.training.stragglers import DelayModel

DELAYED_STEPS = 500
"""Number of steps for which a trial gets the random delays of the section ``[stragglers]``."""


def choose_options(config: Config, dataset: Dataset, model: torch.nn.Module, context: RankContext):
    """Return ``config`` with a value in place of each ``"auto"``. Return also the reason for each value, by attribute
    of the run file. This function is a schedule (a generator that yields the objects it waits for), to be run on all
    ranks at once.

    ``model`` is not changed. ``context.comm`` must carry only messages of the trial. Raises ConfigError if the trial is
    impossible; one of its kinds is NoMulticast.
    """
    dtype, of_trial = getattr(torch, config.dtype), replace(context, seed=config.seed)
    trial = Trial(of_trial, model, dtype, partial(load_of, config, dataset))
    chosen, reasons = yield from config.algorithm_class.choose_options(config.algorithm_options, trial)
    return with_options(config, chosen), reasons


def with_options(config: Config, chosen: dict) -> Config:
    """Return the configuration with changed options of its algorithm."""
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update=chosen)})


def load_of(config: Config, dataset: Dataset, trial: CommonBatchAlgorithm) -> Load:
    """Return the load of a trial: the gradients that the ranks compute in the run, and the ranks' delays. Raises
    ConfigError."""
    ranks = trial.comm.size

    def gradients(most: int | None = None) -> CommonBatch:
        return CommonBatch.of(config, dataset, trial.replica, trial, ranks, most=most)

    delays = [DelayModel(config.stragglers, rank, config.seed) for rank in range(ranks)]
    steps = DELAYED_STEPS if config.stragglers.tail or config.stragglers.pause else 1
    return Load(
        gradients().batch,
        lambda samples: gradients(samples).next_gradient,
        np.array([each.factor for each in delays]),
        np.array([[each.delay(step, 0.0) for each in delays] for step in range(steps)]),
    )
