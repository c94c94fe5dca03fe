"""Evaluation of models on test data: the task's metric of single replicas, and of the replicas' average."""

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
"""Largest number of samples that are evaluated at once."""
OUTPUTS = 2**24
"""Largest number of output values of all samples that are evaluated at once. A single sample is evaluated even if it
has more output values."""


@dataclass(frozen=True)
class Quality:
    """Task's metric on test data: ``mean`` is its value for the averaged model, ``lowest`` and ``highest`` are its
    extreme values for single replicas. ``lowest`` and ``highest`` are NaN if single replicas were not evaluated.
    ``consensus_distance`` is ``sqrt(mean_i |x_i - xbar|^2) / |xbar|``, for the parameters x_i of replica i and their
    average xbar."""

    mean: float
    lowest: float
    highest: float
    consensus_distance: float
    metric: Metric = ACCURACY


def outputs(model: torch.nn.Module, split: Split, task: Task, indices: np.ndarray, device):
    """Yield (outputs, targets, items) of the samples ``indices``, a batch at a time, in evaluation mode, without
    gradients. ``items`` is the number of items that the task counts."""
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
    """Return the number of samples to evaluate at once. The number is below `BATCH` if the model outputs many values
    per sample, for example for a long text."""
    if not len(indices):
        return BATCH
    x, y = next(iter(split.batches([indices[:1]])))
    made = model(to_device(x, y, device, next(model.parameters()).dtype)[0])
    return max(1, min(BATCH, OUTPUTS // max(1, made.numel()))) if torch.is_tensor(made) else BATCH


def score(model: torch.nn.Module, split: Split, task: Task, indices: np.ndarray, device) -> np.ndarray:
    """Return the sums of the task's k scores over the samples ``indices``, and the number of items, as float64 [k + 1].
    The model is in evaluation mode."""
    if not len(indices):  # a rank without samples has as many zeros as other ranks have sums
        return np.zeros_like(score(model, split, task, np.zeros(1, np.int64), device))
    return sum(task.totals(*batch) for batch in outputs(model, split, task, indices, device))


def share(split: Split, rank: int, ranks: int) -> np.ndarray:
    """Return the numbers of the samples on which ``rank``, one of ``ranks`` ranks, tests the averaged model."""
    return np.arange(len(split))[rank::ranks]


def metric_and_loss(model: torch.nn.Module, split: Split, task: Task, device, ranks: int = 1) -> tuple[float, float]:
    """Return the task's metric and the mean loss of a model, computed by this process alone.

    The batches are the same as in an evaluation by ``ranks`` ranks, because outputs in other batches could be rounded
    differently.
    """
    totals, losses, count = 0.0, 0.0, 0
    for rank in range(ranks):
        for made, targets, items in outputs(model, split, task, share(split, rank, ranks), device):
            totals += task.totals(made, targets, items)
            losses += float(task.total_loss(*map(in_double, (made, targets))))
            count += items
    return task.metric_of(totals), losses / count


def in_double(values):
    """Return real numbers in double precision, and anything else unchanged."""
    return values.double() if torch.is_tensor(values) and values.is_floating_point() else values


def quality(
    comm, replica: Replica, split: Split, task: Task, replicas: bool = True, weight: float = 1.0, known: bool = True
):
    """Return the `Quality` of the present replicas, and leave the average of the replicas in each rank's replica. This
    function is a schedule (a generator that yields the objects it waits for), run on all ranks at once.

    ``replicas`` says whether each rank also evaluates its own replica on all of ``split``. The average is always
    evaluated: each rank tests the average on a part of ``split``. ``weight`` is the weight of this rank's parameters in
    the average, relative to the weights of the other ranks; the buffers of all ranks have the same weight. ``known``
    says whether this rank has a model. A rank without a model must have the weight 0, and its replica is not counted.
    If the rank with the final model has died, all weights are 0, and the mean is NaN.
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
    """Return the lowest and the highest of the values; NaN if no value is known."""
    known = values[~np.isnan(values)]
    return (float(known.min()), float(known.max())) if known.size else (math.nan, math.nan)
