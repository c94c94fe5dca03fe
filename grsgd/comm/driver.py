"""Runs schedules on real MPI: in the foreground, and in the background of the trainer.

A schedule is a generator that yields a pollable, or a tuple of them, and goes on when all of them are true. The
simulator has a driver of its own with the same verbs: ``run``, ``start``, ``abandon``, ``poll`` and ``clock``.
"""

import os
import threading
import time
from collections.abc import Callable, Generator

from grsgd.comm.pollables import Delay

Schedule = Generator[object, None, object]

SPIN_SECONDS, BACKGROUND_SPIN_SECONDS = 1e-3, 2e-4
"""How long a rank that waits polls without sleeping. A thread beside a trainer should not: where a process has a share
of a core, what the thread uses is taken from the gradient."""


class WaitTimeout(RuntimeError):
    """A wait took longer than the driver's time-out; says which rank waited for what."""


class Handle:
    """A schedule in the background; itself a pollable, true when the schedule has ended.

    ``Test()`` raises what the schedule raised, so that a failure in the background surfaces in whoever waits.
    """

    def __init__(self, schedule: Schedule, poll):
        self._schedule = schedule
        self._poll = poll
        self._pending: list = []
        self._ended = False
        self.error: BaseException | None = None
        self.value = None

    def Test(self) -> bool:
        if not self._ended:
            self._poll()
        ended = self._ended  # before the error, which a progress thread sets first
        if self.error is not None:
            raise self.error
        return ended

    def advance(self) -> bool:
        """Go on as far as possible without waiting; returns whether anything moved. Never raises."""
        moved = False
        try:
            while not self._ended:
                try:
                    while self._pending:
                        if not self._pending[-1].Test():
                            return moved
                        self._pending.pop()
                except Exception as error:
                    self._pending = as_list(self._schedule.throw(error))  # fails where the schedule waits
                else:
                    moved = True
                    self._pending = as_list(next(self._schedule))
        except StopIteration as end:
            self.value = end.value
            self._ended = True
        except BaseException as error:  # noqa: BLE001  surfaces in Test()
            self.error = error
            self._ended = True
        return True

    def __str__(self):
        waiting = f", which waits for {self._pending[-1]}" if self._pending else ""
        return f"background schedule {self._schedule.__name__}{waiting}"


def as_list(pending) -> list:
    """What a schedule yielded, as a list: None, one pollable, or an iterable of them."""
    if pending is None:
        return []
    if hasattr(pending, "Test"):
        return [pending]
    return list(pending)


class Driver:
    """Drives the schedules of one rank.

    ``timeout``: seconds after which a foreground wait is an error. ``progress``: who moves background schedules:

    - ``"thread"``: a thread of its own; messages move whatever the trainer does.
    - ``"inline"``: the trainer, whenever it calls `run`, waits, or calls `poll` (after each gradient of a backward
      pass). Costs no thread switch, so it is faster for small models and where each core has a rank of its own.
    - ``"auto"``: ``"thread"`` when this process has two or more cores to itself, else ``"inline"``.

    ``prepare_thread()`` is called in that thread before anything else.
    """

    def __init__(
        self,
        rank: int = 0,
        timeout: float = 600.0,
        progress: str = "auto",
        ranks_on_cores: int = 1,
        prepare_thread: Callable[[], None] = lambda: None,
    ):
        self.rank = rank
        self.timeout = timeout
        self.watch = None
        """Called now and then while waiting; raises to break the wait off (a rank elsewhere has stopped)."""
        self.wait_seconds = 0.0
        if progress == "auto":
            progress = "thread" if available_cores() >= 2 * ranks_on_cores else "inline"
        self.progress = progress
        self._handles: list[Handle] = []
        self._polling = False
        self._closing = False
        self._abandoned: list[Handle] = []
        self._advancing = threading.RLock()
        self._news = threading.Condition()
        self._thread = None
        self._prepare_thread = prepare_thread

    def clock(self) -> float:
        """Seconds since some fixed moment."""
        return time.perf_counter()

    def run(self, schedule: Schedule | None):
        """Drive ``schedule`` to its end and return its value; None stands for nothing to do.

        Time spent waiting is added to ``wait_seconds``.

        Raises WaitTimeout, and whatever the schedule, a background schedule it waits for, or ``watch`` raises.
        """
        self.poll()
        if schedule is None:
            return None
        try:
            pending = next(schedule)
            while True:
                try:
                    for pollable in as_list(pending):
                        if not pollable.Test():
                            self._wait(pollable)
                except Exception as error:
                    pending = schedule.throw(error)  # fails where the schedule waits, so that it can clean up
                else:
                    pending = next(schedule)
        except StopIteration as end:
            return end.value

    def start(self, schedule: Schedule) -> Handle:
        """Drive ``schedule`` in the background."""
        inline = self.progress == "inline"
        handle = Handle(schedule, self.poll if inline else lambda: None)
        handle.advance()  # post the first messages at once
        if handle._ended:
            return handle
        if inline:
            self._handles.append(handle)
            return handle
        with self._news:
            self._handles.append(handle)
            if self._thread is None:
                self._thread = threading.Thread(target=self._drive_background, name="grsgd-progress", daemon=True)
                self._thread.start()
            self._news.notify()
        return handle

    def poll(self):
        """Let background schedules go on as far as they can; does nothing where a thread does that."""
        if self.progress == "inline" and self._handles and not self._polling:
            self._polling = True  # a schedule that tests a handle must not drive itself
            try:
                self._advance_all()
            finally:
                self._polling = False

    def abandon(self):
        """Drive no schedule that was started so far any more: from now on none of them changes anything."""
        with self._news:
            self._abandoned += self._handles  # MPI may still write into the arrays of theirs that wait for messages
            self._handles.clear()
        with self._advancing:  # wait until the thread has put down what it had in hand
            pass

    def close(self):
        """End the progress thread. Schedules that have not ended are abandoned."""
        self.abandon()
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _wait(self, pollable):
        begin = now = time.perf_counter()
        looked = begin
        while not pollable.Test():
            self.poll()
            now = time.perf_counter()
            if now - looked > 1e-3:
                looked = now
                if self.watch is not None:
                    self.watch()
                if now - begin > self.timeout and not isinstance(pollable, Delay):
                    raise WaitTimeout(f"rank {self.rank} waited {self.timeout:g} s for {pollable}")
            back_off(now - begin)
        self.wait_seconds += now - begin

    def _advance_all(self) -> bool:
        moved = False
        for handle in tuple(self._handles):
            with self._advancing:
                if handle not in self._handles:  # `abandon` has come first
                    continue
                moved |= handle.advance()
            if handle._ended:
                with self._news:
                    if handle in self._handles:
                        self._handles.remove(handle)
        return moved

    def _drive_background(self):
        self._prepare_thread()
        idle_since = None
        while True:
            with self._news:
                while not self._handles and not self._closing:
                    self._news.wait()
                if self._closing:
                    return
            if self._advance_all():
                idle_since = None
            else:
                idle_since = idle_since or time.perf_counter()
                back_off(time.perf_counter() - idle_since, BACKGROUND_SPIN_SECONDS)


def back_off(waited: float, spin: float = SPIN_SECONDS):
    """Pause between two polls after having waited ``waited`` seconds: for ``spin`` seconds give way, then sleep a part.

    A rank that waits must not take the core from one that computes, and a wait must not be prolonged by more than
    a few per cent.
    """
    if waited < spin:
        os.sched_yield()
    else:
        time.sleep(min(waited / 16, 1e-3))


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
