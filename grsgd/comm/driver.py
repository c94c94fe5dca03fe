"""Drives the schedules of one rank: in the foreground itself, in the background through the process's engine.

A *schedule* is a generator that yields a pollable (`grsgd.comm.pollables`), or a tuple of them, and goes on when all of
them are true. What drives it decides how to wait, so the same schedule runs in the foreground, behind a backward pass,
and in simulated time (`grsgd.simulate.driver.SimulatedDriver`).
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from grsgd.comm.engine import (
    ENGINE,
    LOOKS,
    SLEEP_SECONDS,
    SLEEP_SHARE,
    SPIN_SECONDS,
    THREAD_SPIN_SECONDS,
    Handle,
    Schedule,
    as_list,
    back_off,
)
from grsgd.comm.pollables import Compute, Delay, Pollable
from grsgd.control_groups import GroupQuota, cpu_quota

BUSY = np.ones((64, 64), np.float32)
"""Its square takes some microseconds, and lets other threads of the process run."""

STOOD_STILL_SECONDS = 1.0
"""A time between two polls of a rank that waits, from which on it does not count as waiting."""

QUOTA_SECONDS = 1.0
"""How often a rank that waits asks for its quota of the processor, which may be set at any time."""
QUOTA_SLEEP_SHARE = 1 / 8
"""Of the time waited so far, that a sleep takes where a rank has less than a core, divided by what it has: a look takes
50 us of a core, 0.4 ms of what an eighth of one has. But no more than all of that time."""
THREAD_SLEEP_SECONDS = 5e-4
"""The longest sleep of the thread there, which takes its looks from a gradient, in the same way."""


class Driver(Protocol):
    """The verbs of a driver that algorithms and the training loop use, in real and in simulated time.

    Implementations are `MpiDriver` and `grsgd.simulate.driver.SimulatedDriver`.
    """

    progress_mode: str
    """How background schedules are moved: ``thread``, ``inline`` or, in simulated time, ``virtual``."""
    timeout: float
    """Seconds after which a foreground wait is an error."""
    wait_seconds: float
    """Time that the foreground has spent waiting."""
    watch: Callable[[], None] | None
    """Called now and then while the foreground waits; raises to break the wait off (another rank has stopped)."""
    abandoned: list
    """Schedules that were abandoned. They are kept, for MPI may still write into arrays of theirs."""
    calls_stages: bool
    """Whether it calls the stages of a `Compute`, because that takes another time than its work."""

    def clock(self) -> float:
        """Return seconds since some fixed moment."""

    def poll(self):
        """Let background schedules go on as far as they can, where nothing else moves them."""

    def start(self, schedule: Schedule) -> Pollable:
        """Drive ``schedule`` in the background; the result is true when it has ended, and then has its ``value``."""

    def abandon(self):
        """Drive no schedule that was started so far any more: from now on none of them changes anything."""


class WaitTimeout(RuntimeError):
    """A wait took longer than the driver's time-out; says which rank waited for what."""


