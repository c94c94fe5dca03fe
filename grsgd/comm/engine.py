"""The engine of a process, which resumes the background schedules of all drivers of the process.

A background schedule must go on while the program does something else: a long forward pass, an evaluation on one rank,
a user's own blocking call, or a wait in another driver. So one engine per process resumes all background schedules. If
the trainer (the thread that computes gradients) polls often, the trainer resumes the schedules. If the trainer does not
poll, a thread of the engine resumes the schedules.
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
"""Number of seconds without a poll of the trainer after which the engine's thread resumes schedules, until the
trainer's next poll."""
SPIN_SECONDS, THREAD_SPIN_SECONDS = 1e-3, 2e-4
"""`SPIN_SECONDS`: number of seconds for which a waiting rank polls without sleeping. `THREAD_SPIN_SECONDS`: number of
seconds for which the engine's thread polls without sleeping while the trainer computes.

`THREAD_SPIN_SECONDS` is short, because a polling thread slows down the computation of the gradient if the process may
use only a part of a core.
"""
SLEEP_SECONDS = 1e-3
"""The longest sleep in seconds between two polls of a waiting rank. `SLEEP_SECONDS` is also the shortest sleep of the
engine's thread while the thread resumes schedules in place of the trainer."""
SLEEP_SHARE = 1 / 16
"""Length of a sleep between two polls, as a share of the time for which the rank has waited."""


BACKGROUND_SECONDS = 20e-3
"""Longest sleep in seconds of a rank that waits for the end of a background schedule, if the engine's thread resumes
the schedule."""

LOOKS = 2
"""Number of polls between two sleeps of a waiting thread. Open MPI reports a message as complete only at the second
poll after the message's arrival."""


