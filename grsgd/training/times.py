"""Measurement of a rank's times of computing, communicating and waiting, for all training loops."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from grsgd.algorithms.hooks import schedule_of
from grsgd.comm.driver import Driver
from grsgd.training import unwrapped


@dataclass
class RankTotals:
    """Numbers of steps and samples of one rank, and its times of computing, communicating and waiting in seconds."""

    steps: int = 0
    samples: int = 0
    compute_seconds: float = 0.0
    communicate_seconds: float = 0.0
    wait_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Time of all steps of this rank in seconds."""
        return self.compute_seconds + self.communicate_seconds + self.wait_seconds


class TimedOptimizer:
    """Torch optimizer that measures the time of its steps. ``clock()`` returns the present time in seconds."""

    def __init__(self, optimizer: torch.optim.Optimizer, clock: Callable[[], float]):
        self.optimizer, self.clock = optimizer, clock
        self.seconds = 0.0
        """Seconds that the training thread has spent in `step`; calls of `step` on other threads do not count."""
        self._thread = threading.get_ident()

    @property
    def param_groups(self) -> list[dict]:
        return self.optimizer.param_groups

    def step(self):
        """Update the parameters. Do nothing if the parameters are meta tensors, which have no content and no
        gradients."""
        begin = self.clock()
        first = next((p for group in self.param_groups for p in group["params"]), None)
        if first is None or not first.is_meta:
            unwrapped.step(self.optimizer)
        if threading.get_ident() == self._thread:
            self.seconds += self.clock() - begin


def timed(hook: Callable, totals: RankTotals, driver: Driver, optimizer: TimedOptimizer):
    """Run ``hook``, a hook of an algorithm, and add the hook's time to ``totals``. This function is a generator
    (schedule) that the rank's driver (event loop) runs.

    The driver measures the waiting time of the hook. Model updates, including updates by a parameter server on this
    rank, count as computing. The remaining time of the hook counts as communicating.
    """
    begin, waited, updated = driver.clock(), driver.wait_seconds, optimizer.seconds
    yield from schedule_of(hook)
    waited = driver.wait_seconds - waited
    busy = max(driver.clock() - begin - waited, 0.0)  # rounding of simulated times may make the difference negative
    updated = min(optimizer.seconds - updated, busy)
    totals.wait_seconds += waited
    totals.compute_seconds += updated
    totals.communicate_seconds += busy - updated