class MpiDriver:
    """The `Driver` of one rank of a real job, which runs schedules in the foreground too.

    Parameters
    ----------
    rank
        Named in time-outs.
    timeout
        Seconds after which a foreground wait is an error.
    progress_mode
        What moves background schedules:

        - ``"thread"``: a thread of its own; messages move whatever the trainer does.
        - ``"inline"``: the trainer, whenever it calls `run`, waits, or calls `poll` (after each gradient of a backward
          pass); a thread stands in for it when it has not for some milliseconds. Costs no thread switch, so it is
          faster for small models and where each core has a rank of its own.
        - ``"auto"``: ``"thread"`` when this process has two or more cores to itself, else ``"inline"``.
    ranks_on_cores
        How many ranks share this process's cores.
    prepare_thread
        Called in the thread before it moves schedules of this driver.
    thread_allowed
        Whether the MPI library may be called from a second thread; if not, nothing stands in for the trainer.
    compute_seconds
        Seconds of the processor that a `Compute` of amount 1 takes at least, so that a small model stands for a larger
        one.
    """

    def __init__(
        self,
        rank: int = 0,
        timeout: float = 600.0,
        progress_mode: str = "auto",
        ranks_on_cores: int = 1,
        prepare_thread: Callable[[], None] = lambda: None,
        thread_allowed: bool = True,
        compute_seconds: float = 0.0,
    ):
        self.rank = rank
        self.timeout = timeout
        self.limit = ""
        """The end of the message of a time-out: what to raise where a rank may be that slow."""
        self.watch: Callable[[], None] | None = None
        self.wait_seconds = 0.0
        """Time spent in waits of `run`, without what background schedules did meanwhile in this rank's own thread."""
        if progress_mode == "auto":
            progress_mode = "thread" if available_cores() >= 2 * ranks_on_cores else "inline"
        self.progress_mode = progress_mode
        self.ranks_on_cores = ranks_on_cores
        self.spin_seconds, self.sleep_share = SPIN_SECONDS, SLEEP_SHARE
        """As of `back_off`; of a rank that has less than a core, others."""
        self.thread_pauses = THREAD_SPIN_SECONDS, SLEEP_SHARE, SLEEP_SECONDS
        """As of `back_off`, of the thread that moves background schedules."""
        self._quota_asked = -math.inf
        self.thread_allowed = thread_allowed
        self.prepare_thread = prepare_thread
        self.compute_seconds = compute_seconds
        self.abandoned: list[Handle] = []

    @property
    def calls_stages(self) -> bool:
        return self.compute_seconds > 0

    @property
    def background(self) -> list[Handle]:
        """The schedules in the background that have not ended."""
        return [handle for handle in ENGINE.handles if handle.driver is self and not handle.ended]

    def clock(self) -> float:
        return time.perf_counter()

    def run(self, schedule: Schedule | None):
        """Drive ``schedule`` to its end and return its value; None stands for nothing to do.

        Time spent waiting is added to ``wait_seconds``.

        Raises WaitTimeout, and whatever the schedule, any background schedule, or ``watch`` raises.
        """
        if ENGINE.handles or ENGINE.failed:
            self.poll()
        if schedule is None:
            return None
        try:
            pending = next(schedule)
            while True:
                try:
                    for pollable in pending if type(pending) is tuple else as_list(pending):
                        if self.compute_seconds and isinstance(pollable, Compute):
                            self._compute(pollable)
                        if not pollable.Test():
                            self._wait(pollable)
                except Exception as error:
                    pending = schedule.throw(error)  # fails where the schedule waits, so that it can clean up
                else:
                    pending = next(schedule)
        except StopIteration as end:
            return end.value

    def start(self, schedule: Schedule) -> Handle:
        return ENGINE.start(schedule, self)

    def poll(self):
        """Let background schedules go on as far as they can, where no thread moves them.

        Raises what any of them has raised in the meantime, unless a wait for it has raised that already.
        """
        ENGINE.poll()
        ENGINE.check()

    def abandon(self):
        self.abandoned += ENGINE.abandon(self)

    def close(self):
        """End this driver. Schedules that have not ended are abandoned."""
        self.abandon()
        ENGINE.remove(self)

    def _compute(self, compute: Compute):
        begin, cpu_begin = time.perf_counter(), time.thread_time()
        compute.Test()
        least, stages = compute.amount * self.compute_seconds, deque(compute.stages)
        while (used := time.thread_time() - cpu_begin) < least:
            while stages and stages[0][0] * least <= used:
                stages.popleft()[1]()
            BUSY @ BUSY
            self.poll()
        for _, call in stages:
            call()
        compute.seconds = time.perf_counter() - begin

    def _wait(self, pollable):
        begin = moved = looked = seen = time.perf_counter()
        before = worked = ENGINE.worked_seconds
        stopped = 0.0
        in_background = getattr(pollable, "in_background", False)
        try:
            moves = ENGINE.moves
            while not any(pollable.Test() for _ in range(LOOKS)):
                ENGINE.poll()
                ENGINE.check()
                now = time.perf_counter()
                if now - seen > STOOD_STILL_SECONDS:  # this process was stopped: it may find all that it waited for
                    stopped += now - seen
                seen = now
                if ENGINE.worked_seconds != worked:
                    worked, moved = ENGINE.worked_seconds, now
                if now - looked > 1e-3:
                    looked = now
                    if self.watch is not None:
                        self.watch()
                    if now - begin - stopped > self.timeout and not isinstance(pollable, Delay):
                        raise WaitTimeout(f"rank {self.rank} waited {self.timeout:g} s for {pollable}{self.limit}")
                    self.look_at_quota(now)
                waited = now - moved
                if waited < self.spin_seconds or not (in_background and ENGINE.pause(moves)):
                    back_off(waited, self.spin_seconds, self.sleep_share)
                moves = ENGINE.moves
        finally:
            self.wait_seconds += time.perf_counter() - begin - (ENGINE.worked_seconds - before)

    def quota(self) -> GroupQuota | None:
        """Return the quota of this rank, if that leaves it less than a core."""
        found = cpu_quota()
        if found is None or found.cores >= self.ranks_on_cores:
            return None
        return found._replace(cores=found.cores / self.ranks_on_cores)

    def look_at_quota(self, now: float):
        """Now and then, poll as fits this rank's quota, if it has one: the polls of a rank that has less than a core
        are taken from its gradients, or let it be late for the message that it waits for."""
        if now - self._quota_asked <= QUOTA_SECONDS:
            return
        self._quota_asked = now
        quota = self.quota()
        if quota is None:
            self.spin_seconds, self.sleep_share = SPIN_SECONDS, SLEEP_SHARE
            self.thread_pauses = THREAD_SPIN_SECONDS, SLEEP_SHARE, SLEEP_SECONDS
        else:
            self.spin_seconds, self.sleep_share = 0.0, min(QUOTA_SLEEP_SHARE / quota.cores, 1.0)
            longest = max(min(THREAD_SLEEP_SECONDS / quota.cores, quota.period / 2), SLEEP_SECONDS)
            self.thread_pauses = 0.0, self.sleep_share, longest


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
