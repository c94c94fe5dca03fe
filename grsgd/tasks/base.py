"""The tasks that models are trained for: the loss of a batch, and the metric that says how good a model is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from grsgd.lazy import LazyModule
from grsgd.runs.metric import Metric

torch = LazyModule("torch")


class Task(ABC):
    """A task; a subclass says at least what the loss is. Further parameters of its ``__init__``, all with defaults, are
    options of the configuration's [task].

    Losses and scores are sums over the items of a batch (samples, or tokens of text), and items are counted: so means
    over batches and ranks of different sizes are exact.
    """

    metric: Metric = Metric("loss")
    """The metric that `value` returns. By default the mean loss."""

    targets: str | None = None
    """The kind of targets it is for, `grsgd.data.Dataset.targets`: "classes", "tokens" or "numbers"; None for any."""

    @abstractmethod
    def total_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum of the losses of all items of a batch, a scalar with a gradient.

        outputs: what the model makes of the batch, [b, ...]; targets: what the data set gives beside its input.
        """

    def count(self, targets: torch.Tensor) -> int:
        """Return how many items a batch has: by default one a sample."""
        return len(targets)

    def total_score(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Return the sum over all items of what the metric is made of: by default the loss."""
        return float(self.total_loss(outputs, targets))

    def value(self, mean: float) -> float:
        """Return the metric, given the mean score of all items of the test data: by default that mean."""
        return mean
