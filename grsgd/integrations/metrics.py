"""Metrics of torchmetrics that are computed over the samples of all ranks, by the collective calls of grsgd."""

import torch
from torchmetrics import Metric

from grsgd.integrations import collective
from grsgd.own_loop.ranks import size


def over_all_ranks(module: torch.nn.Module):
    """Let each metric in ``module``, or the metric ``module`` itself, be computed over the samples of all ranks."""
    for metric in (each for each in module.modules() if isinstance(each, Metric)):
        metric.distributed_available_fn, metric.dist_sync_fn = is_on_several_ranks, gather


def is_on_several_ranks() -> bool:
    """Return whether metrics are to be computed over several ranks."""
    return size() > 1


def gather(state: torch.Tensor, group=None) -> list[torch.Tensor]:
    """Return the states of a metric on all ranks, in the order of ranks."""
    return collective.all_gather(state)
