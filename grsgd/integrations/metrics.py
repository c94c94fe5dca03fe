"""Metrics of torchmetrics that are computed over the samples of all ranks, with the collective calls of grsgd."""

import torch
from torchmetrics import Metric

from grsgd.integrations import collective
from grsgd.own_loop.ranks import size


def over_all_ranks(module: torch.nn.Module):
    """Let each metric in ``module``, or the metric ``module`` itself, be computed over the samples of all ranks."""
    for metric in (each for each in module.modules() if isinstance(each, Metric)):
        metric.distributed_available_fn, metric.dist_sync_fn = is_on_several_ranks, gather


def is_on_several_ranks() -> bool:
    """Return whether the job has several ranks, so that metrics must be computed over all of them."""
    return size() > 1


def gather(state: torch.Tensor, group=None) -> list[torch.Tensor]:
    """Return the states of a metric on all ranks, in rank order. ``state`` is the state on this rank."""
    return collective.all_gather(state)
