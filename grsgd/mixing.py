"""Weighted sums of models."""

import torch

BLOCK = 1 << 16
"""Elements mixed at a time: what three models need of them stays in the cache."""


def mix(x: torch.Tensor, weight: float, others: list[tuple[float, torch.Tensor]]):
    """x = weight * x + sum of weight_j * x_j, in place, reading each vector from memory once."""
    if not others and weight == 1:
        return
    if not x.is_cpu:  # many small kernels cost more on a GPU than memory does
        _mix(x, weight, others)
        return
    blocks = zip(x.split(BLOCK), *(other.split(BLOCK) for _, other in others), strict=True)
    weights = [other_weight for other_weight, _ in others]
    for block, *parts in blocks:
        _mix(block, weight, list(zip(weights, parts, strict=True)))


def _mix(x, weight, others):
    if len(others) == 1 and weight + others[0][0] == 1:
        x.lerp_(others[0][1], others[0][0])
        return
    if weight != 1:
        x.mul_(weight)
    for other_weight, other in others:
        x.add_(other, alpha=other_weight)
