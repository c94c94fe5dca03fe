"""Accuracy of single replicas and of their average, after training."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from grsgd.algorithms.averaging import average_buffers, exact_average
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.data import Split
from grsgd.models.replica import Replica

BATCH = 256


@dataclass(frozen=True)
class Quality:
    """Test accuracy of the averaged model; lowest and highest of the single replicas, NaN if they were not evaluated;
    and the consensus distance ``sqrt(mean_i |x_i - xbar|^2) / |xbar|`` of their parameters."""

    mean: float
    lowest: float
    highest: float
    consensus_distance: float


def outputs(model: torch.nn.Module, split: Split, indices: np.ndarray, device):
    """Yield (logits, labels) of the samples ``indices``, a batch at a time, in evaluation mode, without gradients."""
    training, dtype = model.training, next(model.parameters()).dtype
    model.eval()
    with torch.no_grad():
        batches = [indices[begin : begin + BATCH] for begin in range(0, len(indices), BATCH)]
        for x, y in split.batches(batches):
            yield model(x.to(device, dtype)), y.to(device)
    model.train(training)


def correct(model: torch.nn.Module, split: Split, indices: np.ndarray, device) -> int:
    """Return how many of the samples ``indices`` the model classifies correctly, in evaluation mode."""
    return sum(int((logits.argmax(1) == y).sum()) for logits, y in outputs(model, split, indices, device))


def share(split: Split, rank: int, ranks: int) -> np.ndarray:
    """Return the samples that one of ``ranks`` ranks tests the averaged model with."""
    return np.arange(len(split))[rank::ranks]


def accuracy_and_loss(model: torch.nn.Module, split: Split, device, ranks: int = 1) -> tuple[float, float]:
    """Return the accuracy, a fraction, and the mean cross-entropy of a model, computed by this process alone.

    In the batches that so many ``ranks`` would take: in others the logits could be rounded otherwise.
    """
    right, loss = 0, 0.0
    for rank in range(ranks):
        for logits, y in outputs(model, split, share(split, rank, ranks), device):
            right += int((logits.argmax(1) == y).sum())
            loss += float(cross_entropy(logits.double(), y, reduction="sum"))
    return right / len(split), loss / len(split)


def quality(comm, replica: Replica, split: Split, replicas: bool = True, weight: float = 1.0, known: bool = True):
    """Schedule, on all ranks at once: the `Quality` of the present replicas. Leaves their average in the replica.

    ``replicas``: whether to evaluate single ones, each on all of ``split``; their average is evaluated by all together.
    ``weight``: how much this rank's parameters count in it, compared with the others'. Of the buffers all count alike.
    ``known``: whether this rank has a model at all; where not, its weight has to be 0, and there is no replica of it.
    Where all weights are 0, for the rank that had the result has died, nothing is known of the mean.
    """
    everything = np.arange(len(split))
    own = correct(replica.model, split, everything, replica.device) / len(split) if replicas and known else math.nan
    local = replica.params.tensor.clone()
    total = yield from exact_average(comm, replica.params, weight)
    yield from average_buffers(comm, replica)
    mean = replica.params.tensor
    accuracies = np.zeros(comm.size)
    accuracies[comm.rank] = own
    sums = np.array([float((local - mean).double().square().sum()) if known else 0.0, 0.0])
    sums[1] = correct(replica.model, split, share(split, comm.rank, comm.size), replica.device)
    yield from halving_doubling_allreduce(comm, accuracies)
    yield from halving_doubling_allreduce(comm, sums)
    norm = float(mean.double().norm())
    distance = float(np.sqrt(sums[0] / comm.size)) / norm if norm else 0.0
    if not total:
        return Quality(math.nan, *of_replicas(accuracies), math.nan)
    return Quality(sums[1] / len(split), *of_replicas(accuracies), distance)


def of_replicas(accuracies: np.ndarray) -> tuple[float, float]:
    """Return the lowest and the highest of accuracies, NaN if none is known."""
    known = accuracies[~np.isnan(accuracies)]
    return (float(known.min()), float(known.max())) if known.size else (math.nan, math.nan)
