"""Classification, tested by the loss in place of the accuracy."""

from torch.nn import functional

from grsgd import Metric, Task


class TestLoss(Task):
    """Cross-entropy, for training and for the test."""

    __test__ = False  # no test of pytest's

    metric = Metric("cross_entropy", "nat", higher_is_better=False)
    targets = "classes"

    def total_loss(self, outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="sum")
