"""Base class of tasks; a task defines the loss of a batch, and the metric by which models are tested."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod

import numpy as np

from grsgd.errors import ConfigError
from grsgd.lazy import LazyModule
from grsgd.runs.metric import Metric

torch = LazyModule("torch")


class Task(ABC):
    """Base class of tasks. A subclass defines at least `total_loss`. Parameters of its ``__init__``, which must have
    defaults, are keys of the configuration's section [task].

    Losses and scores are sums over the items of a batch, and the items (samples, or tokens of text) are counted. So
    means over batches and ranks with different numbers of items are exact.
    """

    metric: Metric = Metric("loss")
    """Metric whose value `value` returns; by default the mean loss."""

    targets: str | None = None
    """Kind of targets that the task needs, as in `grsgd.data.Dataset.targets`: "classes", "tokens" or "numbers". None
    if the task takes any targets."""

    @abstractmethod
    def total_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses of all items of a batch, a scalar with a gradient.

        ``outputs`` are the model's outputs for the batch, [b, ...]; ``targets`` are the data set's targets.
        """

    def count(self, targets: torch.Tensor) -> int:
        """Return the number of items in a batch; by default each sample is one item."""
        return len(targets)

    def total_score(self, outputs: torch.Tensor, targets: torch.Tensor) -> float | torch.Tensor:
        """Return the sum over a batch's items of the score from which `value` computes the metric; by default the score
        is the loss. To use several sums, such as the numbers of true and false positives, return a tensor [k]; `value`
        then takes (sums, items)."""
        return float(self.total_loss(outputs, targets))

    def value(self, mean: float) -> float:
        """Return the metric's value, computed from the mean score of all items of the test data; by default it is this
        mean.

        In a subclass whose `total_score` returns several sums, this method takes (sums, items): the sums over all test
        data, float64 [k], and the number of items of the test data.
        """
        return mean

    # ---- for the evaluation of models

    def totals(self, outputs, targets, items: int) -> np.ndarray:
        """Return the k sums of `total_score` and the number of items of a batch as float64 [k + 1].

        Raises ConfigError if `total_score` returns no sum or array of sums.
        """
        found = self.total_score(outputs, targets)
        if isinstance(found, torch.Tensor):
            found = found.detach().cpu().numpy()
        try:
            sums = np.asarray(found, np.float64)
        except (TypeError, ValueError):
            sums = None
        if sums is None or sums.ndim > 1 or not sums.size:
            what = type(found).__name__ if sums is None else f"an array of shape {list(sums.shape)}"
            raise ConfigError(f"task: total_score() returns {what}, expected a sum over the batch, or a tensor of sums")
        if sums.size > 1 and not self.takes_sums:
            raise ConfigError(
                f"task: total_score() returns {sums.size} sums, but value() takes the mean of one: write "
                "value(self, sums, items) that makes the metric of them"
            )
        return np.append(sums, float(items))

    def metric_of(self, totals: np.ndarray) -> float:
        """Return the metric's value for test data; ``totals`` are the results of `totals` summed over all batches."""
        *sums, items = totals
        if self.takes_sums:
            return float(self.value(torch.tensor(sums, dtype=torch.float64), float(items)))
        return self.value(sums[0] / items)

    @property
    def takes_sums(self) -> bool:
        """Whether `value` takes (sums, items), and not a mean."""
        parameters = inspect.signature(self.value).parameters.values()
        return sum(parameter.default is parameter.empty for parameter in parameters) > 1
