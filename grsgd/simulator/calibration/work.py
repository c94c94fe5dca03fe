"""Measurement of the processor time per step of an algorithm's own code. The measured time includes neither messages
nor the work of a step that a rank takes alone.

The configured algorithm trains for some steps, on all ranks. The meter counts the time of the algorithm's own code
between two waits: updates, mixing, merging, compression, coding, and the work of the training loop itself. Gradients
count, too. Sending and receiving do not count, because `grsgd.simulator.calibration.messages` measures their time.
Before the training, the same rank takes steps alone, and their time is subtracted from the result.
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
from grsgd.simulator.calibration.computing import MeasuringRank

STEPS, UNTIMED_STEPS = 20, 4
"""Number of steps for which the algorithm trains (``STEPS``), and number of first steps among them whose time does not
count (``UNTIMED_STEPS``)."""
STEPS_ALONE = 5
"""Number of steps that a rank takes alone before the training. The median time of these steps is subtracted from the
time of each training step."""
CALLS = ("Isend", "Issend", "Irecv", "Ibcast", "Iallreduce", "Iprobe")
"""Methods of a communicator whose time a `WorkMeter` does not count."""


class WorkMeter:
    """Meter of the processor time, in seconds, of the thread that creates the meter. The meter subtracts ``alone``
    seconds for each step, the time of a step that a rank takes alone."""

    def __init__(self, alone: float):
        self.alone, self.seconds = alone, 0.0
        self._thread = threading.get_ident()
        self._counts = False

    def without(self, call, *arguments, **options):
        """Call ``call`` without counting the time of this call, and return the value of the call."""
        if not self._counts or threading.get_ident() != self._thread:
            return call(*arguments, **options)
        begin = time.thread_time()
        try:
            return call(*arguments, **options)
        finally:
            self.seconds -= time.thread_time() - begin

    def metered(self, schedule: engine.Schedule) -> engine.Schedule:
        """Run ``schedule``. Count the time of the schedule's gradients, and of the schedule's code between two waits.
        This method is a schedule (a generator that yields the objects it waits for)."""
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
            except Exception as error:
                # the error is raised at the point where the schedule waits, so that the schedule can clean up
                resume = partial(schedule.throw, error)
            else:
                resume = partial(next, schedule)
            if isinstance(pending, Compute):  # polls during the computation may have moved messages
                moved = engine.ENGINE.worked_seconds - moved
                self.seconds += time.thread_time() - ended - moved - pending.amount * self.alone


class MeteredBackend(MpiBackend):
    """An `MpiBackend` for `MeteredCommunicator`. The `WorkMeter` ``meter`` does not count the time of its
    communicators' calls."""

    def __init__(self, mpi, timeout: float, meter: WorkMeter):
        super().__init__(mpi, timeout)
        self.meter = meter

    def of(self, mpi) -> "MeteredBackend":
        return MeteredBackend(mpi, self.timeout, self.meter)


class MeteredCommunicator(Communicator):
    """A communicator for measurements. The `WorkMeter` of the communicator's backend does not count the time of the
    communicator's calls."""

    def __init__(self, backend: MeteredBackend, *arguments):
        super().__init__(backend, *arguments)
        for name in CALLS:
            setattr(self, name, partial(backend.meter.without, getattr(self, name)))


def measure_work(mpi, config: Config, rank: MeasuringRank, model: torch.nn.Module, steps: int = STEPS) -> float | None:
    """Train ``model`` for ``steps`` steps, on all ranks of ``mpi``. Return the processor seconds per step of the
    algorithm's own code on this rank.

    The result is the number of seconds by which a step takes longer than a step that this rank takes alone. Returns
    None if this rank does not train. Returns None on all ranks if a run with this number of ranks or steps is not
    possible.

    rank: driver, data set and parts of a step, with which a rank measures. Raises SetupError on all ranks if the set-up
    fails on any rank.
    """
    from grsgd.training.automatic_options import choose_options
    from grsgd.training.trainer import Trainer

    ends = dict.fromkeys(("epochs", "samples", "seconds", "target", "target_accuracy"))
    train = config.train.model_copy(update=ends | {"steps": steps, "snapshots": 1, "stop_at_target": False})
    others = {"schedule": Schedule(), "stragglers": Stragglers(), "faults": Faults()}  # a rate schedule may be longer
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
    """Return the median of the processor seconds of a step that this rank takes alone, without messages."""
    found = []
    for _ in range(STEPS_ALONE):
        begin = time.thread_time()
        rank.compute()
        found.append(time.thread_time() - begin)
    return statistics.median(found)
