"""The driver of one simulated rank, which runs the rank's schedules (generators that yield the objects they wait for)
in simulated time."""

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
    """Error for a simulated run in which no rank can continue: every rank waits, and no message or timer is under way.
    The error's message names the objects for which ranks wait.
    """


class Activity(Waitable):
    """A schedule (a generator that yields the objects it waits for) that a driver runs in simulated time. Other
    schedules can wait for an activity, which is complete when its own schedule has ended."""

    __slots__ = ("driver", "schedule", "pending", "value", "blocked_at", "abandoned", "lost")

    def __init__(self, driver: "SimulatedDriver", schedule: Schedule):
        super().__init__()
        self.driver, self.schedule = driver, schedule
        self.pending: list = []
        self.value = None
        self.blocked_at: float | None = None
        self.abandoned = False
        self.lost: LostRank | None = None
        """Error that ended the schedule of this activity, if the schedule ran in the background and a rank was lost. A
        schedule that waits for the end of this activity gets the error, too."""

    def Test(self) -> bool:
        if self.lost is not None:
            raise self.lost
        return self.complete

    def resume(self, error: BaseException | None = None):
        """Run the schedule until it waits or ends. If ``error`` is given, raise ``error`` in the schedule, at the
        point where the schedule waits."""
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
                        # the error is raised at the point where the schedule waits, so that it can clean up
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
                if type(pending) is Message:  # most waits of schedules are waits for a message
                    self.pending = [pending]
                else:
                    self.pending = [driver.begin(pollable) for pollable in as_list(pending)]
        except StopIteration as end:
            self.value = end.value
            self.finish(driver)
        except BaseException as error:
            if isinstance(error, LostRank) and self is not driver.foreground and driver.polls_messages:
                self.lost = error  # the error is not raised, because the run goes on without the dead rank
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
        else:  # the pollable is a flag of this rank, and changes only at events of this rank
            self.driver.polled.append(self)

    def __str__(self):
        waiting = f", which waits for {self.pending[-1]}" if self.pending else ""
        return f"background schedule {self.schedule.__name__}{waiting}"


class Timer(Waitable):
    """A delay, or the end of a computation, at a fixed simulated time."""

    __slots__ = ("what",)

    def __init__(self, what):
        super().__init__()
        self.what = what

    def __str__(self):
        return str(self.what)


