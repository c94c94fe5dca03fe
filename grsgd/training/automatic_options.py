"""Options of an algorithm that a short measurement decides."""

import copy

import numpy as np
import torch

from grsgd.algorithms.allreduce_trial import AUTO, choose_variant
from grsgd.algorithms.common_batch import CommonBatchAlgorithm, Load
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.transport_trial import AUTO as AUTO_TRANSPORT
from grsgd.algorithms.transport_trial import IP_MULTICAST, choose_transport
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.models.flat import Flat
from grsgd.models.replica import Replica
from grsgd.training.gradients import CommonBatch
from grsgd.training.stragglers import DelayModel

DELAYED_STEPS = 500
"""Steps of the run whose delays a trial knows."""


def choose_options(config: Config, dataset: Dataset, model: torch.nn.Module, context: RankContext):
    """Schedule, on all ranks at once: return ``config`` with every option decided, and why so, by what was decided:
    texts, None where nothing was to be.

    ``model`` is not changed; ``context.comm`` carries nothing else. Raises ConfigError, such as NoMulticast.
    """
    reasons = {}
    for what, choose in CHOOSERS.items():
        config, reasons[what] = yield from choose(config, dataset, model, context)
    return config, reasons


def choose_coded_transport(config: Config, dataset: Dataset, model: torch.nn.Module, context: RankContext):
    """Schedule: decide the transport of coded packets, where it may be IP multicast. Raises NoMulticast."""
    options = config.algorithm_options
    wanted = getattr(options, "transport", None)
    if wanted not in (IP_MULTICAST, AUTO_TRANSPORT):
        return config, None
    on_gpu = next(model.parameters()).device.type == "cuda"
    chosen, reason = yield from choose_transport(context.comm, wanted, options.settings(config.seed), on_gpu)
    return with_options(config, chosen), reason


def choose_redundancy(config: Config, dataset: Dataset, model: torch.nn.Module, context: RankContext):
    """Schedule: decide the options that an algorithm with a common batch has for that. Raises ConfigError."""
    algorithm = config.algorithm_class
    options = config.algorithm_options
    trial_options = algorithm.trial_options(options) if issubclass(algorithm, CommonBatchAlgorithm) else None
    if trial_options is None:
        return config, None
    replica = Replica(copy.deepcopy(model), getattr(torch, config.dtype))
    trial = algorithm(trial_options, replica, None, context)
    chosen, reason = yield from trial.choose_options(options, load_of(config, dataset, replica, trial))
    return with_options(config, chosen), reason


def choose_allreduce(config: Config, dataset: Dataset, model: torch.nn.Module, context: RankContext):
    """Schedule: decide ``variant = "auto"``, the fastest all-reduce."""
    if getattr(config.algorithm_options, "variant", None) != AUTO:
        return config, None
    trained = [p for p in model.parameters() if p.requires_grad]
    size = sum(p.numel() for p in trained)
    like = Flat.zeros(size, getattr(torch, config.dtype), trained[0].device)
    chosen, reason = yield from choose_variant(context.comm, context.driver, like)
    return with_options(config, {"variant": chosen}), reason


CHOOSERS = {"transport": choose_coded_transport, "redundancy": choose_redundancy, "allreduce": choose_allreduce}
"""By what each decides, in this order: schedules like `choose_options`, each with one reason."""


def with_options(config: Config, chosen: dict) -> Config:
    """Return the configuration with other options of its algorithm."""
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update=chosen)})


def load_of(config: Config, dataset: Dataset, replica: Replica, trial: CommonBatchAlgorithm) -> Load:
    """Return what the ranks of a run compute, and what delays them. Raises ConfigError."""
    ranks = trial.comm.size

    def gradients(most: int | None = None) -> CommonBatch:
        return CommonBatch.of(config, dataset, replica, trial, ranks, most=most)

    delays = [DelayModel(config.stragglers, rank, config.seed) for rank in range(ranks)]
    steps = DELAYED_STEPS if config.stragglers.tail or config.stragglers.pause else 1
    return Load(
        gradients().batch,
        lambda samples: gradients(samples).next_gradient,
        np.array([each.factor for each in delays]),
        np.array([[each.delay(step, 0.0) for each in delays] for step in range(steps)]),
    )