class Handle:
    """Handle of a background schedule: a pollable whose ``Test()`` returns True when the schedule has ended.

    If the schedule has failed, ``Test()`` raises the schedule's error, so that a wait for the schedule raises the
    error, too.
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
        """Resume the schedule until it waits for a message or ends. Return whether the schedule was resumed at all.
        This method raises no error."""
        moved = False
        try:
            while not self.ended:
                try:
                    while self._pending:
                        if not self._pending[-1].Test():
                            return moved
                        self._pending.pop()
                except Exception as error:
                    self._pending = as_list(self._schedule.throw(error))  # the schedule's yield raises the error
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
    """Return a list of the pollables in ``pending``, which a schedule has yielded: None, one pollable, or an iterable
    of pollables."""
    if pending is None:
        return []
    if hasattr(pending, "Test"):
        return [pending]
    return list(pending)


class Engine:
    """The object that resumes the background schedules of a process, in the order in which the schedules were started.

    If at least one schedule belongs to a driver with ``progress_mode = "thread"``, the engine's thread resumes all
    schedules. If all drivers have other modes, the trainer resumes the schedules whenever the trainer polls or waits.
    If all drivers have other modes, the engine's thread resumes schedules only if the trainer's last poll was more than
    `TAKEOVER_SECONDS` ago. If a driver's MPI library allows calls from one thread only, the engine's thread resumes no
    schedules.
    """

    def __init__(self):
        self.handles: list[Handle] = []
        self.worked_seconds = 0.0
        """Seconds that the trainer has spent in polls that resumed a background schedule. Polls of the engine's thread
        are not counted."""
        self.thread_cpu_seconds = 0.0
        """Processor time in seconds that the engine's thread has used."""
        self.failed: list[Handle] = []
        """Handles of background schedules that have ended with an error which `check` has not raised yet."""
        self.moves = 0
        """Number of polls that resumed at least one background schedule."""
        self._advancing = threading.Lock()
        """Lock that is held while schedules are resumed."""
        self._changed = threading.Condition()
        """Condition that tells waiting threads that schedules were started, resumed or ended. The condition's lock
        protects `handles`, `_drivers` and the attributes of the engine's thread."""
        self._drivers: weakref.WeakSet = weakref.WeakSet()
        self._by_thread = self._thread_allowed = False
        self._polled = 0.0
        self._thread: threading.Thread | None = None
        self._thread_stops = threading.Event()

    def start(self, schedule: Schedule, driver) -> Handle:
        """Start ``schedule`` as a background schedule of ``driver``, and return the handle of the schedule."""
        handle = Handle(schedule, driver, self)
        handle.advance()  # starts the first messages at once
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

        This method does nothing if the engine's thread resumes the schedules, or if a background schedule calls this
        method. A schedule must not resume itself.
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
        """Sleep until the attribute `moves` differs from the argument ``moves``, but at most `BACKGROUND_SECONDS`.
        Return True.

        If the engine's thread does not resume the schedules, return False at once, without sleeping.
        """
        if not (self._by_thread and self._thread_allowed):
            return False
        with self._changed:
            self._changed.wait_for(lambda: self.moves != moves, BACKGROUND_SECONDS)
        return True

    def check(self):
        """Raise the error of a failed schedule, unless ``Test()`` of the schedule's handle has raised the error
        already. This method raises each error once."""
        while self.failed:
            handle = self.failed.pop(0)
            if not handle.error_seen:
                handle.error_seen = True
                raise handle.error

    def abandon(self, driver) -> list[Handle]:
        """Stop resuming the schedules of ``driver``, so that the schedules change nothing any more. Return the handles
        of the stopped schedules."""
        with self._changed:
            abandoned = [handle for handle in self.handles if handle.driver is driver]
            self.handles = [handle for handle in self.handles if handle.driver is not driver]
            self._update_mode()
        with self._advancing:  # wait until the thread has finished its poll
            self.failed = [handle for handle in self.failed if handle.driver is not driver]
        return abandoned

    def remove(self, driver):
        """Remove ``driver``, which has ended, from the engine's drivers. If ``driver`` was the last driver, end the
        engine's thread, too."""
        with self._changed:
            self._drivers.discard(driver)
            last = not self._drivers
        if last:
            self._end_thread()

    def reset(self):
        """Forget all schedules and drivers. A forked process calls this method, because the schedules belong to the
        process from which the process was forked."""
        atexit.unregister(self._end_thread)
        self.__init__()

    def _update_mode(self):
        """Compute `_by_thread` and `_thread_allowed`, which say whether the engine's thread resumes the schedules."""
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
        """Resume all background schedules whose messages are complete. Return whether at least one schedule was
        resumed. ``prepare(driver)`` is called before a schedule of ``driver`` is resumed."""
        moved = False
        for handle in self.handles:  # other threads and calls may extend or replace `handles` during the loop
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
        """Body of the engine's thread: resume schedules until the event ``ends`` is set."""
        moved_at, handles, prepared = 0.0, [], None

        def prepare(driver):
            """Call the function `prepare_thread` of ``driver`` (which, for example, selects the driver's GPU), unless
            it was called for this driver last."""
            nonlocal prepared
            if driver is not prepared:
                driver.prepare_thread()
                prepared = driver

        while True:
            with self._changed:
                while not (ends.is_set() or (self.handles and self._thread_allowed)):
                    handles, prepared = [], None  # so that the memory of drivers and models can be freed
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
    # A forked process has no engine's thread, and the process's copies of the engine's locks may stay locked for ever.
    os.register_at_fork(after_in_child=ENGINE.reset)


def back_off(
    waited: float, spin: float = SPIN_SECONDS, share: float = SLEEP_SHARE, longest: float = SLEEP_SECONDS
):
    """Yield the core or sleep between two polls of a wait that has lasted ``waited`` seconds.

    During the first ``spin`` seconds of a wait, this function yields the core. After ``spin`` seconds, this function
    sleeps for ``share`` times ``waited`` seconds, but at most ``longest`` seconds. So a waiting rank leaves the core to
    computing ranks, and a sleep prolongs the wait by a few per cent at most.
    """
    if waited < spin:
        os.sched_yield()
    else:
        time.sleep(min(waited * share, longest))
