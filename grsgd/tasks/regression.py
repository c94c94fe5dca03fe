"""Regression: the task of predicting one or more real numbers for each sample."""

from __future__ import annotations

import math

from grsgd.lazy import LazyModule
from grsgd.runs.metric import Metric
from grsgd.tasks.base import Task

torch = LazyModule("torch")


class Regression(Task):
    """Task of regression. The loss is the squared error of outputs and targets, float [b] or [b, ...]. The metric is
    the root of the mean squared error over all numbers of all targets.

    ``unit`` is the unit of the targets, such as "kW", which reports and figures show.
    """

    targets = "numbers"

    def __init__(self, unit: str = ""):
        self.metric = Metric("rms_error", unit)

    def total_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.reshape(targets.shape) - targets).square().sum()

    def count(self, targets: torch.Tensor) -> int:
        return targets.numel()

    def value(self, mean: float) -> float:
        return math.sqrt(mean)
