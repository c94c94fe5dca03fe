"""Moves the background schedules of a process, of all its drivers.

Messages of a schedule in the background must move whatever else the program does: a long forward pass, an evaluation on
one rank, a blocking call of the user's own, a wait in another driver. So there is one engine, which is moved by whoever
has time: the trainer where it polls often, and else a thread.
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Generator

Schedule = Generator[object, None, object]

PATIENCE_SECONDS = 5e-3
"""After so long without a poll of the trainer the thread takes over, until the next one."""
SPIN_SECONDS, BACKGROUND_SPIN_SECONDS = 1e-3, 2e-4
"""How long a rank that waits polls without sleeping. A thread beside a trainer should not: where a process has a share
of a core, what the thread uses is taken from the gradient."""
SLEEP_SECONDS = 1e-3
"""The longest sleep between two polls of a rank that waits, and the shortest of a thread that stands in."""


class Handle:
    """A schedule in the background; itself a pollable, true when the schedule has ended.

    ``Test()`` raises what the schedule raised, so that a failure in the background surfaces in whoever waits.
    """

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
        ended = self.ended  # before the error, which a thread sets first
        if self.error is not None:
            self.error_seen = True
            raise self.error
        return ended

    def advance(self) -> bool:
        """Go on as far as possible without waiting; returns whether anything moved. Never raises."""
        moved = False
        try:
            while not self.ended:
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
            self.ended = True
        except BaseException as error:  # noqa: BLE001  surfaces in Test(), or at the next poll of the trainer
            self.error = error
            self.ended = True
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


class Engine:
    """The background schedules of a process, in the order in which they were started.

    If one of them belongs to a driver with ``progress = "thread"``, the thread moves all of them. If not, the trainer
    does whenever it polls or waits, and the thread only stands in for it: it sleeps while the last poll is less than
    `PATIENCE_SECONDS` ago. Where a driver's MPI library allows calls from one thread only, there is no thread.
    """

    def __init__(self):
        self.handles: list[Handle] = []
        self.worked_seconds = 0.0
        """How long polls have taken in which something moved; those of the thread do not count."""
        self._failed: list[Handle] = []
        """Schedules that have ended with an error."""
        self._advancing = threading.Lock()
        """Held by whoever moves schedules."""
        self._news = threading.Condition()
        """For `handles`, `_drivers` and the thread."""
        self._drivers: weakref.WeakSet = weakref.WeakSet()
        self._by_thread = self._thread_allowed = False
        self._polled = 0.0
        self._thread: threading.Thread | None = None
        self._thread_ends = threading.Event()

    def start(self, schedule: Schedule, driver) -> Handle:
        """Move ``schedule`` in the background of ``driver``."""
        handle = Handle(schedule, driver, self)
        handle.advance()  # post the first messages at once
        if handle.ended:
            self._note_failure(handle)
            return handle
        with self._news:
            if not self.handles:  # until now there was nothing to poll
                self._polled = time.perf_counter()
            self.handles.append(handle)
            self._drivers.add(driver)
            self._choose()
            if self._thread is None and self._thread_allowed:
                self._thread_ends = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._thread_ends,), name="grsgd-progress", daemon=True
                )
                self._thread.start()
                atexit.register(self._end_thread)  # before MPI ends
            self._news.notify()
        return handle

    def poll(self):
        """Let all schedules go on as far as they can; does nothing where the thread does that, or somebody else is at
        it: a schedule that tests a handle must not drive itself."""
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

    def check(self):
        """Raise the error of a schedule that has failed, if nobody has seen it; once."""
        while self._failed:
            handle = self._failed.pop(0)
            if not handle.error_seen:
                handle.error_seen = True
                raise handle.error

    def abandon(self, driver) -> list[Handle]:
        """Move no schedule of ``driver`` any more: from now on none of them changes anything. Returns them."""
        with self._news:
            abandoned = [handle for handle in self.handles if handle.driver is driver]
            self.handles = [handle for handle in self.handles if handle.driver is not driver]
            self._choose()
        with self._advancing:  # wait until the thread has put down what it had in hand
            self._failed = [handle for handle in self._failed if handle.driver is not driver]
        return abandoned

    def leave(self, driver):
        """``driver`` has ended; the thread ends with the last one."""
        with self._news:
            self._drivers.discard(driver)
            last = not self._drivers
        if last:
            self._end_thread()

    def forget(self):
        """Have no schedules: this process was forked off the one whose they are."""
        atexit.unregister(self._end_thread)
        self.__init__()

    def _choose(self):
        """Find out who is to move the schedules."""
        self._by_thread = any(handle.driver.progress == "thread" for handle in self.handles)
        self._thread_allowed = all(handle.driver.thread_allowed for handle in self.handles)

    def _end_thread(self):
        with self._news:
            thread, self._thread = self._thread, None
            self._thread_ends.set()
            self._news.notify()
        if thread is not None:
            atexit.unregister(self._end_thread)
            thread.join(timeout=10)

    def _advance_all(self, prepare=lambda driver: None) -> bool:
        """``prepare(driver)`` is called before a schedule of that driver is moved."""
        moved = False
        for handle in self.handles:  # `start` and `abandon` replace or lengthen the list, which this loop may see
            prepare(handle.driver)
            moved |= handle.advance()
        if moved:
            with self._news:
                ended = [handle for handle in self.handles if handle.ended]
                self.handles = [handle for handle in self.handles if not handle.ended]
                self._choose()
            for handle in ended:
                self._note_failure(handle)
        return moved

    def _note_failure(self, handle: Handle):
        if handle.error is not None:
            self._failed.append(handle)

    def _run(self, ends: threading.Event):
        """The thread's work, until ``ends`` is set."""
        moved_at, prepared = 0.0, None

        def prepare(driver):
            """Make the driver's device that of this thread."""
            nonlocal prepared
            if driver is not prepared:
                driver.prepare_thread()
                prepared = driver

        while True:
            with self._news:
                while not (ends.is_set() or (self.handles and self._thread_allowed)):
                    self._news.wait()
            rest = 0.0 if self._by_thread else self._polled + PATIENCE_SECONDS - time.perf_counter()
            if ends.wait(rest) if rest > 0 else ends.is_set():
                return
            if rest > 0:
                continue
            with self._advancing:
                moved = self._advance_all(prepare)
            now = time.perf_counter()
            if moved:
                moved_at = now
            elif self._by_thread:
                back_off(now - moved_at, BACKGROUND_SPIN_SECONDS)
            else:  # beside a long computation, perhaps on its core
                time.sleep(min(SLEEP_SECONDS + (now - max(moved_at, self._polled)) / 16, PATIENCE_SECONDS))


ENGINE = Engine()
"""That of this process."""
if hasattr(os, "register_at_fork"):
    # A forked process has no thread, and locks that may be held for ever; the schedules are its parent's.
    os.register_at_fork(after_in_child=ENGINE.forget)


def back_off(waited: float, spin: float = SPIN_SECONDS):
    """Pause between two polls after having waited ``waited`` seconds: for ``spin`` seconds give way, then sleep a part.

    A rank that waits must not take the core from one that computes, and a wait must not be prolonged by more than
    a few per cent.
    """
    if waited < spin:
        os.sched_yield()
    else:
        time.sleep(min(waited / 16, SLEEP_SECONDS))
