"""Preparation of a rank for the measurements of ``grsgd calibrate``. The module also measures the seconds that a
training step computes, on all ranks at once."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.pollables import Compute, Delay
from grsgd.config import Config
from grsgd.job import launch
from grsgd.simulator.network import AFTER_WAIT_SECONDS


class StepTimes(NamedTuple):
    """Seconds that a rank computes in a training step: the median, and the standard deviation (sigma) of the logarithm
    of the seconds. ``after_wait`` and ``after_wait_sigma`` are median and sigma for steps after a wait; None and 0 if
    such steps were not measured.

    The measured wait lasts `AFTER_WAIT_SECONDS`.
    """

    median: float
    sigma: float
    after_wait: float | None = None
    after_wait_sigma: float = 0.0


class MeasuringRank(NamedTuple):
    """Objects with which a rank of ``grsgd calibrate`` measures: driver, communicator, data set, and functions that
    compute a gradient and an update."""

    driver: MpiDriver
    comm: Communicator
    dataset: object
    make_model: Callable[[], object]
    gradient: Callable[[], None]
    update: Callable[[], None]
    nbytes: int
    """Number of bytes of all parameters of the model."""

    def step(self):
        """Compute a gradient, and update the model with it, without the driver."""
        self.gradient()
        self.update()

    def compute(self):
        """Let the driver compute a gradient, as in a training run, and update the model with it."""
        self.driver.run(computing_of(self.gradient))
        self.update()


def prepare(mpi, config: Config) -> MeasuringRank:
    """Set up this rank for measurements, and return its `MeasuringRank`. Raises SetupError on all ranks if the set-up
    fails on any rank."""
    from grsgd.training import device as gpu
    from grsgd.training.batch_gradient import check_compiler
    from grsgd.training.gradients import step_alone
    from grsgd.training.inputs import build_model, load_data
    from grsgd.training.memory import check_fits

    gpu.use_threads()
    comm = Communicator(MpiBackend(mpi).dup())
    local_rank, local_ranks = launch.local_ranks(mpi)
    driver = launch.driver(
        mpi, config.comm.timeout, config.comm.progress_mode, compute_seconds=config.train.compute_seconds
    )
    with launch.collective_setup(mpi):
        dataset = load_data(config)
        device = gpu.pick_device(config.device, local_rank)
        check_fits(config, dataset, mpi.size, local_ranks, device)
    with launch.collective_setup(mpi):  # begins after all ranks have compared their needs with the free memory
        gpu.use(device)
        gpu.allow_tf32(device, config.gradient.tf32)
        check_compiler(config.gradient, device)
        poll = driver.poll if driver.progress_mode == "inline" else None
        model = build_model(config, dataset, device)
        nbytes = sum(parameter.nbytes for parameter in model.parameters())
        parts = step_alone(config, dataset, model, poll)
        return MeasuringRank(driver, comm, dataset, partial(build_model, config, dataset, device), *parts, nbytes)


def measure_computing(rank: MeasuringRank, steps: int, share: float | None) -> list[list[float]]:
    """Return one or two lists: the seconds of each step while all ranks compute, and the seconds of each step after a
    wait.

    If ``share`` limits ranks to a fraction of a core, return only the list of steps without waits, measured in
    processor time.
    """
    from grsgd.simulator.compute import seconds_of_steps

    driver, comm = rank.driver, rank.comm

    def waiting():
        # ranks that share cores begin their steps together, as after a wait for each other in a training
        yield from barrier(comm)
        yield Delay(AFTER_WAIT_SECONDS)

    driver.run(barrier(comm))
    found = [seconds_of_steps(rank.compute, steps, share)]
    if share is None:
        found.append(seconds_of_steps(rank.compute, steps, wait=lambda: driver.run(waiting())))
    others = driver.start(barrier(comm))
    while not others.Test():  # as in a training, this rank computes until the slowest rank has measured
        rank.compute()
    driver.run(barrier(comm))
    return found


def step_times(seconds: list[list[list[float]]]) -> list[StepTimes]:
    """Return the `StepTimes` of each rank, from the measured seconds of steps. ``seconds`` has one entry per rank: the
    result of `measure_computing` on this rank."""
    from grsgd.simulator.compute import medians_and_sigmas

    kinds = [medians_and_sigmas(np.array(of_ranks)) for of_ranks in zip(*seconds, strict=True)]
    return [StepTimes(*itertools.chain(*of_rank)) for of_rank in zip(*kinds, strict=True)]


def computing_of(work: Callable[[], None]):
    """Let the driver run ``work()``, a function that computes a gradient or a whole training step. This function is a
    schedule (a generator that yields the objects it waits for)."""
    yield Compute(work)


def barrier(comm):
    """Wait until all ranks have reached this barrier. This function is a generator that yields the objects it waits
    for."""
    yield from ring_allreduce(comm, np.zeros(comm.size))
