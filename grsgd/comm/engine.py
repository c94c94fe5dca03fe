"""The engine of a process, which resumes the background schedules of all drivers of the process.

A background schedule must continue while the program does something else: a long forward pass, an evaluation on one
rank, a blocking call of the user's code, or a wait in another driver. Therefore one engine per process resumes the
background schedules of all drivers. If the trainer (the thread that computes gradients) polls often, it resumes the
background schedules itself. If the trainer does not poll, a separate thread of the engine resumes the background
schedules.
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Generator

PROGRESS_THREAD = "grsgd-progress"
"""Name of the thread of a process that resumes background schedules and calls MPI."""
Schedule = Generator[object, None, object]
"""Type of a schedule: a generator that yields pollables (`grsgd.comm.pollables`). A schedule is resumed when ``Test()``
of each pollable that it has yielded returns True."""

TAKEOVER_SECONDS = 5e-3
"""Number of seconds without a poll of the trainer (the thread that computes gradients), after which the engine's thread
resumes schedules until the trainer polls again."""
SPIN_SECONDS, THREAD_SPIN_SECONDS = 1e-3, 2e-4
"""`SPIN_SECONDS`: number of seconds for which a waiting rank polls without sleeping in between. `THREAD_SPIN_SECONDS`:
number of seconds for which the engine's thread polls without sleeping in between, while the trainer computes.

`THREAD_SPIN_SECONDS` is short, because polls of the engine's thread slow down the computation of the gradient if the
process may use only a part of a core.
"""
SLEEP_SECONDS = 1e-3
"""Longest sleep in seconds between two polls of a waiting rank. `SLEEP_SECONDS` is also the shortest sleep between two
polls of the engine's thread, while it resumes schedules in place of the trainer."""
SLEEP_SHARE = 1 / 16
"""Length of a sleep between two polls, divided by the time for which the rank has waited so far."""


BACKGROUND_SECONDS = 20e-3
"""Longest sleep in seconds of a rank that waits for the end of a background schedule, while the engine's thread resumes
the schedule."""

LOOKS = 2
"""Number of polls that a waiting thread makes between two sleeps. More than one poll is necessary, because Open MPI
reports a message as complete only at the second poll after the message's arrival."""


