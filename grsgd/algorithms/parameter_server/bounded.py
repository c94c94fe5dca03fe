"""Strategies of a parameter server that bound a worker's lead over the slowest worker: to 0 steps (bsp), to a number of
steps (ssp, dssp), or not at all (asp).

Sources: Ho et al. 2013 for SSP, and Zhao et al. 2019 for DSSP. The bulk synchronous strategy (bsp) and the asynchronous
strategy (asp) are well known and have no single source.
"""

import math
from typing import Annotated

from pydantic import AfterValidator, Field

from grsgd.algorithms.parameter_server.strategy import Strategy, StrategyOptions


def whole(steps: float) -> float:
    """Return ``steps``. Raise ValueError unless ``steps`` is a whole number or inf."""
    if not math.isinf(steps) and steps % 1 != 0:
        raise ValueError("must be a whole number from 0, or inf")
    return steps


Steps = Annotated[float, Field(ge=0), AfterValidator(whole)]


class SspOptions(StrategyOptions):
    s: Steps = Field(
        3,
        description="ssp, dssp, adsp: number of steps by which a worker may lead the slowest worker; in adsp a "
        "worker with a longer lead is AHEAD",
    )


class DsspOptions(SspOptions):
    r_max: int = Field(
        12, ge=0, description="dssp: largest number of steps beyond s by which a worker may lead the slowest worker"
    )


class Bsp(Strategy):
    """Bulk synchronous strategy: one update with the gradients of all active workers, after all active workers have
    pushed.

    With bsp the staleness tau of every gradient is 0. If a worker is lost after its push, its gradient is applied in
    the update of the current round, and in no later update.
    """

    keeps_step = True

    def due(self):
        return set(self.buffer) if self.active <= self.buffer.keys() else set()


class Asp(Strategy):
    """Asynchronous strategy: every gradient is applied and answered as soon as it arrives. With n workers the staleness
    tau of a gradient is n - 1 updates on average, and unbounded."""


class Ssp(Strategy):
    """Stale synchronous strategy (Ho et al. 2013): like `Asp`, but a worker that is more than ``s`` steps ahead of the
    slowest worker waits::

        hold the answer while c_i - min(c) > s

    So the numbers of pushes c of all workers satisfy max(c) - min(c) <= s + 1. The bound ``s`` on a worker's lead is a
    whole number of steps or inf. With s = 0 no worker begins a step before all n workers have pushed the previous step,
    as with `Bsp`, but with n updates per round.
    """

    Options = SspOptions

    @property
    def keeps_step(self):
        return self.options.s == 0

    def free(self, worker):
        return self.lead(worker) <= self.options.s


class Dssp(Ssp):
    """Dynamic stale synchronous strategy (Zhao et al. 2019): `Ssp` with a bound that varies between ``s`` and ``s +
    r_max``::

        if i has credit:               spend one; answer
        elif c_i - min(c) <= s:        answer
        elif c_i == max(c):            credit = r* of the controller; if r* > 0: spend one; answer
        else:                          hold until c_i - min(c) <= s

    The controller predicts the next pushes of worker i and of the slowest worker from the time between each worker's
    last two pushes. The number r* is chosen from 0 to r_max: after r* more steps, worker i ends a step as close in time
    as possible to a future push of the slowest worker. If several r are equally close, r* is the smallest of these r.
    The paper by Zhao et al. leaves four rules of `Dssp` open, which are inferred. For the times between pushes, the
    start of training counts as a push. If several workers are equally slow, the one with the lowest number counts as
    the slowest worker. No credit is granted before the slowest worker has pushed a gradient. The number r* is limited
    so that no worker's lead exceeds s + r_max, even if a worker gets credit repeatedly. So the numbers of pushes c of
    all workers satisfy max(c) - min(c) <= s + r_max + 1.
    """

    Options = DsspOptions
    remembers = (*Strategy.remembers, "credit")

    def __init__(self, workers: int, **options):
        super().__init__(workers, **options)
        self.credit = [0] * workers
        """Credit of each worker: number of further steps that the worker may take even if its lead is above ``s``."""
        self.pushed_at = [(start, start) for start in self.pulled_at]
        """Times of the last two pushes of each worker, in seconds."""

    @property
    def keeps_step(self):
        return self.options.s + self.options.r_max == 0

    def go_on(self, workers, now):
        super().go_on(workers, now)
        self.pushed_at = [(now, now) for _ in self.clocks]

    def arrived(self, worker, now):
        self.pushed_at[worker] = self.pushed_at[worker][1], now
        lead = self.lead(worker)
        if not self.credit[worker] and lead > self.options.s and lead == self.gap():
            self.credit[worker] = self.extra_steps(worker)

    def free(self, worker):
        return self.credit[worker] > 0 or super().free(worker)

    def answered(self, worker):
        self.credit[worker] = max(0, self.credit[worker] - 1)

    def extra_steps(self, worker: int) -> int:
        """Return r*, the number of extra steps that ``worker`` may take, just after a push of ``worker``."""
        slowest = min(sorted(self.active), key=lambda j: self.clocks[j])
        before, last = self.pushed_at[worker]
        slow_before, slow_last = self.pushed_at[slowest]
        period, slow_period = last - before, slow_last - slow_before
        if slow_period == 0:
            return 0

        def mismatch(r: int) -> float:
            end = last + r * period
            pushes = max(1, round((end - slow_last) / slow_period))
            return abs(end - (slow_last + pushes * slow_period))

        limit = min(self.options.r_max, self.options.s + self.options.r_max + 1 - self.lead(worker))
        # after a checkpoint the limit may be negative
        return min(range(max(int(limit), 0) + 1), key=mismatch)
