"""Drivers, which run a rank's schedules in the foreground, and end a wait that is longer than ``comm.timeout``.

The error names the message for which the rank waited. The engine of the process runs schedules in the background.

A *schedule* is a generator that yields a pollable (`grsgd.comm.pollables`) or a tuple of pollables. A schedule goes on
when all pollables that it has yielded are true. The driver decides how to wait. So the same schedule runs in the
foreground, behind a backward pass, and in simulated time (`grsgd.simulator.driver.SimulatedDriver`).
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
"""A matrix whose square takes some microseconds to compute, during which other threads of the process run."""

STOOD_STILL_SECONDS = 1.0
"""Longest time in seconds between two polls of a waiting rank that counts as waiting. After a longer time, the rank's
process is assumed to have been stopped meanwhile."""

QUOTA_SECONDS = 1.0
"""Number of seconds after which a waiting rank reads its processor quota again, because the quota may change at any
time."""
QUOTA_SLEEP_SHARE = 1 / 8
"""The length of a sleep is a share of the time waited so far. This share is `QUOTA_SLEEP_SHARE` divided by the number
of the rank's cores, but at most 1.

This rule applies to a rank with a quota of less than a core. A poll takes 50 us of a core's time; a quota of an eighth
of a core supplies 50 us in 0.4 ms.
"""
THREAD_SLEEP_SECONDS = 5e-4
"""Divided by the number of the rank's cores: the longest sleep in seconds of the background thread, on a rank with a
quota of less than a core.

The thread's polls take processor time from the gradient.
"""


class Driver(Protocol):
    """The methods of a driver that algorithms and the training loop use, in real and in simulated time.

    Implementations are `MpiDriver` and `grsgd.simulator.driver.SimulatedDriver`.
    """

    progress_mode: str
    """Mode of moving background schedules: ``thread``, ``inline`` or, in simulated time, ``virtual``."""
    timeout: float
    """Seconds after which a foreground wait is an error."""
    wait_seconds: float
    """Seconds that the foreground has spent waiting."""
    watch: Callable[[], None] | None
    """Function that is called now and then while the foreground waits. It raises an error to end the wait, for example
    if another rank has stopped."""
    abandoned: list
    """Abandoned schedules. They are kept because MPI may still write into the schedules' arrays."""
    calls_stages: bool
    """Whether the driver itself calls the stages of a `Compute`. A driver does so if the duration of a computation
    differs from the duration of its ``work()``."""

    def clock(self) -> float:
        """Return the seconds since some fixed moment."""

    def poll(self):
        """Let background schedules go on as far as they can, if nothing else moves them."""

    def start(self, schedule: Schedule) -> Pollable:
        """Drive ``schedule`` in the background; return a pollable that is true when the schedule has ended.

        The pollable then has the schedule's result as its ``value``.
        """

    def abandon(self):
        """Stop driving all schedules that were started so far. After this call none of these schedules changes
        anything."""


class WaitTimeout(RuntimeError):
    """Error raised if a wait takes longer than the driver's time-out. The error's message names the rank and the
    pollable that the rank waited for."""