class Handle:
    """Handle of a background schedule: a pollable whose ``Test()`` returns True when the schedule has ended.

    If the schedule has failed, a call of ``Test()`` raises the schedule's error, so that the code that waits for the
    schedule gets the error.
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
        ended = self.ended  # read `ended` before `error`, because the engine's thread sets `error` before `ended`
        if self.error is not None:
            self.error_seen = True
            raise self.error
        return ended

    def advance(self) -> bool:
        """Resume the schedule repeatedly, until it waits for a pollable or has ended. Return True if the schedule was
        resumed at least once. If the schedule raises an error, this method stores the error and does not raise it."""
        moved = False
        try:
            while not self.ended:
                try:
                    while self._pending:
                        if not self._pending[-1].Test():
                            return moved
                        self._pending.pop()
                except Exception as error:
                    self._pending = as_list(self._schedule.throw(error))  # raise the error inside the schedule
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
    """Return a list of the pollables in ``pending``, the object that a schedule has yielded: None, one pollable, or an
    iterable of pollables."""
    if pending is None:
        return []
    if hasattr(pending, "Test"):
        return [pending]
    return list(pending)


class Engine:
    """The object that resumes all background schedules of a process, in the order in which they were started.

    If at least one background schedule belongs to a driver with ``progress_mode = "thread"``, the engine's thread
    resumes all schedules. If no driver has the mode ``"thread"``, the trainer (the thread that computes gradients)
    resumes the schedules whenever it polls or waits. If no driver has the mode ``"thread"``, the engine's thread
    resumes schedules only if the last poll of the trainer was more than `TAKEOVER_SECONDS` ago. If the MPI library of a
    driver allows calls from one thread only, the engine's thread resumes no schedules.
    """

    def __init__(self):
        self.handles: list[Handle] = []
        self.worked_seconds = 0.0
        """Seconds that the trainer has spent in polls that resumed a background schedule. The time of polls by the
        engine's thread is not included."""
        self.thread_cpu_seconds = 0.0
        """Processor time in seconds that the engine's thread has used so far."""
        self.failed: list[Handle] = []
        """Handles of background schedules that have ended with an error, if `check` has not yet raised the error."""
        self.moves = 0
        """Number of polls so far in which at least one background schedule was resumed."""
        self._advancing = threading.Lock()
        """Lock that a thread holds while it resumes schedules."""
        self._changed = threading.Condition()
        """Condition variable that wakes waiting threads when schedules have been started, resumed or ended. The lock of
        the condition variable protects `handles`, `_drivers` and the attributes of the engine's thread."""
        self._drivers: weakref.WeakSet = weakref.WeakSet()
        self._by_thread = self._thread_allowed = False
        self._polled = 0.0
        self._thread: threading.Thread | None = None
        self._thread_stops = threading.Event()

    def start(self, schedule: Schedule, driver) -> Handle:
        """Start to run ``schedule`` as a background schedule of ``driver``, and return its handle."""
        handle = Handle(schedule, driver, self)
        handle.advance()  # run the schedule until its first wait, so that its first messages are started at once
        if handle.ended:
            self._note_failure(handle)
            return handle
        with self._changed:
            # count the time without polls from now on, because the trainer had no reason to poll before
            if not self.handles:
                self._polled = time.perf_counter()
            self.handles.append(handle)
            self._drivers.add(driver)
            self._update_mode()
            if self._thread is None and self._thread_allowed:
                self._thread_stops = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._thread_stops,), name=PROGRESS_THREAD, daemon=True
                )
                self._thread.start()
                atexit.register(self._end_thread)  # end the thread before the MPI library is shut down
            self._changed.notify_all()
        return handle

    def poll(self):
        """Resume each background schedule whose messages are complete, until all background schedules wait.

        This method does nothing if the engine's thread resumes the schedules, or if the caller is a background
        schedule. A background schedule must not resume itself.
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
        """Sleep until the engine's attribute `moves` differs from the argument ``moves``, but for at most
        `BACKGROUND_SECONDS`. Return True.

        If the engine's thread does not resume the schedules, return False without sleeping.
        """
        if not (self._by_thread and self._thread_allowed):
            return False
        with self._changed:
            self._changed.wait_for(lambda: self.moves != moves, BACKGROUND_SECONDS)
        return True

    def check(self):
        """Raise the error of a failed background schedule, unless ``Test()`` of the schedule's handle has raised the
        error before. Repeated calls raise each error only once."""
        while self.failed:
            handle = self.failed.pop(0)
            if not handle.error_seen:
                handle.error_seen = True
                raise handle.error

    def abandon(self, driver) -> list[Handle]:
        """Stop all background schedules of ``driver`` for good, so that they change no data any more. Return the
        handles of the schedules that were stopped."""
        with self._changed:
            abandoned = [handle for handle in self.handles if handle.driver is driver]
            self.handles = [handle for handle in self.handles if handle.driver is not driver]
            self._update_mode()
        with self._advancing:  # the lock is free when the engine's thread has finished its poll
            self.failed = [handle for handle in self.failed if handle.driver is not driver]
        return abandoned

    def remove(self, driver):
        """Remove ``driver``, which has ended, from the list of the engine's drivers. If no other driver is left, end
        the engine's thread."""
        with self._changed:
            self._drivers.discard(driver)
            last = not self._drivers
        if last:
            self._end_thread()

    def reset(self):
        """Discard all schedules and drivers of this engine. A forked process calls `reset`, because the schedules
        belong to its parent process."""
        atexit.unregister(self._end_thread)
        self.__init__()

    def _update_mode(self):
        """Set `_by_thread` and `_thread_allowed`, which determine whether the engine's thread resumes the schedules."""
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
        """Resume all background schedules whose messages are complete. Return True if at least one schedule was
        resumed. The function ``prepare(driver)`` is called each time before a schedule of ``driver`` is resumed."""
        moved = False
        for handle in self.handles:  # during the loop, other threads and nested calls may extend or replace `handles`
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
        """Main function of the engine's thread, which resumes schedules until the event ``ends`` is set."""
        moved_at, handles, prepared = 0.0, [], None

        def prepare(driver):
            """Call the function `prepare_thread` of ``driver`` (for example, to select the driver's GPU), unless the
            previous call was for the same driver."""
            nonlocal prepared
            if driver is not prepared:
                driver.prepare_thread()
                prepared = driver

        while True:
            with self._changed:
                while not (ends.is_set() or (self.handles and self._thread_allowed)):
                    # drop the references, so that the memory of drivers and models can be freed
                    handles, prepared = [], None
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
            else:  # the trainer computes, and may need the core on which this thread runs
                time.sleep(min(SLEEP_SECONDS + (now - max(moved_at, self._polled)) / 16, TAKEOVER_SECONDS))


ENGINE = Engine()
"""The engine of this process, which all its drivers use."""
if hasattr(os, "register_at_fork"):
    # In a forked process, the engine's thread does not exist, and copies of the engine's locks may be locked for ever.
    os.register_at_fork(after_in_child=ENGINE.reset)


def back_off(
    waited: float, spin: float = SPIN_SECONDS, share: float = SLEEP_SHARE, longest: float = SLEEP_SECONDS
):
    """Let other threads run, or sleep, between two polls of a wait that has lasted ``waited`` seconds.

    During the first ``spin`` seconds of a wait, `back_off` only yields the core to other threads. After the first
    ``spin`` seconds, `back_off` sleeps for ``share`` times ``waited`` seconds, but at most ``longest`` seconds. By
    these sleeps, a waiting rank leaves the core to computing ranks, and prolongs its wait by a few per cent at most.
    """
    if waited < spin:
        os.sched_yield()
    else:
        time.sleep(min(waited * share, longest))
