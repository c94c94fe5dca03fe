"""Learning-rate schedules. A learning-rate schedule is a function of the number of samples that all ranks together have
processed."""

import inspect
import math
from collections.abc import Callable
from functools import partial

import torch

from grsgd import outside
from grsgd.config.complaints import unknown_key
from grsgd.config.sections import Schedule
from grsgd.errors import ConfigError
from grsgd.training.progress import Progress
from grsgd.training.times import TimedOptimizer


def factor(schedule: Schedule, samples: int, epoch: int, end: int | None, own: Callable | None = None) -> float:
    """Return the factor by which ``schedule`` multiplies the learning rate after ``samples`` samples of all ranks.

    ``epoch`` is the number of samples in one epoch. ``end`` is the number of samples in the whole run, which the
    schedule "cosine" needs; None in a run of given seconds. ``own`` is the user's own schedule, as `own_function`
    returns it, or None.
    """
    warmup = schedule.warmup * epoch
    value = 1.0
    if own is not None:
        value = own(min(samples, end or samples) / epoch, None if end is None else end / epoch)
    if schedule.name == "step":
        value = schedule.factor ** sum(samples >= milestone * epoch for milestone in schedule.milestones)
    elif schedule.name == "cosine":
        share = min(1.0, max(0.0, (samples - warmup) / max(1.0, end - warmup)))
        value = (1 + math.cos(math.pi * share)) / 2
    if samples < warmup:
        value *= samples / warmup
    return value


def own_function(schedule: Schedule, end: int | None, epoch: int) -> Callable | None:
    """Return the user's own learning-rate schedule as a function of (epochs done, epochs in the run). Return None if
    ``schedule`` names a schedule of this package. The returned function uses the options of the configuration's section
    ``[schedule]``.

    Raises ConfigError for an option that the user's function does not take. Raises ConfigError if the user's function
    does not return a finite number for epoch 0.
    """
    if not schedule.is_own:
        return None
    make = outside.loaded(schedule.name, "schedules")
    options = list(inspect.signature(make).parameters.values())[2:]
    takes_all = any(option.kind is option.VAR_KEYWORD for option in options)
    allowed = [option.name for option in options if option.kind is not option.VAR_KEYWORD]
    for key in schedule.options:
        if key not in allowed and not takes_all:
            raise ConfigError(unknown_key(f"schedule.{key}", key, ["name", "warmup", *allowed]))
    own = partial(make, **schedule.options)
    try:
        value = float(own(0.0, None if end is None else end / epoch))
    except Exception as error:  # a user's function may raise any exception
        raise ConfigError(f"schedule.name = {schedule.name!r}: {type(error).__name__}: {error}") from None
    if not math.isfinite(value):
        raise ConfigError(f"schedule.name = {schedule.name!r}: returns {value} at the start")
    return own


class ScheduledOptimizer(TimedOptimizer):
    """Torch optimizer whose learning rates follow a learning-rate schedule, and which measures the time of its
    steps."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        progress: Progress,
        epoch: int,
        clock: Callable[[], float],
    ):
        """Wrap ``optimizer``. One epoch has ``epoch`` samples. ``clock()`` returns the present time in seconds. Raises
        ConfigError if the user's own learning-rate schedule does not work (`own_function`)."""
        super().__init__(optimizer, clock)
        self.schedule, self.progress, self.epoch = schedule, progress, epoch
        self.own = own_function(schedule, progress.end, epoch)
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.is_constant = schedule.name == "constant" and not schedule.warmup

    def step(self):
        """Update the parameters, with the learning rate that the schedule gives for the present progress of the run."""
        if not self.is_constant:
            scale = factor(self.schedule, self.progress.samples, self.epoch, self.progress.end, self.own)
            for group, rate in zip(self.param_groups, self.rates, strict=True):
                group["lr"] = rate * scale
        super().step()
