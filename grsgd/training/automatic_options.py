"""Choice of values for algorithm options that are ``"auto"`` in the configuration, by a short measurement before the
run (the trial)."""

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
"""Number of steps whose random delays, configured in the section ``[stragglers]``, enter the measurement before a
run."""


def choose_options(config: Config, dataset: Dataset, model: torch.nn.Module, context: RankContext):
    """Measure on all ranks, and return ``config`` with a chosen value in place of each algorithm option that is
    ``"auto"``. Return also the reason for each chosen value, in a dict whose keys are names of attributes of the run
    file. This function is a generator (schedule) that all ranks run at once.

    The parameters of ``model`` are not changed. ``context.comm`` must carry only messages of the measurement before the
    run. Raises ConfigError if the measurement cannot be made. Raises NoMulticast, a subclass of ConfigError, if the
    configured multicast cannot be used.
    """
    dtype, of_trial = getattr(torch, config.dtype), replace(context, seed=config.seed)
    trial = Trial(of_trial, model, dtype, partial(load_of, config, dataset))
    chosen, reasons = yield from config.algorithm_class.choose_options(config.algorithm_options, trial)
    return with_options(config, chosen), reasons


def with_options(config: Config, chosen: dict) -> Config:
    """Return a copy of ``config`` with the values of ``chosen``, a dict from options of the algorithm to their
    values."""
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update=chosen)})


def load_of(config: Config, dataset: Dataset, trial: CommonBatchAlgorithm) -> Load:
    """Return the load of the ranks for the measurement before a run: functions that compute the gradients of the run,
    and the injected delays of each rank. Raises ConfigError if the algorithm cannot run with the settings of
    ``config``."""
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
