"""Language modelling: the next token at each place of a text."""

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
"""Metrics, each with the function of its value: of the mean cross-entropy of a token in nats, and a token's bytes."""


class LanguageModelling(Task):
    """Cross-entropy of logits [b, places, tokens] and the tokens that follow, int64 [b, places].

    Every token has the same weight, in any batch and on any rank. Tokens below 0 (such as torch's -100) are padding:
    they have no loss and are not counted.

    ``metric`` is "bits_per_byte", or "perplexity" of a token. ``bytes_per_token`` is the text's mean; 1 for bytes.
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
