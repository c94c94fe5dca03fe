"""Drivers, which run the schedules (generators) of a rank in the foreground, and raise an error if a wait is longer
than the option ``comm.timeout``.

The message of the error names the network message for which the rank waited. The engine of the process
(`grsgd.comm.engine`) runs schedules in the background, while the rank computes.

A *schedule* is a generator that yields a pollable (`grsgd.comm.pollables`) or a tuple of pollables. A driver resumes a
schedule when ``Test()`` of all pollables that the schedule has yielded returns True. The driver decides how a rank
waits for pollables, for example by polling or sleeping. Therefore the same schedule can run in the foreground, during a
backward pass, and in simulated time (`grsgd.simulator.driver.SimulatedDriver`).
"""

import math
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
from grsgd.machine.cores import allowed_cores

BUSY = np.ones((64, 64), np.float32)
"""A matrix that `MpiDriver` multiplies by itself to keep a core busy, when a computation must last longer than its real
work. One multiplication takes some microseconds, in which other threads of the process can run."""

STOOD_STILL_SECONDS = 1.0
"""Longest time in seconds between two polls of a waiting rank that counts as waiting for the rank's time-out. If more
time passes between two polls, the rank's process is assumed to have been stopped in between."""

QUOTA_SECONDS = 1.0
"""Number of seconds after which a waiting rank reads its processor quota (limit of its control group) again, because
the quota may change at any time."""
QUOTA_SLEEP_SHARE = 1 / 8
"""Factor for the length of a sleep between two polls, on a rank whose processor quota is less than a core. The sleep
lasts the time waited so far, times `QUOTA_SLEEP_SHARE`, divided by the rank's quota in cores, but at most the time
waited so far.

For example, a poll takes 50 us of a core's time, and a quota of an eighth of a core supplies these 50 us in 0.4 ms.
"""
THREAD_SLEEP_SECONDS = 5e-4
"""Number of seconds from which the longest sleep of the engine's thread is computed, on a rank whose processor quota is
less than a core. The longest sleep is `THREAD_SLEEP_SECONDS` divided by the rank's quota in cores, within limits.

A small quota makes the longest sleep longer, because the thread's polls use processor time that the computation of the
gradient needs.
"""


class Driver(Protocol):
    """Interface of drivers: the methods that algorithms and the training loop call, in real and in simulated time.

    Implementations are `MpiDriver` and `grsgd.simulator.driver.SimulatedDriver`.
    """

    progress_mode: str
    """Name of the way in which background schedules are resumed: ``thread`` or ``inline`` in real time, or ``virtual``
    in simulated time."""
    timeout: float
    """Seconds after which a wait in the foreground raises `WaitTimeout`."""
    wait_seconds: float
    """Seconds that schedules in the foreground have spent waiting, in total."""
    watch: Callable[[], None] | None
    """Function that the driver calls repeatedly while a schedule in the foreground waits. The function ``watch`` may
    raise an error to end the wait, for example if another rank has stopped."""
    abandoned: list
    """Background schedules that the method `abandon` has stopped. The driver keeps the abandoned schedules, because MPI
    may still write into their arrays."""
    calls_stages: bool
    """Whether the driver itself calls the functions in the attribute ``stages`` of a `Compute`. A driver calls these
    functions if it makes a computation take longer or shorter than its real work (``work()``)."""

    def clock(self) -> float:
        """Return the present time in seconds since a moment that stays the same during the run."""

    def poll(self):
        """If no thread resumes the background schedules, resume them until each of them waits."""

    def start(self, schedule: Schedule) -> Pollable:
        """Start to run ``schedule`` in the background. Return a pollable whose ``Test()`` returns True when the
        schedule has ended.

        When the schedule has ended, the pollable's attribute ``value`` is the value that the schedule has returned.
        """

    def abandon(self):
        """Stop all background schedules that were started so far, by never resuming them again. A schedule that was
        abandoned changes no data any more."""


class WaitTimeout(RuntimeError):
    """Error raised if a rank waits longer than the time-out of its driver. The message of `WaitTimeout` names the
    waiting rank and the pollable for which the rank waited."""


