"""Evaluation of models on test data. The functions of this module compute the task's metric for each rank's model and
for the averaged model."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from grsgd.algorithms.averaging import average_buffers, exact_average
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.data import Split
from grsgd.models.replica import Replica, output_of, to_device
from grsgd.runs.metric import ACCURACY, Metric
from grsgd.tasks import Task

BATCH = 256
"""Largest number of test samples in one forward pass of the model."""
OUTPUTS = 2**24
"""Largest number of the model's output values in one forward pass of a test. A forward pass of a single sample may have
more than `OUTPUTS` output values."""


@dataclass(frozen=True)
class Quality:
    """Results of a test: values of the task's metric on test data, and the distance between the ranks' models.

    ``mean`` is the metric's value for the averaged model. ``lowest`` and ``highest`` are the extreme values of the
    metric among the models of single ranks; NaN if only the averaged model was tested. ``consensus_distance`` is
    ``sqrt(mean_i |x_i - xbar|^2) / |xbar|``, for the parameters x_i of replica i and their average xbar.
    """

    mean: float
    lowest: float
    highest: float
    consensus_distance: float
    metric: Metric = ACCURACY


def outputs(model: torch.nn.Module, split: Split, task: Task, indices: np.ndarray, device):
    """Yield (outputs of the model, targets, number of items) of the samples ``indices``, one batch at a time. The model
    runs in evaluation mode, without gradients. ``items`` is the number of items, such as tokens, that the task counts
    in a batch."""
    training, dtype = model.training, next(model.parameters()).dtype
    model.eval()
    with torch.no_grad():
        size = samples_at_once(model, split, indices, device)
        for x, y in split.batches([indices[begin : begin + size] for begin in range(0, len(indices), size)]):
            items = task.count(y)
            x, y = to_device(x, y, device, dtype)
            yield output_of(model, x), y, items
    model.train(training)


def samples_at_once(model: torch.nn.Module, split: Split, indices: np.ndarray, device) -> int:
    """Return the number of test samples for one forward pass of ``model``. The returned number is smaller than `BATCH`
    if the model outputs many values per sample, for example for a long text."""
    if not len(indices):
        return BATCH
    x, y = next(iter(split.batches([indices[:1]])))
    made = model(to_device(x, y, device, next(model.parameters()).dtype)[0])
    return max(1, min(BATCH, OUTPUTS // max(1, made.numel()))) if torch.is_tensor(made) else BATCH


def score(model: torch.nn.Module, split: Split, task: Task, indices: np.ndarray, device) -> np.ndarray:
    """Return the sums of the task's k scores over the samples ``indices``, and the number of items, as float64 [k + 1].
    The model runs in evaluation mode."""
    if not len(indices):  # a rank without samples returns zeros of the right shape
        return np.zeros_like(score(model, split, task, np.zeros(1, np.int64), device))
    return sum(task.totals(*batch) for batch in outputs(model, split, task, indices, device))


def share(split: Split, rank: int, ranks: int) -> np.ndarray:
    """Return the indices of the samples of ``split`` on which ``rank``, one of ``ranks`` ranks, tests the averaged
    model."""
    return np.arange(len(split))[rank::ranks]


def metric_and_loss(model: torch.nn.Module, split: Split, task: Task, device, ranks: int = 1) -> tuple[float, float]:
    """Return the task's metric and the mean loss of a model, computed by this process alone.

    The test data are cut into the same batches as in an evaluation by ``ranks`` ranks. If the batches differed, the
    model's outputs could be rounded differently.
    """
    totals, losses, count = 0.0, 0.0, 0
    for rank in range(ranks):
        for made, targets, items in outputs(model, split, task, share(split, rank, ranks), device):
            totals += task.totals(made, targets, items)
            losses += float(task.total_loss(*map(in_double, (made, targets))))
            count += items
    return task.metric_of(totals), losses / count


def in_double(values):
    """Return a tensor of floating-point numbers in double precision, and any other object unchanged."""
    return values.double() if torch.is_tensor(values) and values.is_floating_point() else values


def quality(
    comm, replica: Replica, split: Split, task: Task, replicas: bool = True, weight: float = 1.0, known: bool = True
):
    """Test the models that are in the ranks' replicas, and return the `Quality`. After the test, each replica holds the
    average of the models. This function is a generator (schedule) that all ranks run at once.

    If ``replicas`` is True, each rank also tests its own model on all of ``split``. The averaged model is always
    tested, by each rank on a part of ``split``. ``weight`` is the weight of this rank's parameters in the average,
    relative to the weights of the other ranks. The buffers of all ranks have the same weight in the average. ``known``
    says whether this rank has a model. A rank without a model must have the weight 0. The replica of a rank without a
    model does not affect the result. If the rank with the final model has died, all weights are 0, and the metric of
    the averaged model is NaN.
    """
    own = math.nan
    if replicas and known:
        own = task.metric_of(score(replica.model, split, task, np.arange(len(split)), replica.device))
    local = replica.params.tensor.clone()
    weights = yield from exact_average(comm, replica.params, weight)
    yield from average_buffers(comm, replica)
    mean = replica.params.tensor
    of_each = np.zeros(comm.size)
    of_each[comm.rank] = own
    square = float((local - mean).double().square().sum()) if known else 0.0
    tested = score(replica.model, split, task, share(split, comm.rank, comm.size), replica.device)
    sums = np.append(square, tested)
    yield from halving_doubling_allreduce(comm, of_each)
    yield from halving_doubling_allreduce(comm, sums)
    norm = float(mean.double().norm())
    distance = float(np.sqrt(sums[0] / comm.size)) / norm if norm else 0.0
    if not weights:
        return Quality(math.nan, *of_replicas(of_each), math.nan, task.metric)
    return Quality(task.metric_of(sums[1:]), *of_replicas(of_each), distance, task.metric)


def of_replicas(values: np.ndarray) -> tuple[float, float]:
    """Return the lowest and the highest of the metric's values for single ranks, without NaN. Return (NaN, NaN) if all
    values are NaN."""
    known = values[~np.isnan(values)]
    return (float(known.min()), float(known.max())) if known.size else (math.nan, math.nan)
