"""When a parameter server applies a gradient and when it answers the worker that sent it.

Nothing here communicates, holds a model or reads a clock: gradients that arrive and workers that are lost go in, with
their times, and decisions come out.

Sources: asynchronous and bulk synchronous as usual; SSP: Ho et al. 2013; DSSP: Zhao et al. 2019; adsp, the adaptive
synchronous parallel strategy: Wang, Zhu 2024; m_sync: Begunov, Tyurin 2026; rennala: Tyurin, Richtárik 2023;
ringmaster: Maranjyan, Tyurin, Richtárik 2025; staleness-aware weights: Zhang, Gupta, Lian, Liu 2015; delay
compensation: Zheng et al. 2017. Of Wang, Zhu 2024 only the abstract could be had: see `Adsp` for what is inferred.
"""

import math
import statistics
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def whole(steps: float) -> float:
    """Return a number of steps; raises ValueError unless it is whole or inf."""
    if not math.isinf(steps) and steps % 1 != 0:
        raise ValueError("must be a whole number from 0, or inf")
    return steps


Steps = Annotated[float, Field(ge=0), AfterValidator(whole)]


STATES = ("async", "straggler", "ahead")
"""What adsp takes a worker for, at each of its pushes."""


class StrategyOptions(BaseModel):
    """The options of one strategy; those of a strategy that has none."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SspOptions(StrategyOptions):
    s: Steps = Field(3, description="ssp, dssp, adsp: steps that a worker may lead by; adsp: then it is AHEAD")


class DsspOptions(SspOptions):
    r_max: int = Field(12, ge=0, description="dssp: steps beyond s that may be granted")


class AdspOptions(SspOptions):
    renamed: ClassVar[dict[str, str]] = {
        "lam": "delay_ema",
        "kappa": "slow_factor",
        "phi": "straggler_weight",
    }

    smax: Steps = Field(15, description="adsp: by how many steps a worker may lead at most")
    slow_factor: float = Field(
        1.5, gt=0, description="adsp: slow is a worker whose delay is above so many times the median"
    )
    slow_streak: int = Field(3, ge=1, description="adsp: in so many steps in a row")
    delay_ema: float = Field(0.3, gt=0, le=1, description="adsp: weight of the last delay in the moving average")
    straggler_weight: Literal["inverse", "one", "compensated"] = Field(
        "inverse", description="adsp: how a straggler's gradient counts: 1/(1 + tau), fully, or compensated"
    )
    ahead_mode: Literal["buffer", "apply"] = Field(
        "buffer", description="adsp: whether the gradient of a worker AHEAD waits, or only the answer to it"
    )


class MSyncOptions(StrategyOptions):
    fastest: int | None = Field(
        None, ge=1, description="m_sync: the first so many gradients make an update (m); all but one's by default"
    )


class RennalaOptions(StrategyOptions):
    gradients_per_update: int | None = Field(
        None, ge=1, description="rennala: gradients of one model that make an update (B); as many as workers by default"
    )


class RingmasterOptions(StrategyOptions):
    staleness_limit: int | None = Field(
        None,
        ge=1,
        description="ringmaster: gradients that are so many updates old are dropped (R); twice the workers by default",
    )


class Decision(NamedTuple):
    """The actions of a server after an event: gradients are gathered, then applied in an update, then come answers.

    An update adds one to the version, and begins the sum anew::

        w -= eta/n * sum of weight * g          # n: workers at the beginning; of all g gathered since the last update
    """

    gathered: tuple[tuple[int, float], ...] = ()
    """The workers, ascending, whose gradients g come to the sum, each with its weight."""
    update: bool = False
    answers: tuple[int, ...] = ()
    """The workers, ascending, that get the model as it is after the update."""
    compensated: tuple[int, ...] = ()
    """Workers whose gradients are gathered, ascending, with g + lambda g g (w - w_i) in place of g, where w_i is the
    model that this worker was last answered with and w the model before the update."""


class Strategy:
    """Worker i pulls the model, computes a gradient, pushes it, and waits for the answer, which is the next model::

        on push(i, v_i, now):  tau = V - v_i;  c_i += 1;  put the gradient into the buffer
        on lost(i, now):       take i out of the active workers
        after either:          drop what is too old; if any are due: apply them together, in the order of workers;
                               V += 1;  answer the workers that are free and have no gradient in the buffer

    The strategies differ in `due` and `free`, some in `limit` and `completes_update`. A gradient always counts eta/n
    times its weight, so all of them take the same step a sample, and still do when workers have been lost.

    Invariants: every gradient is applied exactly once, and before its worker is answered, or is dropped, or in the
    buffer; V is the number of updates; 0 <= v_i <= V; versions answered to a worker never decrease; unless all are
    lost, at least one of the active workers is not blocked.

    Gradients that are gathered at once are summed in the order of workers, whatever the order of their arrival; those
    of `Rennala` are gathered as they come.

    ``workers``: n, numbered from 0; ``start``: when all got version 0, in seconds on the clock of ``now``;
    ``staleness_aware``: weights 1/max(tau, 1), tau as it is when the gradient is applied; ``delay_compensation``: of
    all gradients; ``options``: as in ``Options``. Raises ValueError on options that cannot be.
    """

    Options: ClassVar[type[StrategyOptions]] = StrategyOptions
    remembers: ClassVar[tuple[str, ...]] = ("version", "clocks", "dropped")
    """What a checkpoint keeps; while all rest, nothing is in the buffer and no worker is blocked."""
    limit: float = math.inf
    """Updates after whose number a gradient is dropped: it is too old."""

    def __init__(
        self,
        workers: int,
        *,
        start: float = 0.0,
        staleness_aware: bool = False,
        delay_compensation: bool = False,
        **options,
    ):
        self.options = self.Options(**options)
        if workers < 1:
            raise ValueError(f"workers = {workers}: must be at least 1")
        self.version = 0
        """V, of the model after the last decision."""
        self.clocks = [0] * workers
        """c_i: pushes of each worker, the lost ones' as well."""
        self.staleness = 0
        """tau of the last push: updates between the model of its gradient and the model it found."""
        self.active = set(range(workers))
        self.blocked: set[int] = set()
        """Active workers that have pushed and are not answered."""
        self.buffer: dict[int, int] = {}
        """Workers whose gradient is not gathered yet, with its version v_i."""
        self.gathered = 0
        """Gradients that wait, in the sum of the next update."""
        self.dropped = [0] * workers
        """Gradients of each worker that were too old and are in no update."""
        self.pulled_at = [start] * workers
        self.staleness_aware = staleness_aware
        self.delay_compensation = delay_compensation

    def go_on(self, workers: set[int], now: float):
        """Let these workers go on, all with the present model, after a rest before which all were `lost`."""
        self.active, self.blocked, self.buffer = set(workers), set(), {}
        self.pulled_at = [now] * len(self.clocks)

    def push(self, worker: int, version: int, now: float) -> Decision:
        """A gradient of ``worker``, computed at model ``version``, has arrived at time ``now``, in seconds.

        Raises RuntimeError if that cannot be: the worker waits for an answer or is lost, or there is no such version.
        """
        self.check_active(worker)
        if worker in self.blocked:
            raise RuntimeError(f"worker {worker} pushed a gradient before its last one was answered")
        if not 0 <= version <= self.version:
            raise RuntimeError(f"worker {worker} pushed a gradient of version {version}: the last is {self.version}")
        self.staleness = self.version - version
        self.clocks[worker] += 1
        self.buffer[worker] = version
        self.blocked.add(worker)
        self.arrived(worker, now)
        return self.decide(now)

    def lost(self, worker: int, now: float) -> Decision:
        """``worker`` is gone for good: no other waits for it any more. What it has pushed is applied all the same."""
        self.check_active(worker)
        self.active.remove(worker)
        self.blocked.discard(worker)
        return self.decide(now)

    def decide(self, now: float) -> Decision:
        for worker in self.too_old():
            del self.buffer[worker]
            self.dropped[worker] += 1
        due = sorted(self.due())
        gathered = tuple((worker, self.weight(worker)) for worker in due)
        for worker in due:
            del self.buffer[worker]
        self.gathered += len(due)
        update = self.gathered > 0 and self.completes_update()
        if update:
            self.version += 1
            self.gathered = 0
        answers = sorted(worker for worker in self.blocked - self.held() if self.free(worker))
        for worker in answers:
            self.pulled_at[worker] = now
            self.answered(worker)
        self.blocked.difference_update(answers)
        compensated = tuple(worker for worker in due if self.compensates(worker))
        return Decision(gathered, update, tuple(answers), compensated)

    def arrived(self, worker: int, now: float):
        """Look at a push, which is counted and in the buffer already."""

    def too_old(self) -> set[int]:
        """Workers whose gradients in the buffer are dropped now."""
        return {worker for worker, version in self.buffer.items() if self.version - version >= self.limit}

    def due(self) -> set[int]:
        """Workers whose gradients in the buffer are gathered now; by default all."""
        return set(self.buffer)

    def held(self) -> set[int]:
        """Workers that are not answered before their gradient has been gathered; by default all in the buffer."""
        return set(self.buffer)

    def completes_update(self) -> bool:
        """Whether what is gathered is applied now; by default at once."""
        return True

    def free(self, worker: int) -> bool:
        """Whether a worker may go on whose gradient has been gathered; by default it may."""
        return True

    @property
    def bound_gradients(self) -> int:
        """How many gradients' least possible time the strategy is held against; by default as many as there are
        workers."""
        return len(self.clocks)

    def answered(self, worker: int):
        """Note that a worker is answered."""

    def weight(self, worker: int) -> float:
        """Weight of a gradient in the buffer."""
        tau = self.version - self.buffer[worker]
        return 1 / max(tau, 1) if self.staleness_aware else 1.0

    def compensates(self, worker: int) -> bool:
        return self.delay_compensation

    def lead(self, worker: int) -> int:
        """Return the pushes of an active worker, less those of the slowest active one."""
        return self.clocks[worker] - min(self.clocks[j] for j in self.active)

    def gap(self) -> int:
        """Largest lead; 0 if no worker is left."""
        return max(map(self.lead, self.active), default=0)

    def state(self, worker: int) -> str | None:
        """Return the state of a worker at its last push, one of `STATES`; None where a strategy tells none apart."""
        return None

    def check_active(self, worker: int):
        if worker not in self.active:
            state = "is lost" if 0 <= worker < len(self.clocks) else f"is not one of the {len(self.clocks)}"
            raise RuntimeError(f"worker {worker} {state}")


