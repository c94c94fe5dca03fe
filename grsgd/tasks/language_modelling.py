"""Language modelling: the task of predicting the next token after each token of a text."""

from __future__ import annotations

import math

from grsgd.lazy import LazyModule
from grsgd.runs.metric import Metric
from grsgd.tasks.base import Task

torch = LazyModule("torch")

METRICS = {
    "bits_per_byte": (Metric("bits_per_byte"), lambda nats, each: nats / math.log(2) / each),
    "perplexity": (Metric("perplexity"), lambda nats, each: math.exp(min(nats, 700.0))),
}
"""Metrics of language modelling, by name. Each metric has a function that computes the metric's value from (mean
cross-entropy per token in nats, mean number of bytes per token)."""


class LanguageModelling(Task):
    """Task of language modelling. The loss is the cross-entropy of logits [b, length, number of different tokens] and
    the next tokens, int64 [b, length].

    Every token has the same weight in the loss, in any batch and on any rank. Targets below 0 (such as torch's -100)
    are padding, which has no loss and does not count as a token.

    ``metric`` is "bits_per_byte", or "perplexity" (per token). ``bytes_per_token`` is the mean number of bytes of a
    token in the text, which is 1 if tokens are bytes.
    """

    targets = "tokens"

    def __init__(self, metric: str = "bits_per_byte", bytes_per_token: float = 1.0):
        if metric not in METRICS:
            raise ValueError(f"metric = {metric!r}: allowed: {', '.join(map(repr, METRICS))}")
        if not bytes_per_token > 0:
            raise ValueError(f"bytes_per_token = {bytes_per_token:g}: must be above 0")
        self.metric, self._value = METRICS[metric]
        self.bytes_per_token = bytes_per_token

    def total_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        targets = targets.flatten().clamp(min=-1)
        return torch.nn.functional.cross_entropy(outputs.flatten(0, -2), targets, reduction="sum", ignore_index=-1)

    def count(self, targets: torch.Tensor) -> int:
        return int((targets >= 0).sum())

    def value(self, mean: float) -> float:
        return self._value(mean, self.bytes_per_token)
