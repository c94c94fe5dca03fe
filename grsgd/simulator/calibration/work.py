"""Measurement of the processor seconds that an algorithm's own code takes in a step. The result excludes the time of
messages, and the time of a step (gradient and update) that a rank takes without other ranks.

For the measurement, all ranks train with the configured algorithm for some steps. The `WorkMeter` counts the time of
the algorithm's own code between two waits: updates, mixing, merging, compression, coding, and the training loop itself.
The time of gradients counts, too. The time of sending and receiving does not count, because
`grsgd.simulator.calibration.messages` measures it. Before the training, each rank takes some steps alone, and the
median time of these steps is subtracted from the time of each training step.
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
"""Number of training steps of the measurement (``STEPS``). The time of the first ``UNTIMED_STEPS`` training steps does
not count."""
STEPS_ALONE = 5
"""Number of steps that a rank takes without other ranks before the measured training. The median time of the steps
taken alone is subtracted from the time of each training step."""
CALLS = ("Isend", "Issend", "Irecv", "Ibcast", "Iallreduce", "Iprobe")
"""Names of the methods of a communicator whose time a `WorkMeter` does not count."""


class WorkMeter:
    """Counter of the processor seconds that one thread, which has created the meter, spends on an algorithm's own code.
    For each computed step the meter subtracts ``alone``, the seconds of a step that a rank takes without other
    ranks."""

    def __init__(self, alone: float):
        self.alone, self.seconds = alone, 0.0
        self._thread = threading.get_ident()
        self._counts = False

    def without(self, call, *arguments, **options):
        """Call ``call``, and return its result. The meter does not count the time of this call."""
        if not self._counts or threading.get_ident() != self._thread:
            return call(*arguments, **options)
        begin = time.thread_time()
        try:
            return call(*arguments, **options)
        finally:
            self.seconds -= time.thread_time() - begin

    def metered(self, schedule: engine.Schedule) -> engine.Schedule:
        """Run ``schedule``. Count the processor time of the schedule's gradients, and of the schedule's code between
        two waits. This method is a schedule (a generator that yields the objects it waits for)."""
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
            if isinstance(pending, Compute):  # the computation may have polled, and polls move messages
                moved = engine.ENGINE.worked_seconds - moved
                self.seconds += time.thread_time() - ended - moved - pending.amount * self.alone


class MeteredBackend(MpiBackend):
    """An `MpiBackend` for `MeteredCommunicator`. The `WorkMeter` ``meter`` of this backend does not count the time that
    its communicators' methods take."""

    def __init__(self, mpi, timeout: float, meter: WorkMeter):
        super().__init__(mpi, timeout)
        self.meter = meter

    def of(self, mpi) -> "MeteredBackend":
        return MeteredBackend(mpi, self.timeout, self.meter)


class MeteredCommunicator(Communicator):
    """A communicator for the measurement of an algorithm's processor time. The `WorkMeter` ``meter`` of the
    communicator's backend does not count the time that the communicator's methods take."""

    def __init__(self, backend: MeteredBackend, *arguments):
        super().__init__(backend, *arguments)
        for name in CALLS:
            setattr(self, name, partial(backend.meter.without, getattr(self, name)))


def measure_work(mpi, config: Config, rank: MeasuringRank, model: torch.nn.Module, steps: int = STEPS) -> float | None:
    """Train ``model`` for ``steps`` steps with the configured algorithm, on all ranks of ``mpi``. Return the processor
    seconds that the algorithm's own code takes per step on this rank.

    The result is the difference between the seconds of a training step and the seconds of a step that this rank takes
    alone. Returns None if this rank does not train. Returns None on all ranks if the algorithm cannot run with this
    number of ranks.

    rank: driver, data set and step functions of this rank. Raises SetupError on all ranks if the set-up
    fails on any rank.
    """
    from grsgd.training.automatic_options import choose_options
    from grsgd.training.trainer import Trainer

    ends = dict.fromkeys(("epochs", "samples", "seconds", "target", "target_accuracy"))
    train = config.train.model_copy(update=ends | {"steps": steps, "snapshots": 1, "stop_at_target": False})
    # a configured learning-rate schedule may need more steps than the measurement has
    others = {"schedule": Schedule(), "stragglers": Stragglers(), "faults": Faults()}
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
    """Return the median processor seconds of a step (gradient and update) that this rank takes without messages."""
    found = []
    for _ in range(STEPS_ALONE):
        begin = time.thread_time()
        rank.compute()
        found.append(time.thread_time() - begin)
    return statistics.median(found)
