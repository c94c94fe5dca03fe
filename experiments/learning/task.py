"""A classification task that is evaluated by its loss instead of its accuracy."""

from torch.nn import functional

from grsgd import Metric, Task


class TestLoss(Task):
    """A task whose training and evaluation both use the cross-entropy."""

    __test__ = False  # pytest must not collect this class

    metric = Metric("cross_entropy", "nat", higher_is_better=False)
    targets = "classes"

    def total_loss(self, outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="sum")