class MpiDriver:
    """The `Driver` of one rank of a real job, which also runs schedules in the foreground.

    Parameters
    ----------
    rank
        Number of the rank, for the messages of time-outs.
    timeout
        Seconds after which a foreground wait is an error.
    progress_mode
        The thread that resumes background schedules:

        - ``"thread"``: a separate thread, so messages are sent and received even while the trainer computes.
        - ``"inline"``: the trainer, whenever it calls `run`, waits, or calls `poll` (after each gradient of a backward
          pass). If the trainer has done none of these for some milliseconds, a thread moves the schedules. This mode
          costs no thread switch, so it is faster for small models, and if each core has a rank of its own.
        - ``"auto"``: ``"thread"`` if this process has two or more cores to itself, else ``"inline"``.

    ranks_on_cores
        Number of ranks that share this process's cores.
    prepare_thread
        Function that the progress thread calls before the thread resumes schedules of this driver.

    thread_allowed
        Whether the MPI library may be called from a second thread. If not, only the trainer moves schedules.
    compute_seconds
        Least processor time in seconds of a `Compute` of amount 1. So a small model can take as long as a large model.
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
        """The end of a time-out's message, which names the option to raise if ranks may be slow."""
        self.watch: Callable[[], None] | None = None
        self.wait_seconds = 0.0
        """Seconds spent in waits of `run`, without the time in which background schedules moved in the waiting
        thread."""
        if progress_mode == "auto":
            progress_mode = "thread" if available_cores() >= 2 * ranks_on_cores else "inline"
        self.progress_mode = progress_mode
        self.ranks_on_cores = ranks_on_cores
        self.spin_seconds, self.sleep_share = SPIN_SECONDS, SLEEP_SHARE
        """Arguments of `back_off` for waits in the foreground. `look_at_quota` changes them on a rank with less than a
        core."""
        self.thread_pauses = THREAD_SPIN_SECONDS, SLEEP_SHARE, SLEEP_SECONDS
        """Arguments of `back_off` for the thread that moves background schedules."""
        self._quota_asked = -math.inf
        self.thread_allowed = thread_allowed
        self.prepare_thread = prepare_thread
        self.compute_seconds = compute_seconds
        self.raises_in_waits_only = False
        """Whether `poll` leaves the errors of background schedules to the next wait of `run`."""
        self.abandoned: list[Handle] = []

    @property
    def calls_stages(self) -> bool:
        return self.compute_seconds > 0

    @property
    def background(self) -> list[Handle]:
        """Return the schedules in the background that have not ended."""
        return [handle for handle in ENGINE.handles if handle.driver is self and not handle.ended]

    def clock(self) -> float:
        return time.perf_counter()

    def run(self, schedule: Schedule | None):
        """Drive ``schedule`` to its end and return its value. If ``schedule`` is None, this method runs nothing and
        returns None.

        Time spent waiting is added to ``wait_seconds``.

        Raises WaitTimeout, and any error of the schedule, of a background schedule, or of ``watch``.
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
                    # the error is raised at the schedule's yield, so that the schedule can clean up
                    pending = schedule.throw(error)
                else:
                    pending = next(schedule)
        except StopIteration as end:
            return end.value

    def start(self, schedule: Schedule) -> Handle:
        return ENGINE.start(schedule, self)

    def poll(self):
        """Let background schedules go on as far as they can, if no thread moves them.

        Raises the error of a background schedule, unless a wait for that schedule has raised the error already.
        """
        ENGINE.poll()
        if not self.raises_in_waits_only:
            ENGINE.check()

    def abandon(self):
        self.abandoned += ENGINE.abandon(self)

    def beside(self, process: int) -> "MpiDriver":
        """Return a further driver, for endless schedules in the background, which also go on after a process has died.

        ``process`` is the number of this process.
        """
        more = {"prepare_thread": self.prepare_thread, "thread_allowed": self.thread_allowed}
        return MpiDriver(process, math.inf, self.progress_mode, **more)

    def close(self):
        """End this driver; schedules that have not ended are abandoned."""
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
                # a long time without a poll means that this process was stopped, while messages may have arrived
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
        """Return the processor quota of this rank if the quota is less than a core per rank; otherwise None."""
        found = cpu_quota()
        if found is None or found.cores >= self.ranks_on_cores:
            return None
        return found._replace(cores=found.cores / self.ranks_on_cores)

    def look_at_quota(self, now: float):
        """Adapt the pauses between polls to this rank's processor quota, every `QUOTA_SECONDS`.

        If a rank has less than a core, its polls use processor time that its gradients need, or delay the message that
        the rank waits for.
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
    """Return the number of cores that this process may use."""
    return len(allowed_cores())
