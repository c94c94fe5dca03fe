"""The contract of a strategy: when a parameter server applies a gradient, and when it answers the worker that sent it.

Nothing here communicates, holds a model or reads a clock: gradients that arrive and workers that are lost go in, with
their times, and decisions come out.

Sources of options that all have: staleness-aware weights: Zhang, Gupta, Lian, Liu 2015; delay compensation: Zheng et
al. 2017.
"""

import math
from typing import ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict

STATES = ("async", "straggler", "ahead")
"""The states in which adsp takes a worker to be, at each of its pushes."""


class StrategyOptions(BaseModel):
    """The options of one strategy; those of a strategy that has none."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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
    remembers: ClassVar[tuple[str, ...]] = ("version", "clocks", "dropped", "gathered")
    """The attributes that a checkpoint keeps; while all rest, nothing is in the buffer and no worker is blocked."""
    keeps_step: bool = False
    """Whether no worker begins a step before all have pushed the one before: then all may rest before the same step."""
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
        self.resting: set[int] = set()
        """Workers that are not active until `go_on`."""
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
        """Let these workers go on, all with the present model, after a rest of all."""
        self.active, self.resting, self.blocked, self.buffer = set(workers), set(), set(), {}
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

    def rests(self, worker: int, now: float) -> Decision:
        """Note that ``worker`` takes no step before `go_on`, as all others will: no other worker waits for it."""
        self.check_active(worker)
        self.resting.add(worker)
        return self.lost(worker, now)

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
