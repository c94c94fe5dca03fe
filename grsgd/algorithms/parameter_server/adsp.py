"""adsp, the adaptive synchronous parallel strategy of a parameter server, which treats workers according to their state
(Wang, Zhu 2024).

Only the abstract of the adsp paper was available. The docstring of the class `Adsp` says which parts of the adsp
strategy are inferred.
"""

import statistics
from typing import ClassVar, Literal

from pydantic import Field

from grsgd.algorithms.parameter_server.bounded import SspOptions, Steps
from grsgd.algorithms.parameter_server.strategy import Strategy


class AdspOptions(SspOptions):
    renamed: ClassVar[dict[str, str]] = {
        "lam": "delay_ema",
        "kappa": "slow_factor",
        "phi": "straggler_weight",
    }

    smax: Steps = Field(15, description="adsp: largest number of steps by which a worker may lead the slowest worker")
    slow_factor: float = Field(
        1.5, gt=0, description="adsp: a worker is slow if its delay is above slow_factor times the median delay"
    )
    slow_streak: int = Field(
        3, ge=1, description="adsp: number of slow steps in a row after which a worker is a straggler"
    )
    delay_ema: float = Field(
        0.3, gt=0, le=1, description="adsp: weight of the last delay in the moving average of a worker's delays"
    )
    straggler_weight: Literal["inverse", "one", "compensated"] = Field(
        "inverse", description="adsp: weight of a straggler's gradient: 1/(1 + tau), 1, or 1 with compensation"
    )
    ahead_mode: Literal["buffer", "apply"] = Field(
        "buffer",
        description="adsp: buffer: the gradient of a worker AHEAD and the server's answer wait; apply: only the "
        "answer waits",
    )


class Adsp(Strategy):
    """Adaptive synchronous parallel (Wang, Zhu 2024): the state of a worker decides how its gradient is used::

        on push(i):
            d_i = (1 - lam) d_i + lam (now - when i was answered)
            slow_i = d_i > kappa median(d), at m pushes in a row
            lead_i = c_i - min(c);  gap = max(c) - min(c)
            if slow_i and lead_i == 0:  STRAGGLER: w -= eta/n phi(tau) g;  V += 1;  answer
            elif lead_i <= s:           ASYNC:     w -= eta/n g;           V += 1;  answer
            else:                       AHEAD:     put g into the buffer;  hold the answer
        before any answer is sent:
            if gap <= s or (gap <= smax and all that are not slow have their gradient in the buffer):
                w -= eta/n sum(buffer);  V += 1;  empty the buffer;  answer its workers

    According to the abstract of the adsp paper, a server recognises a straggler by its model version and its delay. The
    abstract of the adsp paper names a threshold for the difference between the newest and the oldest version, which
    decides the state of a worker. The abstract of the adsp paper names an update rule for each state of a worker. All
    other parts of `Adsp` are inferred: the rules themselves, and every option and its default. A gradient whose arrival
    empties the buffer is applied in the same update as the gradients in the buffer, so the order of arrival makes no
    difference.

    The numbers of pushes c of all workers satisfy max(c) - min(c) <= smax + 1, because the server answers no worker
    that leads by more than smax steps.

    The bounds ``s`` and ``smax`` on a worker's lead are whole numbers of steps or inf, with s <= smax. ``slow_factor``
    is kappa; with kappa = inf no worker is a straggler. ``slow_streak`` is m, ``delay_ema`` is lam, and
    ``straggler_weight`` is phi. The value "inverse" means phi = 1/(1 + tau), and the value "one" means phi = 1. The
    value "compensated" means phi = 1 with delay compensation of stragglers only. With ``ahead_mode`` = "apply", the
    gradient of a worker in the state AHEAD is applied as in the state ASYNC, but the server holds its answer while
    lead_i > s. With ``ahead_mode`` = "apply", the option smax has no effect.

    If no worker is a straggler (kappa = inf), or phi is "one", `Adsp` has three special cases. In these cases `Adsp`
    equals `Asp` (s = smax = inf), `Bsp` (s = smax = 0), and `Ssp` with the same s (ahead_mode "apply").
    """

    Options = AdspOptions
    remembers = (*Strategy.remembers, "delays", "late", "states")

    def __init__(self, workers: int, **options):
        super().__init__(workers, **options)
        s, smax = self.options.s, self.options.smax
        if smax < s:
            raise ValueError(f"smax = {smax:g}: must be at least s = {s:g}")
        self.delays: list[float | None] = [None] * workers
        """d_i of each worker: the moving average of the seconds from an answer to the worker's next push, or None
        before the first push."""
        self.late = [0] * workers
        """Number of the worker's last pushes in a row at which d_i was above slow_factor times the median of all
        delays."""
        self.states = ["async"] * workers
        """State of each worker at its last push: one of `STATES`."""

    @property
    def keeps_step(self):
        return self.most_lead == 0

    @property
    def most_lead(self) -> float:
        """Largest lead over the slowest worker, in steps, with which a worker may be answered."""
        return self.options.s if self.options.ahead_mode == "apply" else self.options.smax

    def state(self, worker):
        return self.states[worker]

    def slow(self, worker: int) -> bool:
        return self.late[worker] >= self.options.slow_streak

    def arrived(self, worker, now):
        delay, d = now - self.pulled_at[worker], self.delays[worker]
        ema = self.options.delay_ema
        self.delays[worker] = delay if d is None else (1 - ema) * d + ema * delay
        median = statistics.median(self.delays[j] for j in self.active if self.delays[j] is not None)
        is_late = self.delays[worker] > self.options.slow_factor * median
        self.late[worker] = self.late[worker] + 1 if is_late else 0
        lead = self.lead(worker)
        if self.slow(worker) and lead == 0:
            self.states[worker] = "straggler"
        else:
            self.states[worker] = "async" if lead <= self.options.s else "ahead"

    def due(self):
        gap, ahead = self.gap(), {worker for worker in self.buffer if self.states[worker] == "ahead"}
        all_ahead = all(worker in ahead for worker in self.active if not self.slow(worker))
        options = self.options
        if options.ahead_mode == "apply" or gap <= options.s or (gap <= options.smax and all_ahead):
            return set(self.buffer)
        return self.buffer.keys() - ahead

    def free(self, worker):
        return self.lead(worker) <= self.most_lead

    def weight(self, worker):
        weight = super().weight(worker)
        if self.states[worker] == "straggler" and self.options.straggler_weight == "inverse":
            weight /= 1 + self.version - self.buffer[worker]
        return weight

    def compensates(self, worker):
        is_compensated = self.options.straggler_weight == "compensated" and self.states[worker] == "straggler"
        return super().compensates(worker) or is_compensated