class SimulatedDriver:
    """A `grsgd.comm.driver.Driver` that runs the schedules of one rank in simulated time.

    Parameters
    ----------
    env
        The SimPy environment that keeps the simulated time.
    compute_seconds
        ``compute_seconds(rank, step)`` returns the simulated seconds of the rank's next computation. The real work is
        done when the computation begins, with the model's parameters at that moment.
    timing_only
        Whether to skip the real work and let only its simulated time pass.
    """

    progress_mode = "virtual"
    calls_stages = True
    timeout = math.inf
    """Seconds after which a wait would raise a timeout error. The timeout is infinite, because a simulated wait that
    cannot end raises `Deadlock`."""

    def __init__(self, env, rank: int = 0, compute_seconds=lambda rank, step: 0.0, timing_only: bool = False):
        self.env, self.rank = env, rank
        self.compute_seconds, self.timing_only = compute_seconds, timing_only
        self.processor: Processor | None = None
        """Simulated processor, whose time this rank's computations and messages share; None if messages take no
        processor time."""
        self.work_seconds = 0.0
        """Simulated seconds of the algorithm's own code, which the driver adds to each computation's seconds."""
        self.wait_seconds = 0.0
        self.watch = None
        """Function that the driver calls when a message arrives for which no receive is posted; None calls no function.
        If `watch` raises an error, the driver raises this error in the trainer's schedule, at the point where this
        schedule waits."""
        self.unexpected_message = False
        """Whether a message without a posted receive has arrived since the last call of `watch`."""
        self.foreground: Activity | None = None
        self.active: Activity | None = None
        """Activity that runs at present. If no activity runs, the activity that ran last."""
        self.polled: list[Activity] = []
        """Activities that wait for a flag of this rank, and not for a message. After each event of this rank, the
        driver tests whether activities in `polled` can continue."""
        self.random_state: torch.Tensor | None = None
        """State of torch's random generator on this rank; None if the rank draws no random numbers. Each simulated rank
        has its own stream of random numbers, as a real process would have."""
        self._computed = 0
        self._ready: list[Activity] = []
        self._background: list[Activity] = []
        self._beside: list[Activity] = []
        self.abandoned: list = []
        """Receives of abandoned schedules. The list `abandoned` is always empty, because a simulation writes nothing
        into the arrays of abandoned schedules."""
        self._running = False
        self.is_dead = self.polls_messages = False
        """``is_dead``: whether the rank's process has died. ``polls_messages``: whether an arriving message, too, lets
        the driver test the flags for which activities wait."""

    def kill(self):
        """Let the process of this rank die, as planned in the configuration. After its process's death, no schedule of
        the rank continues."""
        self.is_dead = True
        self._background += self._beside
        self.abandon()
        self.polled.clear()
        self._ready.clear()
        if self.foreground is not None:
            self.foreground.abandoned = self.foreground.complete = True

    def keep_random_state(self):
        """Give this rank its own stream of torch's random numbers, which begins at the present state of torch's random
        generator."""
        self.random_state = torch.get_rng_state()

    def clock(self) -> float:
        return self.env.now

    def waited(self) -> float:
        """Return the seconds for which the main program of this rank has been waiting for other ranks; 0 if it does not
        wait at present."""
        activity = self.foreground
        if activity is None or activity.blocked_at is None or type(activity.pending[-1]) is Timer:
            return 0.0
        return self.env.now - activity.blocked_at

    def is_alone_in_foreground(self) -> bool:
        """Return True if this rank's main program is running and no schedule of this rank runs in the background."""
        return self.active is self.foreground and all(activity.complete for activity in self._background)

    def poll(self):
        """Do nothing, because simulated background schedules continue without polling."""

    def start(self, schedule: Schedule) -> Activity:
        activity = Activity(self, schedule)
        self._background = [started for started in self._background if not started.complete] + [activity]
        return self._begin(activity)

    def start_beside(self, schedule: Schedule) -> Activity:
        """Run ``schedule`` in the background. A call of `abandon` does not end this schedule, as if the rank had a
        second driver for it."""
        self._beside.append(Activity(self, schedule))
        return self._begin(self._beside[-1])

    def _begin(self, activity: Activity) -> Activity:
        if self._running:
            activity.resume()  # the schedule posts its first messages at once
        else:
            self.notify(activity)
        return activity

    def abandon(self):
        """Stop running all background schedules that `start` has begun so far."""
        for activity in self._background:
            activity.abandoned = True
        self.polled = [activity for activity in self.polled if not activity.abandoned]
        self._background.clear()

    def start_foreground(self, schedule: Schedule) -> Activity:
        """Begin to run ``schedule`` as this rank's main program. The driver adds up the seconds for which the main
        program waits."""
        self.foreground = Activity(self, schedule)
        self.notify(self.foreground)
        return self.foreground

    def begin(self, pollable):
        """Return ``pollable``, the object that a schedule has yielded in order to wait for it. If ``pollable`` is a
        delay or a computation, start a timer, and return the timer in its place."""
        if type(pollable) is Message:  # most schedules wait for a message
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
        """Let simulated time pass until the computation ends: ``seconds`` times the fraction of the computation after
        ``done``. When a stage's fraction of the computation has passed, call the stage's function."""
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
        """Call ``call`` after the rank has computed for ``seconds`` of simulated time."""
        if self.processor is None:
            call_after(self.env, seconds, lambda _: call())
            return
        polls = any(not activity.complete for activity in self._background)
        self.processor.compute(seconds, polls, call)

    def notify(self, waiter: Activity | None, error: BaseException | None = None):
        """Resume the schedule of ``waiter``, whose wait is over. Resume, too, each activity of this rank that waits for
        a flag which has become true.

        Only one activity of a rank runs at a time, until its schedule waits again. No other activity can therefore
        change data between two yields of a schedule.
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
        """Handle the arrival of a message for which this rank has posted no receive. A message without a posted receive
        may be the signal to end the run, for which `watch` looks."""
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
        """Return the error that `watch` raises, if a message without a posted receive has arrived.
        Return None if all arrived messages had posted receives, or if `watch` raises no error.

        ``activity`` is an activity whose schedule waits, or is about to wait. Only the main program gets the error of
        `watch`, and only while it waits for other ranks and not for a timer.
        """
        if self.unexpected_message and activity is self.foreground and type(activity.pending[-1]) is not Timer:
            self.unexpected_message = False
            try:
                if self.watch is not None:
                    self.watch()
            except Exception as error:  # noqa: BLE001  the caller raises the error in the trainer
                return error
        return None

    def _forget(self, activity: Activity):
        """Remove ``activity`` from the waiters of the object (pollable) that its schedule has yielded last."""
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
    """Return True if a wait for ``pollable`` is over, because ``pollable`` is complete or raises an error."""
    try:
        return pollable.Test()
    except Exception:  # noqa: BLE001  the waiting schedule gets the error when it tests the pollable
        return True


def run_all(env: simpy.Environment, drivers: list[SimulatedDriver], schedules) -> list:
    """Run one schedule per rank to its end. Schedule number i is the main program of rank i. Return the values that the
    schedules return. Raises Deadlock."""
    activities = [driver.start_foreground(schedule) for driver, schedule in zip(drivers, schedules, strict=True)]
    run_until_done(env, activities)
    for driver in drivers:
        driver.foreground = None
    return [activity.value for activity in activities]


def run_until_done(env: simpy.Environment, activities: list[Activity]):
    """Let simulated time pass until all ``activities`` have ended. Raises Deadlock."""
    try:
        while not all(activity.complete for activity in activities):
            waiting = next(activity for activity in activities if not activity.complete)
            run_until_complete(env, waiting)
    except simpy.core.EmptySchedule:
        lines = [f"rank {a.driver.rank} waits for {a.pending[-1]}" for a in activities if not a.complete]
        more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise Deadlock(f"no rank can go on at {env.now:.9g} s: {'; '.join(lines[:5])}{more}") from None
