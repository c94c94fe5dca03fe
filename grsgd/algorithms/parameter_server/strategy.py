"""Base class of a parameter server's strategies, which decide when the server applies a gradient and when the server
answers the gradient's worker.

A strategy only decides: it sends no messages, holds no model and reads no clock. The server tells a strategy the times
at which gradients arrive and workers are lost, and the strategy returns decisions.

Every strategy has two options: staleness-aware weights of gradients (Zhang, Gupta, Lian, Liu 2015) and delay
compensation (Zheng et al. 2017).
"""

import math
from typing import ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict

STATES = ("async", "straggler", "ahead")
"""Possible states of a worker with the strategy adsp, which assigns one state to a worker at each of its pushes."""


class StrategyOptions(BaseModel):
    """Base class of a strategy's options; strategies without options of their own use the class itself."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Decision(NamedTuple):
    """Decision of a strategy: actions that the server takes after the arrival of a gradient or the loss of a worker.
    The server first gathers gradients (adds them to a sum), then applies the sum in an update, and then answers
    workers.

    An update adds one to the version of the model, and starts a new sum of gradients::

        w -= eta/n * sum of weight * g          # n: workers at the start; over all g gathered since the last update
    """

    gathered: tuple[tuple[int, float], ...] = ()
    """Pairs (worker, weight), in ascending order of workers, of the gradients that the server adds to the sum for the
    next update."""
    update: bool = False
    answers: tuple[int, ...] = ()
    """Workers, in ascending order, to which the server sends the model, after the decision's update if the decision has
    an update."""
    compensated: tuple[int, ...] = ()
    """Workers, in ascending order, for which the server adds g + lambda g g (w - w_i) to the sum in place of the
    gradient g. In the formula of delay compensation, w_i is the model in the last answer to worker i, and w the model
    before the update."""


class Strategy:
    """Base class of a parameter server's strategies. Worker i computes a gradient, pushes it to the server, and waits
    for the answer, which is the next model::

        on push(i, v_i, now):  tau = V - v_i;  c_i += 1;  put the gradient into the buffer
        on lost(i, now):       take i out of the active workers
        after either:          drop gradients that are too old; if any are due: apply them together, in worker order;
                               V += 1;  answer the workers that are free and have no gradient in the buffer

    A strategy overrides the methods `due` and `free`; some strategies also override `limit` and `completes_update`.
    Each gradient is multiplied by eta/n times its weight, where eta is the learning rate and n the number of workers at
    the start. A sample moves the model equally far with all strategies, even after workers have been lost, because n
    never changes.

    Every strategy keeps the following invariants. Each pushed gradient either is still in the buffer, or was dropped,
    or was applied exactly once, before its worker was answered. V is the number of updates, and 0 <= v_i <= V. The
    versions of the model in the answers to a worker never decrease. Unless all workers are lost, at least one active
    worker does not wait for an answer.

    Gradients that are added to the sum at the same time are added in the order of workers, even if they arrived in
    another order. The strategy `Rennala` adds each gradient to the sum on arrival, in the order of arrival.

    V is the version of the newest model, and v_i the version of the model in the last answer to worker i. The number of
    pushes of worker i is c_i, and tau is the staleness of a pushed gradient. ``workers`` is n, and workers are numbered
    from 0. ``start`` is the time at which all workers hold version 0 of the model, in seconds on the same clock as
    ``now``. With ``staleness_aware`` the weight of a gradient is 1/max(tau, 1), with its staleness tau at the time of
    the update. With ``delay_compensation`` all gradients are compensated for their delay. The other keyword arguments,
    ``options``, are the fields of the class ``Options``. `Strategy` raises ValueError on invalid options.
    """

    Options: ClassVar[type[StrategyOptions]] = StrategyOptions
    remembers: ClassVar[tuple[str, ...]] = ("version", "clocks", "dropped", "gathered")
    """Names of the strategy's attributes that a checkpoint stores. A checkpoint does not store the buffer of pushed
    gradients, because during a checkpoint the buffer is empty and no worker is blocked."""
    keeps_step: bool = False
    """If ``keeps_step`` is True, no worker begins a step before all workers have pushed the gradient of the previous
    step. So with ``keeps_step`` all workers can pause before the same step to write a checkpoint."""
    limit: float = math.inf
    """Staleness, in updates, at or above which a gradient is dropped as too old."""

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
        """V, the number of updates, which is the version of the newest model."""
        self.clocks = [0] * workers
        """c_i, the number of pushes of each worker i, including lost workers."""
        self.staleness = 0
        """tau of the last push: number of updates between the model at which the gradient was computed and the model at
        the gradient's arrival."""
        self.active = set(range(workers))
        self.resting: set[int] = set()
        """Workers that have paused for a checkpoint. Pausing workers are not active until `go_on` is called."""
        self.blocked: set[int] = set()
        """Active workers that have pushed a gradient and wait for the server's answer."""
        self.buffer: dict[int, int] = {}
        """Pushed gradients that wait for an update, by worker: the version v_i of the model at which each gradient was
        computed."""
        self.gathered = 0
        """Number of gradients in the sum that the next update of the model applies."""
        self.dropped = [0] * workers
        """Number of gradients of each worker that were dropped as too old."""
        self.pulled_at = [start] * workers
        self.staleness_aware = staleness_aware
        self.delay_compensation = delay_compensation

    def go_on(self, workers: set[int], now: float):
        """Make ``workers`` active again after all workers have paused for a checkpoint. When `go_on` is called, all
        ``workers`` hold the newest model."""
        self.active, self.resting, self.blocked, self.buffer = set(workers), set(), set(), {}
        self.pulled_at = [now] * len(self.clocks)

    def push(self, worker: int, version: int, now: float) -> Decision:
        """Process the arrival of a gradient that ``worker`` has computed at model ``version``; ``now`` is the time in
        seconds.

        Raises RuntimeError if ``worker`` has not been answered since its last push or is lost, or if ``version`` does
        not exist.
        """
        self.check_active(worker)
        if worker in self.blocked:
            raise RuntimeError(f"worker {worker} pushed a gradient before its last push was answered")
        if not 0 <= version <= self.version:
            newest = f"the newest model has version {self.version}"
            raise RuntimeError(f"worker {worker} pushed a gradient of version {version}: {newest}")
        self.staleness = self.version - version
        self.clocks[worker] += 1
        self.buffer[worker] = version
        self.blocked.add(worker)
        self.arrived(worker, now)
        return self.decide(now)

    def lost(self, worker: int, now: float) -> Decision:
        """Record that ``worker`` is lost, so that other workers no longer wait for ``worker``. The last gradient that
        ``worker`` has pushed is still applied to the model."""
        self.check_active(worker)
        self.active.remove(worker)
        self.blocked.discard(worker)
        return self.decide(now)

    def rests(self, worker: int, now: float) -> Decision:
        """Record that ``worker`` has paused for a checkpoint. ``worker`` takes no step until `go_on` is called, so
        other workers do not wait for ``worker``."""
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
        """React to a push of ``worker``, whose gradient has already been counted and put into the buffer. By default
        `arrived` does nothing."""

    def too_old(self) -> set[int]:
        """Return the workers whose gradients in the buffer are too old and must be dropped."""
        return {worker for worker, version in self.buffer.items() if self.version - version >= self.limit}

    def due(self) -> set[int]:
        """Return the workers whose gradients must be moved from the buffer into the sum; by default all workers in the
        buffer."""
        return set(self.buffer)

    def held(self) -> set[int]:
        """Return the workers whose answers must wait until their gradients have left the buffer; by default all workers
        in the buffer."""
        return set(self.buffer)

    def completes_update(self) -> bool:
        """Return whether the server must apply the sum of gradients as an update now; by default always True."""
        return True

    def free(self, worker: int) -> bool:
        """Return whether the server may answer ``worker`` once its gradient has left the buffer; by default always
        True."""
        return True

    @property
    def bound_gradients(self) -> int:
        """Number of gradients per update from which reports compute the least possible time of a run; by default the
        number of workers."""
        return len(self.clocks)

    def answered(self, worker: int):
        """Record that the server answers ``worker``. By default `answered` does nothing."""

    def weight(self, worker: int) -> float:
        """Return the weight with which the server adds the gradient of ``worker`` in the buffer to the sum."""
        tau = self.version - self.buffer[worker]
        return 1 / max(tau, 1) if self.staleness_aware else 1.0

    def compensates(self, worker: int) -> bool:
        return self.delay_compensation

    def lead(self, worker: int) -> int:
        """Return the lead of an active worker: the worker's number of pushes, minus the number of pushes of the slowest
        active worker."""
        return self.clocks[worker] - min(self.clocks[j] for j in self.active)

    def gap(self) -> int:
        """Return the largest lead of any active worker over the slowest active worker, or 0 if no worker is active."""
        return max(map(self.lead, self.active), default=0)

    def state(self, worker: int) -> str | None:
        """Return the state of ``worker`` at its last push, one of `STATES`. Return None if the strategy has no
        states."""
        return None

    def check_active(self, worker: int):
        if worker not in self.active:
            state = "is lost" if 0 <= worker < len(self.clocks) else f"is not one of the {len(self.clocks)}"
            raise RuntimeError(f"worker {worker} {state}")
