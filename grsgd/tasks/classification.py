"""Classification: the task of predicting the class of each sample."""

from __future__ import annotations

from grsgd.lazy import LazyModule
from grsgd.runs.metric import ACCURACY
from grsgd.tasks.base import Task

torch = LazyModule("torch")


class Classification(Task):
    """Task of classification. The loss is the cross-entropy of logits [b, classes] and labels, int64 [b]. The metric is
    accuracy, a fraction from 0 to 1."""

    metric = ACCURACY
    targets = "classes"

    def total_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="sum")

    def total_score(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return int((outputs.argmax(1) == targets).sum())
