"""Options of an algorithm that a short measurement decides."""

import copy

import torch

from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.algorithms.context import RankContext
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.models.replica import Replica
from grsgd.training.gradients import CommonBatch


def choose_options(config: Config, dataset: Dataset, model: torch.nn.Module, context: RankContext):
    """Schedule, on all ranks at once: ``config`` with every option decided, and why so, or None.

    Only algorithms with a common batch have such options; ``model`` is not changed. Raises ConfigError.
    """
    algorithm = config.algorithm_class
    options = config.algorithm_options
    trial_options = algorithm.trial_options(options) if issubclass(algorithm, CommonBatchAlgorithm) else None
    if trial_options is None:
        return config, None
    replica = Replica(copy.deepcopy(model), getattr(torch, config.dtype))
    trial = algorithm(trial_options, replica, None, context)
    gradients = CommonBatch.of(config, dataset, replica, trial, context.comm.size)
    chosen, reason = yield from trial.choose_options(options, gradients.batch, gradients.next_gradient)
    named = config.algorithm.model_copy(update=chosen)
    return config.model_copy(update={"algorithm": named}), reason
