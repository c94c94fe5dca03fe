"""The engine that moves the background schedules of a process, for all its drivers.

A background schedule must go on while the program does something else: a long forward pass, an evaluation on one rank,
a user's own blocking call, or a wait in another driver. So one engine per process resumes all background schedules. To
*move* a schedule is to resume it as often as possible. If the trainer (the thread that computes gradients) polls often,
the trainer moves the schedules. Otherwise a thread of the engine moves the schedules.
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Generator

Schedule = Generator[object, None, object]
"""Type of a schedule: a generator that yields pollables (`grsgd.comm.pollables`). The schedule is resumed when
``Test()`` of each yielded pollable returns True."""

TAKEOVER_SECONDS = 5e-3
"""Number of seconds without a poll of the trainer after which the engine's thread moves schedules, until the trainer's
next poll."""
SPIN_SECONDS, THREAD_SPIN_SECONDS = 1e-3, 2e-4
"""`SPIN_SECONDS`: number of seconds for which a waiting rank polls without sleeping. `THREAD_SPIN_SECONDS`: the same
number for the engine's thread, while the trainer computes.

`THREAD_SPIN_SECONDS` is short: if the process is limited to a part of a core, the polling thread slows down the
computation of the gradient.
"""
SLEEP_SECONDS = 1e-3
"""The longest sleep in seconds between two polls of a waiting rank. Also the shortest sleep in seconds of the engine's
thread, while the thread instead of the trainer moves schedules."""
SLEEP_SHARE = 1 / 16
"""Length of a sleep as a share of the time waited so far."""


BACKGROUND_SECONDS = 20e-3
"""Longest pause in seconds of a rank that waits for a background schedule, if the engine's thread resumes this
schedule."""

LOOKS = 2
"""Number of polls between two sleeps. Open MPI reports a message as complete only at the second poll after the
message's arrival."""


class Handle:
    """Handle of a schedule in the background: a pollable that is true when the schedule has ended.

    ``Test()`` raises the schedule's error, so that a wait for the schedule raises this error.
    """

    in_background = True

    def __init__(self, schedule: Schedule, driver, engine: "Engine"):
        self._schedule = schedule
        self.driver = driver
        self._engine = engine
        self._pending: list = []
        self.ended = False
        self.error: BaseException | None = None
        self.error_seen = False
        self.value = None

    def Test(self) -> bool:
        if not self.ended:
            self._engine.poll()
        ended = self.ended  # `ended` is read before `error`, because the engine's thread sets `error` before `ended`
        if self.error is not None:
            self.error_seen = True
            raise self.error
        return ended

    def advance(self) -> bool:
        """Resume the schedule until it has to wait; return whether it was resumed at all. Never raises."""
        moved = False
        try:
            while not self.ended:
                try:
                    while self._pending:
                        if not self._pending[-1].Test():
                            return moved
                        self._pending.pop()
                except Exception as error:
                    self._pending = as_list(self._schedule.throw(error))  # the error is raised at the schedule's yield
                else:
                    moved = True
                    self._pending = as_list(next(self._schedule))
        except StopIteration as end:
            self.value = end.value
            self.ended = True
        except BaseException as error:  # noqa: BLE001  raised in Test(), or at the next poll of the trainer
            self.error = error
            self.ended = True
        return True

    def __str__(self):
        waiting = f", which waits for {self._pending[-1]}" if self._pending else ""
        return f"background schedule {self._schedule.__name__}{waiting}"


def as_list(pending) -> list:
    """Return as a list the pollables that a schedule has yielded; a schedule may yield None, one pollable, or an
    iterable of pollables."""
    if pending is None:
        return []
    if hasattr(pending, "Test"):
        return [pending]
    return list(pending)


