"""The formula of a step: a gradient, and every ``period`` steps an exchange, which nothing is done beside."""

from functools import cache

import torch

from experiments.atlas.points import HOSTS, LATENCY, AtlasRun
from grsgd.training.inputs import build_model, load_data
from grsgd.units import duration, rate

EXCHANGED = {
    "ring_allreduce": 2 * (HOSTS - 1) / HOSTS,
    "local_sgd": 2 * (HOSTS - 1) / HOSTS,
    "diloco": 2 * (HOSTS - 1) / HOSTS,
    "noloco": 1.0,
    "dpsgd": 2.0,
    "gossip": 2.0,
    "decoupled": 2.0 * (HOSTS - 1),
    "lasgd": 0.0,
    "grsgd": 0.0,
}
"""Models that go over the busiest link in one exchange, which its ranks wait for."""
BLOCKING = ("ring_allreduce", "local_sgd", "diloco")
"""The methods that the formula is for: all wait for an all-reduce."""


@cache
def model_bytes(task: str) -> int:
    """Return the bytes of a task's model."""
    config = AtlasRun(task, "ring_allreduce", 1, "1gbit", 1, False).config()
    model = build_model(config, load_data(config), torch.device("cpu"))
    return sum(p.numel() for p in model.parameters()) * torch.finfo(getattr(torch, config.dtype)).bits // 8


def exchange_seconds(point: AtlasRun) -> float:
    """Return the seconds of one exchange alone."""
    messages = 2 * (HOSTS - 1) if point.method in BLOCKING else 2
    return EXCHANGED[point.method] * model_bytes(point.task) / rate(point.rate) + messages * duration(LATENCY)


def step_seconds(point: AtlasRun) -> float:
    """Return the seconds of a step: all wait for the slowest rank."""
    return point.compute_seconds * point.slower + exchange_seconds(point) / point.period


def utilisation(point: AtlasRun) -> float:
    """Return the share of the time in which ranks compute, on average over the ranks."""
    compute = point.compute_seconds * (1 + (point.slower - 1) / HOSTS)
    return compute / step_seconds(point)
