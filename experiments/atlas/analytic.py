"""The formula for the seconds of a step, with a gradient in each step and an exchange in every ``period``-th step."""

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
"""Number of models that cross the busiest link in an exchange, by method; 0 if ranks do not wait for it."""
BLOCKING = ("ring_allreduce", "local_sgd", "diloco")
"""The methods to which the formula for a step's time applies, because all their ranks wait for an all-reduce."""


@cache
def model_bytes(task: str) -> int:
    """Return the size of a task's model in bytes."""
    config = AtlasRun(task, "ring_allreduce", 1, "1gbit", 1, False).config()
    model = build_model(config, load_data(config), torch.device("cpu"))
    return sum(p.numel() for p in model.parameters()) * torch.finfo(getattr(torch, config.dtype)).bits // 8


def exchange_seconds(point: AtlasRun) -> float:
    """Return the seconds that one exchange of models takes by the formula."""
    messages = 2 * (HOSTS - 1) if point.method in BLOCKING else 2
    return EXCHANGED[point.method] * model_bytes(point.task) / rate(point.rate) + messages * duration(LATENCY)


def step_seconds(point: AtlasRun) -> float:
    """Return the seconds of a step by the formula, in which all ranks wait for the slowest rank."""
    return point.compute_seconds * point.slower + exchange_seconds(point) / point.period


def utilisation(point: AtlasRun) -> float:
    """Return the fraction of the time in which a rank computes by the formula, as the mean over the ranks."""
    compute = point.compute_seconds * (1 + (point.slower - 1) / HOSTS)
    return compute / step_seconds(point)