class Bsp(Strategy):
    """Bulk synchronous: one update, with the gradients of all, when all active workers have pushed.

    tau = 0. A worker that is lost after its push is in the round's update; the next rounds do without it.
    """

    def due(self):
        return set(self.buffer) if self.active <= self.buffer.keys() else set()


class Asp(Strategy):
    """Asynchronous: every gradient is applied on arrival and answered at once. tau is n - 1 on average, unbounded."""


class Ssp(Strategy):
    """Stale synchronous (Ho et al. 2013): as `Asp`, but no worker goes on that is more than ``s`` steps ahead::

        hold the answer while c_i - min(c) > s

    So max(c) - min(c) <= s + 1. ``s``: a whole number or inf; s = 0 keeps step like `Bsp`, with n updates a round.
    """

    Options = SspOptions

    def free(self, worker):
        return self.lead(worker) <= self.options.s


class Dssp(Ssp):
    """Dynamic stale synchronous (Zhao et al. 2019): `Ssp` with a bound between ``s`` and ``s + r_max``, as suits::

        if i has credit:               spend one; answer
        elif c_i - min(c) <= s:        answer
        elif c_i == max(c):            credit = r* of the controller; if r* > 0: spend one; answer
        else:                          hold until c_i - min(c) <= s

    The controller expects the pushes of i and of the slowest worker at the distance of their last two, and takes the
    r of 0..r_max for which the end of r more steps of i is closest to some push of the slowest to come, the smallest
    of equals. Inferred: the start counts as a push; the slowest of several is the first; there is no credit before the
    slowest has pushed; and r* stays below what would lead by more than s + r_max, since a worker may ask repeatedly.
    So max(c) - min(c) <= s + r_max + 1.
    """

    Options = DsspOptions
    remembers = (*Strategy.remembers, "credit")

    def __init__(self, workers: int, **options):
        super().__init__(workers, **options)
        self.credit = [0] * workers
        """Steps that each may still go on, whatever its lead."""
        self.pushed_at = [(start, start) for start in self.pulled_at]
        """Times of the last push but one and of the last one."""

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
        """r* for a worker that has just pushed."""
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
        return min(range(int(limit) + 1), key=mismatch)


