"""Base class of tasks. A task defines the loss of a batch, and the metric by which trained models are tested."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod

import numpy as np

from grsgd.errors import ConfigError
from grsgd.lazy import LazyModule
from grsgd.runs.metric import Metric

torch = LazyModule("torch")


class Task(ABC):
    """Base class of tasks. A subclass of `Task` must define the method `total_loss`. The parameters of a subclass's
    ``__init__`` are keys of the configuration's section ``[task]``, and must have defaults.

    A task returns the losses and scores of a batch as sums over the batch's items, and the number of items. An item is
    a sample or, in a text, a token. Because a task returns sums, means over batches and ranks with different numbers of
    items are exact.
    """

    metric: Metric = Metric("loss")
    """Metric of the task, whose value the method `value` returns; by default the mean loss."""

    targets: str | None = None
    """Kind of targets that the task needs, as in `grsgd.data.Dataset.targets`: "classes", "tokens" or "numbers". The
    value is None if the task takes targets of any kind."""

    @abstractmethod
    def total_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses of all items of a batch, a scalar with a gradient.

        ``outputs`` are the model's outputs for the batch, [b, ...]; ``targets`` are the data set's targets.
        """

    def count(self, targets: torch.Tensor) -> int:
        """Return the number of items in a batch; by default each sample is one item."""
        return len(targets)

    def total_score(self, outputs: torch.Tensor, targets: torch.Tensor) -> float | torch.Tensor:
        """Return the sum of the scores of a batch's items, from which `value` computes the metric. By default the score
        of an item is its loss.

        A subclass that needs several sums, such as the numbers of true and false positives, returns a tensor [k]. If
        `total_score` returns a tensor [k], the method `value` of the subclass must take (sums, items).
        """
        return float(self.total_loss(outputs, targets))

    def value(self, mean: float) -> float:
        """Return the metric's value for the test data. ``mean`` is the mean score of all items of the test data. By
        default, the metric's value is ``mean``, the mean score of the test data.

        In a subclass whose `total_score` returns several sums, the method `value` takes (sums, items). ``sums`` are the
        sums over all test data, float64 [k], and ``items`` is the number of items of the test data.
        """
        return mean

    # ---- methods that evaluate models

    def totals(self, outputs, targets, items: int) -> np.ndarray:
        """Return the k sums that `total_score` returns for a batch, and the batch's number of items, as float64 [k +
        1].

        Raises ConfigError if `total_score` returns neither a number nor an array of sums.
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
                "value(self, sums, items), which computes the metric from the sums"
            )
        return np.append(sums, float(items))

    def metric_of(self, totals: np.ndarray) -> float:
        """Return the metric's value for the test data. ``totals`` is the sum of the results of the method `totals` over
        all batches."""
        *sums, items = totals
        if self.takes_sums:
            return float(self.value(torch.tensor(sums, dtype=torch.float64), float(items)))
        return self.value(sums[0] / items)

    @property
    def takes_sums(self) -> bool:
        """Whether the method `value` takes (sums, items); if False, `value` takes the mean score."""
        parameters = inspect.signature(self.value).parameters.values()
        return sum(parameter.default is parameter.empty for parameter in parameters) > 1