class Engine:
    """The background schedules of a process, in the order in which they were started.

    If at least one schedule belongs to a driver with ``progress_mode = "thread"``, the engine's thread moves all
    schedules. Otherwise the trainer moves the schedules whenever it polls or waits, and the thread moves the schedules
    only if the trainer's last poll was more than `TAKEOVER_SECONDS` ago. If a driver's MPI library allows calls from
    one thread only, the thread moves nothing.
    """

    def __init__(self):
        self.handles: list[Handle] = []
        self.worked_seconds = 0.0
        """Seconds that the trainer has spent in polls in which a background schedule was resumed. Polls of the engine's
        thread do not count."""
        self.thread_cpu_seconds = 0.0
        """Processor time in seconds that the engine's thread has used."""
        self.failed: list[Handle] = []
        """Schedules that have ended with an error."""
        self.moves = 0
        """Number of times that a background schedule was resumed."""
        self._advancing = threading.Lock()
        """Lock that is held while schedules are resumed."""
        self._changed = threading.Condition()
        """Condition whose lock guards `handles`, `_drivers` and the attributes of the engine's thread."""
        self._drivers: weakref.WeakSet = weakref.WeakSet()
        self._by_thread = self._thread_allowed = False
        self._polled = 0.0
        self._thread: threading.Thread | None = None
        self._thread_stops = threading.Event()

    def start(self, schedule: Schedule, driver) -> Handle:
        """Run ``schedule`` in the background of ``driver``; return its handle."""
        handle = Handle(schedule, driver, self)
        handle.advance()  # the first messages are posted at once
        if handle.ended:
            self._note_failure(handle)
            return handle
        with self._changed:
            if not self.handles:  # the trainer had nothing to poll until now
                self._polled = time.perf_counter()
            self.handles.append(handle)
            self._drivers.add(driver)
            self._update_mode()
            if self._thread is None and self._thread_allowed:
                self._thread_stops = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._thread_stops,), name="grsgd-progress", daemon=True
                )
                self._thread.start()
                atexit.register(self._end_thread)  # the thread must end before MPI ends
            self._changed.notify_all()
        return handle

    def poll(self):
        """Resume each background schedule whose messages are complete, until all schedules wait.

        Does nothing if the engine's thread resumes the schedules. Also does nothing if a schedule makes this call,
        because a schedule must not resume itself.
        """
        if not self.handles or self._by_thread or not self._advancing.acquire(blocking=False):
            return
        try:
            begin = time.perf_counter()
            moved = self._advance_all()
            self._polled = time.perf_counter()
            if moved:
                self.worked_seconds += self._polled - begin
        finally:
            self._advancing.release()

    def pause(self, moves: int) -> bool:
        """Sleep until the count `moves` differs from ``moves``, for at most `BACKGROUND_SECONDS`; return True.

        Returns False at once if no thread moves the schedules.
        """
        if not (self._by_thread and self._thread_allowed):
            return False
        with self._changed:
            self._changed.wait_for(lambda: self.moves != moves, BACKGROUND_SECONDS)
        return True

    def check(self):
        """Raise the error of a failed schedule, unless ``Test()`` of the schedule's handle has raised the error. Each
        error is raised once."""
        while self.failed:
            handle = self.failed.pop(0)
            if not handle.error_seen:
                handle.error_seen = True
                raise handle.error

    def abandon(self, driver) -> list[Handle]:
        """Stop resuming the schedules of ``driver``. So these schedules change nothing any more. Return their
        handles."""
        with self._changed:
            abandoned = [handle for handle in self.handles if handle.driver is driver]
            self.handles = [handle for handle in self.handles if handle.driver is not driver]
            self._update_mode()
        with self._advancing:  # the lock is free when the thread has finished its present move
            self.failed = [handle for handle in self.failed if handle.driver is not driver]
        return abandoned

    def remove(self, driver):
        """Forget ``driver``, which has ended. If ``driver`` was the last driver, end the engine's thread, too."""
        with self._changed:
            self._drivers.discard(driver)
            last = not self._drivers
        if last:
            self._end_thread()

    def reset(self):
        """Forget all schedules. This method is for a forked process: the schedules belong to the process from which it
        was forked."""
        atexit.unregister(self._end_thread)
        self.__init__()

    def _update_mode(self):
        """Determine whether the engine's thread moves the schedules."""
        self._by_thread = any(handle.driver.progress_mode == "thread" for handle in self.handles)
        self._thread_allowed = all(handle.driver.thread_allowed for handle in self.handles)

    def _end_thread(self):
        with self._changed:
            thread, self._thread = self._thread, None
            self._thread_stops.set()
            self._changed.notify_all()
        if thread is not None:
            atexit.unregister(self._end_thread)
            thread.join(timeout=10)

    def _advance_all(self, prepare=lambda driver: None) -> bool:
        """Resume all background schedules that can go on; return whether one was resumed. ``prepare(driver)`` is called
        before a schedule of ``driver`` is resumed."""
        moved = False
        for handle in self.handles:  # other calls may lengthen or replace this list during the loop
            prepare(handle.driver)
            moved |= handle.advance()
        if moved:
            with self._changed:
                ended = [handle for handle in self.handles if handle.ended]
                self.handles = [handle for handle in self.handles if not handle.ended]
                self._update_mode()
                self.moves += 1
                self._changed.notify_all()
            for handle in ended:
                self._note_failure(handle)
        return moved

    def _note_failure(self, handle: Handle):
        if handle.error is not None:
            self.failed.append(handle)

    def _run(self, ends: threading.Event):
        """Resume schedules, in the engine's thread, until ``ends`` is set."""
        moved_at, handles, prepared = 0.0, [], None

        def prepare(driver):
            """Make the driver's device the current device of this thread."""
            nonlocal prepared
            if driver is not prepared:
                driver.prepare_thread()
                prepared = driver

        while True:
            with self._changed:
                while not (ends.is_set() or (self.handles and self._thread_allowed)):
                    handles, prepared = [], None  # a thread without work keeps no driver, and no model behind it
                    self._changed.wait()
            rest = 0.0 if self._by_thread else self._polled + TAKEOVER_SECONDS - time.perf_counter()
            if ends.wait(rest) if rest > 0 else ends.is_set():
                return
            if rest > 0:
                continue
            handles = self.handles
            with self._advancing:
                moved = any(self._advance_all(prepare) for _ in range(LOOKS))
            self.thread_cpu_seconds = time.thread_time()
            now = time.perf_counter()
            if moved:
                moved_at = now
            elif self._by_thread and handles:
                handles[0].driver.look_at_quota(now)
                back_off(now - moved_at, *handles[0].driver.thread_pauses)
            else:  # the trainer computes, perhaps on the same core as this thread
                time.sleep(min(SLEEP_SECONDS + (now - max(moved_at, self._polled)) / 16, TAKEOVER_SECONDS))


ENGINE = Engine()
"""The engine of this process."""
if hasattr(os, "register_at_fork"):
    # A forked process lacks the engine's thread, and its copies of the locks may stay locked for ever.
    os.register_at_fork(after_in_child=ENGINE.reset)


def back_off(
    waited: float, spin: float = SPIN_SECONDS, share: float = SLEEP_SHARE, longest: float = SLEEP_SECONDS
):
    """Pause between two polls of a wait that has lasted ``waited`` seconds.

    Yield the core during the first ``spin`` seconds; after that, sleep for ``share`` times ``waited``, and for at most
    ``longest`` seconds. So a waiting rank leaves the core to computing ranks, and a sleep prolongs the wait by a few
    per cent at most.
    """
    if waited < spin:
        os.sched_yield()
    else:
        time.sleep(min(waited * share, longest))
