"""The driver of one rank's schedules in simulated time."""

import math

import simpy
import torch

from grsgd.comm.communicator import LostRank, Message
from grsgd.comm.driver import Schedule, as_list
from grsgd.comm.pollables import Compute, Delay
from grsgd.simulator.calls import call_after, run_until_complete
from grsgd.simulator.processor import Processor
from grsgd.simulator.waitable import Waitable


class Deadlock(RuntimeError):
    """An error: every rank waits, and no message or timer is under way. The text says why each
    rank waits.
    """


class Activity(Waitable):
    """A schedule that runs in simulated time; it is a pollable itself, complete when the schedule has ended."""

    __slots__ = ("driver", "schedule", "pending", "value", "blocked_at", "abandoned", "lost")

    def __init__(self, driver: "SimulatedDriver", schedule: Schedule):
        super().__init__()
        self.driver, self.schedule = driver, schedule
        self.pending: list = []
        self.value = None
        self.blocked_at: float | None = None
        self.abandoned = False
        self.lost: LostRank | None = None
        """Error that ended this background schedule; it is raised again in the schedule that waits for this schedule's
        end."""

    def Test(self) -> bool:
        if self.lost is not None:
            raise self.lost
        return self.complete

    def resume(self, error: BaseException | None = None):
        """Run the schedule until it waits or ends. If ``error`` is given, raise ``error`` at the point where the
        schedule waits."""
        driver = self.driver
        driver.active = self
        if self.blocked_at is not None:
            if self is driver.foreground and type(self.pending[-1]) is not Timer:
                driver.wait_seconds += driver.clock() - self.blocked_at
            self.blocked_at = None
        try:
            while True:
                while self.pending and error is None:
                    pollable = self.pending[-1]
                    try:
                        ready = pollable.Test()
                    except Exception as caught:
                        # the error is raised where the schedule waits, so that the schedule can clean up
                        error = caught
                        break
                    if not ready:
                        error = driver.stop_error(self)
                        if error is None:
                            self._wait(pollable)
                            return
                    else:
                        self.pending.pop()
                pending = next(self.schedule) if error is None else self.schedule.throw(error)
                error = None
                if type(pending) is Message:  # this is the usual case
                    self.pending = [pending]
                else:
                    self.pending = [driver.begin(pollable) for pollable in as_list(pending)]
        except StopIteration as end:
            self.value = end.value
            self.finish(driver)
        except BaseException as error:
            if isinstance(error, LostRank) and self is not driver.foreground and driver.polls_messages:
                self.lost = error  # the run goes on without the dead rank
                self.finish(driver)
                return
            if not getattr(error, "__notes__", None):
                error.add_note(f"on simulated rank {driver.rank} at {driver.clock():.9g} s")
            raise

    def _wait(self, pollable):
        self.blocked_at = self.driver.clock()
        waitable = pollable.request if type(pollable) is Message else pollable
        if isinstance(waitable, Waitable) and waitable.waiter is None:
            waitable.waiter = self
        else:  # a flag of this rank changes only at events of this rank
            self.driver.polled.append(self)

    def __str__(self):
        waiting = f", which waits for {self.pending[-1]}" if self.pending else ""
        return f"background schedule {self.schedule.__name__}{waiting}"


class Timer(Waitable):
    """A delay or a computation that ends at a known time."""

    __slots__ = ("what",)

    def __init__(self, what):
        super().__init__()
        self.what = what

    def __str__(self):
        return str(self.what)


