"""A classification task that is evaluated by the loss in place of the accuracy."""

from torch.nn import functional

from grsgd import Metric, Task


class TestLoss(Task):
    """Cross-entropy, both for training and for evaluation."""

    __test__ = False  # pytest must not collect this class

    metric = Metric("cross_entropy", "nat", higher_is_better=False)
    targets = "classes"

    def total_loss(self, outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="sum")
