"""Measures what a step of an algorithm takes of a processor beside its messages, more than a step alone does.

The configured algorithm trains for some steps, on all ranks. What its own code takes counts, between two things that it
waits for: updates, mixing, merging, compression, coding, and what the training loop does itself. Sending and receiving
do not count, for these belong to messages (`grsgd.simulate.calibration.messages`). Gradients do. Steps alone, of the
same rank right before, are taken off.
"""

import statistics
import threading
import time
from functools import partial

import torch

from grsgd.algorithms.context import RankContext
from grsgd.comm import engine
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.pollables import Compute
from grsgd.comm.stop_signal import StopSignal
from grsgd.config import Config
from grsgd.config.sections import Faults, Schedule, Stragglers
from grsgd.errors import ConfigError
from grsgd.job import launch
from grsgd.simulate.calibration.computing import MeasuringRank

STEPS, UNTIMED_STEPS = 20, 4
"""How many steps the algorithm trains for, of which so many at the beginning do not count."""
STEPS_ALONE = 5
CALLS = ("Isend", "Issend", "Irecv", "Ibcast", "Iallreduce", "Iprobe")


class WorkMeter:
    """Seconds of the processor, of the thread that makes this, beyond those of steps alone, each of which takes
    ``alone``."""

    def __init__(self, alone: float):
        self.alone, self.seconds = alone, 0.0
        self._thread = threading.get_ident()
        self._counts = False

    def without(self, call, *arguments, **options):
        """Call what does not count, and return its value."""
        if not self._counts or threading.get_ident() != self._thread:
            return call(*arguments, **options)
        begin = time.thread_time()
        try:
            return call(*arguments, **options)
        finally:
            self.seconds -= time.thread_time() - begin

    def metered(self, schedule: engine.Schedule) -> engine.Schedule:
        """Schedule: the same, of which gradients count, and what is done between waits."""
        resume = partial(next, schedule)
        while True:
            begin, self._counts = time.thread_time(), True
            try:
                pending = resume()
            except StopIteration as end:
                return end.value
            finally:
                ended = time.thread_time()
                self.seconds += ended - begin
                self._counts = False
            moved = engine.ENGINE.worked_seconds
            try:
                yield pending
            except Exception as error:  # fails where the schedule waits, so that it can clean up
                resume = partial(schedule.throw, error)
            else:
                resume = partial(next, schedule)
            if isinstance(pending, Compute):  # in which polls may have moved messages of the background
                moved = engine.ENGINE.worked_seconds - moved
                self.seconds += time.thread_time() - ended - moved - pending.amount * self.alone


class MeteredBackend(MpiBackend):
    """One that knows by what its communicators are metered."""

    def __init__(self, mpi, timeout: float, meter: WorkMeter):
        super().__init__(mpi, timeout)
        self.meter = meter

    def of(self, mpi) -> "MeteredBackend":
        return MeteredBackend(mpi, self.timeout, self.meter)


class MeteredCommunicator(Communicator):
    """One whose calls do not count."""

    def __init__(self, backend: MeteredBackend, *arguments):
        super().__init__(backend, *arguments)
        for name in CALLS:
            setattr(self, name, partial(backend.meter.without, getattr(self, name)))


def measure_work(mpi, config: Config, rank: MeasuringRank, model: torch.nn.Module, steps: int = STEPS) -> float | None:
    """Train ``model`` for so many steps, on all ranks of ``mpi``; returns the seconds of the processor that a step of
    the algorithm took more than one alone on this rank, None if it does not train, or on all ranks if there cannot be
    so many of them.

    rank: what measures. Raises SetupError, on all ranks.
    """
    from grsgd.training.automatic_options import choose_options
    from grsgd.training.trainer import Trainer

    ends = dict.fromkeys(("epochs", "samples", "seconds", "target", "target_accuracy"))
    train = config.train.model_copy(update=ends | {"steps": steps, "snapshots": 1, "stop_at_target": False})
    others = {"schedule": Schedule(), "stragglers": Stragglers(), "faults": Faults()}  # a schedule may be longer
    config = config.model_copy(update=others | {"train": train})
    try:
        config.check_ranks(mpi.size)
    except ConfigError:
        return None
    driver, dataset = rank.driver, rank.dataset
    meter = WorkMeter(seconds_alone(rank))
    backend = MeteredBackend(mpi, config.comm.timeout, meter)
    copies = [backend.dup() for _ in range(5)]
    trial, of_trial, comm, uncounted, signals = map(MeteredCommunicator, copies)
    config, _ = driver.run(choose_options(config, dataset, model, RankContext(trial, of_trial, driver)))
    signal = StopSignal(signals)
    context = RankContext(comm, uncounted, driver, signal, config.seed, config.data.replication)
    after_steps: list[float] = []
    with launch.collective_setup(mpi):
        trainer = Trainer(config, dataset, model, context, on_step=lambda *_: after_steps.append(meter.seconds))
    driver.run(trainer.broadcast_initial_model())
    driver.run(meter.metered(trainer.train()))
    launch.barrier(mpi, driver.timeout, signal.watch_failures)
    for copy in copies:
        copy.free()
    timed = after_steps[UNTIMED_STEPS - 1 :]
    if len(timed) < 2:
        return None
    return max(timed[-1] - timed[0], 0.0) / (len(timed) - 1)


def seconds_alone(rank: MeasuringRank) -> float:
    """Return the seconds of the processor that a step alone takes, the median."""
    found = []
    for _ in range(STEPS_ALONE):
        begin = time.thread_time()
        rank.compute()
        found.append(time.thread_time() - begin)
    return statistics.median(found)