class SimulatedDriver:
    """The `grsgd.comm.driver.Driver` of one rank, whose schedules run in simulated time.

    Parameters
    ----------
    env
        The SimPy environment that keeps the simulated time.
    compute_seconds
        ``compute_seconds(rank, step)`` returns the seconds of the rank's next computation. The work itself is done when
        the computation begins, with the model's parameters at that moment.
    timing_only
        Whether to skip the work and let only its time pass.
    """

    progress_mode = "virtual"
    calls_stages = True
    timeout = math.inf
    """Timeout in seconds: infinite, because a wait that cannot end raises `Deadlock`."""

    def __init__(self, env, rank: int = 0, compute_seconds=lambda rank, step: 0.0, timing_only: bool = False):
        self.env, self.rank = env, rank
        self.compute_seconds, self.timing_only = compute_seconds, timing_only
        self.processor: Processor | None = None
        """Processor that computations and messages share; None if messages take no processor time."""
        self.work_seconds = 0.0
        """Seconds that the algorithm's own code takes in addition to each computation."""
        self.wait_seconds = 0.0
        self.watch = None
        """Function that is called when a message arrives for which no receive is posted. If the function raises an
        error, the error is raised at the point where the trainer waits."""
        self.unexpected_message = False
        """Whether a message without a posted receive has arrived while the trainer computed."""
        self.foreground: Activity | None = None
        self.active: Activity | None = None
        """Activity that runs now, or that was the last to run."""
        self.polled: list[Activity] = []
        """Activities that wait for a flag of this rank; the flags are tested after each event of this rank."""
        self.random_state: torch.Tensor | None = None
        """State of torch's random generator on this rank: each rank has its own random stream, as if it were a
        process."""
        self._computed = 0
        self._ready: list[Activity] = []
        self._background: list[Activity] = []
        self._beside: list[Activity] = []
        self.abandoned: list = []
        """Receives of abandoned schedules; always empty, because a simulation writes nothing into the arrays of
        abandoned schedules."""
        self._running = False
        self.is_dead = self.polls_messages = False
        """``polls_messages`` says whether activities that wait for a flag are also tested when a message arrives."""

    def kill(self):
        """Let the process of this rank die: none of its schedules continues."""
        self.is_dead = True
        self._background += self._beside
        self.abandon()
        self.polled.clear()
        self._ready.clear()
        if self.foreground is not None:
            self.foreground.abandoned = self.foreground.complete = True

    def keep_random_state(self):
        """Give this rank its own random stream of torch, which continues from torch's present state."""
        self.random_state = torch.get_rng_state()

    def clock(self) -> float:
        return self.env.now

    def waited(self) -> float:
        """Return the seconds that the main program has waited for other ranks; 0 if it does not wait now."""
        activity = self.foreground
        if activity is None or activity.blocked_at is None or type(activity.pending[-1]) is Timer:
            return 0.0
        return self.env.now - activity.blocked_at

    def is_alone_in_foreground(self) -> bool:
        """Return whether the main program runs now, and no background schedule is unfinished."""
        return self.active is self.foreground and all(activity.complete for activity in self._background)

    def poll(self):
        """Do nothing: background schedules continue without polling."""

    def start(self, schedule: Schedule) -> Activity:
        activity = Activity(self, schedule)
        self._background = [started for started in self._background if not started.complete] + [activity]
        return self._begin(activity)

    def start_beside(self, schedule: Schedule) -> Activity:
        """Run ``schedule`` in the background in such a way that `abandon` does not end the schedule, as if the rank had
        a second driver."""
        self._beside.append(Activity(self, schedule))
        return self._begin(self._beside[-1])

    def _begin(self, activity: Activity) -> Activity:
        if self._running:
            activity.resume()  # resume() posts the first messages at once
        else:
            self.notify(activity)
        return activity

    def abandon(self):
        """Stop driving all schedules that were started so far, except the foreground schedule."""
        for activity in self._background:
            activity.abandoned = True
        self.polled = [activity for activity in self.polled if not activity.abandoned]
        self._background.clear()

    def start_foreground(self, schedule: Schedule) -> Activity:
        """Drive the schedule of this rank's main program, whose waiting time counts."""
        self.foreground = Activity(self, schedule)
        self.notify(self.foreground)
        return self.foreground

    def begin(self, pollable):
        """Return ``pollable``, which a schedule has yielded. If it is a delay or a computation, start a timer and
        return the timer."""
        if type(pollable) is Message:  # this is the usual case
            return pollable
        if isinstance(pollable, Delay):
            return self._timer(pollable, pollable.seconds)
        if isinstance(pollable, Compute):
            pollable.seconds = pollable.amount * self.compute_seconds(self.rank, self._computed)
            self._computed += 1
            if not self.timing_only:
                pollable.value = self._work(pollable)
            timer = Timer(pollable)
            self._compute(timer, pollable.seconds + self.work_seconds, 0.0, list(pollable.stages))
            return timer
        return pollable

    def _compute(self, timer: Timer, seconds: float, done: float, stages: list):
        """Compute for the remaining part of ``seconds``, after the fraction ``done`` of the computation. Call the
        function of each stage when the stage's fraction of the computation is over."""
        if not stages:
            self._pass(seconds * (1 - done), lambda: timer.finish(self))
            return
        (share, call), *others = stages

        def go_on():
            call()
            self.notify(None)
            self._compute(timer, seconds, share, others)

        self._pass(seconds * (share - done), go_on)

    def _pass(self, seconds: float, call):
        """Call ``call`` after ``seconds`` of computing."""
        if self.processor is None:
            call_after(self.env, seconds, lambda _: call())
            return
        polls = any(not activity.complete for activity in self._background)
        self.processor.compute(seconds, polls, call)

    def notify(self, waiter: Activity | None, error: BaseException | None = None):
        """Resume ``waiter``, whose wait is over, and all activities that wait for a flag that is now true.

        One activity runs at a time, until it waits again, so that nothing changes between two of its yields.
        """
        if self.is_dead:
            return
        if waiter is not None:
            self._ready.append(waiter)
        if self._running:
            return
        self._running = True
        while True:
            if self._ready:
                activity = self._ready.pop(0)
                if not activity.abandoned:
                    activity.resume(error)
                error = None
            for activity in tuple(self.polled):
                if is_over(activity.pending[-1]) and activity in self.polled:
                    self.polled.remove(activity)
                    self._ready.append(activity)
            if not self._ready:
                break
        self._running = False

    def on_unexpected_message(self):
        """Handle the arrival of a message for which no receive is posted. It is possibly the message that the run is
        over."""
        activity = self.foreground
        if self.polls_messages:
            self.notify(None)
        if activity is None or activity.complete:
            return
        self.unexpected_message = True
        error = self.stop_error(activity)
        if error is not None:
            self._forget(activity)
            self.notify(activity, error)

    def stop_error(self, activity: Activity) -> Exception | None:
        """Return the error of `watch` for the trainer if a message without a receive has arrived; else None.

        ``activity``: a schedule that waits or is about to wait. Only the trainer's own activity gets the error, and
        only if this activity waits for other ranks.
        """
        if self.unexpected_message and activity is self.foreground and type(activity.pending[-1]) is not Timer:
            self.unexpected_message = False
            try:
                if self.watch is not None:
                    self.watch()
            except Exception as error:  # noqa: BLE001  raised where the trainer waits
                return error
        return None

    def _forget(self, activity: Activity):
        """Let ``activity`` no longer wait for its pollable."""
        pollable = activity.pending[-1]
        waitable = pollable.request if type(pollable) is Message else pollable
        if isinstance(waitable, Waitable) and waitable.waiter is activity:
            waitable.waiter = None
        else:
            self.polled.remove(activity)

    def _work(self, compute: Compute):
        if self.random_state is None:
            return compute.work()
        torch.set_rng_state(self.random_state)
        value = compute.work()
        self.random_state = torch.get_rng_state()
        return value

    def _timer(self, what, seconds: float) -> Timer:
        timer = Timer(what)
        call_after(self.env, seconds, lambda _: timer.finish(self))
        return timer


def is_over(pollable) -> bool:
    """Return whether a pollable is complete or raises an error, so that the wait for it is over."""
    try:
        return pollable.Test()
    except Exception:  # noqa: BLE001  raised again in the schedule that waits
        return True


def run_all(env: simpy.Environment, drivers: list[SimulatedDriver], schedules) -> list:
    """Drive one schedule per rank to its end, as the rank's main program; return their values. Raises Deadlock."""
    activities = [driver.start_foreground(schedule) for driver, schedule in zip(drivers, schedules, strict=True)]
    run_until_done(env, activities)
    for driver in drivers:
        driver.foreground = None
    return [activity.value for activity in activities]


def run_until_done(env: simpy.Environment, activities: list[Activity]):
    """Let time pass until all ``activities`` have ended. Raises Deadlock."""
    try:
        while not all(activity.complete for activity in activities):
            waiting = next(activity for activity in activities if not activity.complete)
            run_until_complete(env, waiting)
    except simpy.core.EmptySchedule:
        lines = [f"rank {a.driver.rank} waits for {a.pending[-1]}" for a in activities if not a.complete]
        more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise Deadlock(f"no rank can go on at {env.now:.9g} s: {'; '.join(lines[:5])}{more}") from None