class Adsp(Strategy):
    """Adaptive synchronous parallel (Wang, Zhu 2024): how a gradient is used depends on the state of its worker::

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

    Documented are the version and the delay as signs of a straggler, the difference between the newest and the oldest
    version that is compared with a threshold and decides the state, and an update rule for each state. All else is
    inferred: the rules themselves, and every option and its default. A gradient that empties the buffer is in the same
    update as the buffer, which is the same sum and one version less; so the order of arrival makes no difference.

    max(c) - min(c) <= smax + 1: no worker is answered that leads by more than smax.

    ``s``, ``smax``: whole numbers or inf, s <= smax; ``slow_factor`` (kappa): inf for no stragglers; ``slow_streak`` is
    m, ``delay_ema`` lam, and ``straggler_weight`` phi: "inverse", 1/(1 + tau), "one", or "compensated", weight 1 and
    delay compensation of stragglers only; ``ahead_mode`` = "apply": AHEAD differs from ASYNC in the answer only, which
    is held while lead_i > s, and smax is without effect.

    Is `Asp` with s = smax = inf, `Bsp` with s = smax = 0, and with ahead_mode "apply" `Ssp` of the same s; in all three
    without stragglers (kappa = inf) or with phi "one".
    """

    Options = AdspOptions
    remembers = (*Strategy.remembers, "delays", "late", "states")

    def __init__(self, workers: int, **options):
        super().__init__(workers, **options)
        s, smax = self.options.s, self.options.smax
        if smax < s:
            raise ValueError(f"smax = {smax:g}: must be at least s = {s:g}")
        self.delays: list[float | None] = [None] * workers
        """d_i, moving average of the seconds from an answer to the next push; the first delay at first."""
        self.late = [0] * workers
        """Pushes in a row at which d_i was large."""
        self.states = ["async"] * workers
        """The state of each worker at its last push, one of `STATES`."""

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
        return self.lead(worker) <= (self.options.s if self.options.ahead_mode == "apply" else self.options.smax)

    def weight(self, worker):
        weight = super().weight(worker)
        if self.states[worker] == "straggler" and self.options.straggler_weight == "inverse":
            weight /= 1 + self.version - self.buffer[worker]
        return weight

    def compensates(self, worker):
        is_compensated = self.options.straggler_weight == "compensated" and self.states[worker] == "straggler"
        return super().compensates(worker) or is_compensated