class MpiDriver:
    """The `Driver` of one rank of a real job (not of a simulated job). In addition to the methods of `Driver`,
    `MpiDriver` has the method `run`, which runs schedules in the foreground.

    Parameters
    ----------
    rank
        Number of the rank, for error messages of time-outs.
    timeout
        Seconds after which a foreground wait raises `WaitTimeout`.
    progress_mode
        Name of a way to resume background schedules:

        - ``"thread"``: A separate thread resumes schedules, so messages are sent and received even while the trainer
          (the thread that computes gradients) computes.
        - ``"inline"``: The trainer resumes schedules whenever it calls `run`, waits, or calls `poll` (after each
          gradient of a backward pass). If the trainer has not resumed schedules for some milliseconds, a separate
          thread resumes them. The mode ``"inline"`` needs no thread switch, so it is faster for small models and for
          jobs with one rank per core.
        - ``"auto"``: The driver uses ``"thread"`` if this process has two or more cores to itself, else ``"inline"``.

    ranks_on_cores
        Number of ranks that share this process's cores.
    prepare_thread
        Function that the engine's thread calls before the thread resumes schedules of this driver.

    thread_allowed
        Whether the MPI library may be called from a second thread. If the value is False, only the trainer resumes
        schedules.
    compute_seconds
        Least processor time in seconds of a `Compute` of amount 1. With ``compute_seconds``, gradients of a small model
        can take as long as gradients of a large model.
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
        """Last words of the message of `WaitTimeout`, which name the option that a user should raise if ranks may be
        slow."""
        self.watch: Callable[[], None] | None = None
        self.wait_seconds = 0.0
        """Seconds that `run` has spent waiting, except the time in which the waiting thread resumed background
        schedules."""
        if progress_mode == "auto":
            progress_mode = "thread" if available_cores() >= 2 * ranks_on_cores else "inline"
        self.progress_mode = progress_mode
        self.ranks_on_cores = ranks_on_cores
        self.spin_seconds, self.sleep_share = SPIN_SECONDS, SLEEP_SHARE
        """Arguments with which waits in the foreground call `back_off`. On a rank with a processor quota of less than a
        core, `look_at_quota` changes these arguments."""
        self.thread_pauses = THREAD_SPIN_SECONDS, SLEEP_SHARE, SLEEP_SECONDS
        """Arguments with which the engine's thread, which resumes background schedules, calls `back_off`."""
        self._quota_asked = -math.inf
        self.thread_allowed = thread_allowed
        self.prepare_thread = prepare_thread
        self.compute_seconds = compute_seconds
        self.raises_in_waits_only = False
        """Whether errors of background schedules are raised by the next wait of `run` only, and not by `poll`."""
        self.abandoned: list[Handle] = []

    @property
    def calls_stages(self) -> bool:
        return self.compute_seconds > 0

    @property
    def background(self) -> list[Handle]:
        """Return the handles of this driver's background schedules that have not yet ended."""
        return [handle for handle in ENGINE.handles if handle.driver is self and not handle.ended]

    def clock(self) -> float:
        return time.perf_counter()

    def run(self, schedule: Schedule | None):
        """Run ``schedule`` to its end in the foreground, and return the value that the schedule returns. If
        ``schedule`` is None, this method does nothing and returns None.

        The time that the schedule spends waiting is added to ``wait_seconds``.

        Raises WaitTimeout if a wait takes longer than the time-out, and any error of the schedule, of a background
        schedule, or of the function ``watch``.
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
                    # raise the error inside the schedule, at its yield, so that the schedule can clean up
                    pending = schedule.throw(error)
                else:
                    pending = next(schedule)
        except StopIteration as end:
            return end.value

    def start(self, schedule: Schedule) -> Handle:
        return ENGINE.start(schedule, self)

    def poll(self):
        """If the engine's thread does not resume the background schedules, resume them until each of them waits.

        Raise the error of a background schedule that has failed, unless an earlier wait for this schedule has raised
        the error.
        """
        ENGINE.poll()
        if not self.raises_in_waits_only:
            ENGINE.check()

    def abandon(self):
        self.abandoned += ENGINE.abandon(self)

    def beside(self, process: int) -> "MpiDriver":
        """Return another driver of this process, for background schedules that never end and that continue even after a
        process has died.

        ``process`` is the number of this process.
        """
        more = {"prepare_thread": self.prepare_thread, "thread_allowed": self.thread_allowed}
        return MpiDriver(process, math.inf, self.progress_mode, **more)

    def close(self):
        """End this driver, and stop its background schedules that have not ended."""
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
                # much time between two polls means that this process was stopped, which must not cause a time-out
                if now - seen > STOOD_STILL_SECONDS:
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
            self.wait_seconds += max(time.perf_counter() - begin - (ENGINE.worked_seconds - before), 0.0)

    def quota(self) -> GroupQuota | None:
        """Return the processor quota of this rank, if the quota is less than one core. If the quota is one core or
        more, or if this rank has no quota, return None."""
        found = cpu_quota()
        if found is None or found.cores >= self.ranks_on_cores:
            return None
        return found._replace(cores=found.cores / self.ranks_on_cores)

    def look_at_quota(self, now: float):
        """Set the lengths of the sleeps between polls according to this rank's processor quota. This method reads the
        quota at most once per `QUOTA_SECONDS`.

        A rank with a quota of less than a core must sleep long, because each poll uses processor time that its
        computation or its receives need.
        """
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
    """Return the number of processor cores that this process may use."""
    return len(allowed_cores())
