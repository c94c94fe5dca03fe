"""Learning-rate schedules: functions of the samples processed by all ranks together."""

import math

from grsgd.config import Schedule


def factor(schedule: Schedule, samples: int, epoch: int, end: int | None) -> float:
    """What to multiply the learning rate by after ``samples`` samples.

    ``epoch``: samples in one epoch; ``end``: samples in the whole run, which `cosine` needs.
    """
    warmup = schedule.warmup * epoch
    value = 1.0
    if schedule.name == "step":
        value = schedule.factor ** sum(samples >= milestone * epoch for milestone in schedule.milestones)
    elif schedule.name == "cosine":
        share = min(1.0, max(0.0, (samples - warmup) / max(1.0, end - warmup)))
        value = (1 + math.cos(math.pi * share)) / 2
    if samples < warmup:
        value *= samples / warmup
    return value