class MSync(Strategy):
    """m-synchronous (Begunov, Tyurin 2026): one update with the gradients of the ``m`` workers that come first::

        on push(i):   v_i < V: drop the gradient; answer
                      else: put it into the buffer; at m of them w -= eta/n sum(buffer);  V += 1;  answer its workers

    tau = 0. A worker that is late for a round is in the next one: it goes on to the end of its gradient, which cannot
    be interrupted. m = n is `Bsp`.
    """

    Options = MSyncOptions
    limit = 1

    def __init__(self, workers: int, **options):
        super().__init__(workers, **options)
        m = self.options.fastest
        if m is not None and m > workers:
            raise ValueError(f"fastest = {m}: there are {workers} workers")
        self.m = max(workers - 1, 1) if m is None else m

    def due(self):
        return set(self.buffer) if len(self.buffer) >= self.m or self.active <= self.buffer.keys() else set()

    @property
    def bound_gradients(self):
        return self.m


class Rennala(Strategy):
    """Rennala SGD (Tyurin, Richtárik 2023): one update with ``B`` gradients of the same model, whoever computes them::

        on push(i):   v_i < V: drop the gradient
                      else: sum += g;  if it is the B-th: w -= eta/n sum;  V += 1;  sum = 0
                      answer

    So a fast worker computes several of the B, and no worker waits. tau = 0. The paper's learning rate is that of the
    mean, eta B/n here. What is gathered when the last worker has ended, or all rest for a checkpoint, is an update too.
    """

    Options = RennalaOptions
    limit = 1

    def completes_update(self):
        return self.gathered >= self.bound_gradients or not self.active

    @property
    def bound_gradients(self):
        return self.options.gradients_per_update or len(self.clocks)


class Ringmaster(Strategy):
    """Ringmaster ASGD (Maranjyan, Tyurin, Richtárik 2025): as `Asp`, but gradients of tau >= ``R`` are dropped::

        on push(i):   V - v_i < R: w -= eta/n g;  V += 1
                      answer

    The variant of the paper that does not interrupt computations. R = inf would be `Asp`; R = 1 is `Rennala` of B = 1.
    """

    Options = RingmasterOptions

    def __init__(self, workers: int, **options):
        super().__init__(workers, **options)
        self.limit = self.options.staleness_limit or 2 * workers

    @property
    def bound_gradients(self):
        """R: by the paper R updates take at most twice as long as R gradients of one model need."""
        return self.limit


STRATEGIES: dict[str, type[Strategy]] = {
    "bsp": Bsp,
    "asp": Asp,
    "ssp": Ssp,
    "dssp": Dssp,
    "adsp": Adsp,
    "m_sync": MSync,
    "rennala": Rennala,
    "ringmaster": Ringmaster,
}
