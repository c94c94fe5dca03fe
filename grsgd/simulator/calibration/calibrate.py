"""Measurement of this machine or cluster for the simulator (``grsgd calibrate``): seconds of a training step, and
latency and bandwidth of messages.

All measurements use the communicator and the driver of real trainings, so the measured times include the costs of
communicator and driver.
"""

import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver, available_cores
from grsgd.comm.pollables import Delay, Until
from grsgd.config import Config
from grsgd.errors import ConfigError, SetupError
from grsgd.job import launch, places
from grsgd.mpi_environment import find_mpiexec, job_environment, module, without_launcher
from grsgd.simulator.calibration.computing import (
    StepTimes,
    barrier,
    computing_of,
    measure_computing,
    prepare,
    step_times,
)
from grsgd.simulator.calibration.eager import ended
from grsgd.simulator.calibration.exchanges import exchanges_beside
from grsgd.simulator.calibration.given_work import work_of
from grsgd.simulator.calibration.messages import MessageMeter, ProcessorTimes
from grsgd.simulator.calibration.pairs import Pair, measure_pairs
from grsgd.simulator.calibration.spread import Spread

MIN_QUEUE_BYTES, MAX_QUEUE_BYTES, QUEUE_ROUNDS = 256 * 1024, 1024 * 1024, 9
"""Smallest and largest size in bytes of the messages with which `measure_queue` measures a sender's queue, and number
of rounds of this measurement. In each round of `measure_queue` the sender sends three messages.

Between the two bounds, a message of `measure_queue` is as long as the model's parameters. A longer message can fill a
longer queue of the sender."""
TWO_RANKS_SECONDS = 120.0
"""Largest number of seconds for which two additional ranks may run, from their start to the end of their
measurements."""
MEASURING_SECONDS = 1800.0
"""Largest number of seconds for which the other ranks wait while two ranks measure the processor time that messages
take."""
ANSWER_PREFIX = "grsgd-calibrate "
"""Prefix of the line of output in which two additional ranks report their measurements."""


class Calibration(NamedTuple):
    """Results of ``grsgd calibrate``, which measures a machine or cluster for the simulator."""

    pairs: list[Pair]
    """Latency and bandwidth of each measured pair of ranks (i, i + 1)."""
    compute: list["StepTimes"]
    """Seconds that each rank computes in a training step, as `StepTimes`."""
    hosts: list[str]
    """Name of the host of each rank."""
    crowded: bool
    """Whether several ranks share a core, and therefore compute one after the other."""
    queue_bytes: int | None = None
    """Measured bytes of a message in its sender's queue, for `grsgd.simulator.network.NetworkSpec.queue_bytes`; None on
    fewer than three hosts."""
    processor: ProcessorTimes | None = None
    """Processor time that messages take; None if this time was not measured."""
    work: float | None = None
    """Processor seconds by which a step of the configured algorithm takes longer than a step that one rank takes alone;
    None if not measured."""


def calibrate(
    mpi,
    config: Config,
    steps: int = 30,
    timed: Callable[[], AbstractContextManager] = nullcontext,
    share: float | None = None,
) -> Calibration:
    """Measure the seconds of training steps, and latency and bandwidth of messages, on all ranks of ``mpi``. All ranks
    return the same result.

    If ``mpi`` has only one rank, this function starts two additional ranks that measure messages.

    steps: number of training steps whose seconds are measured; 2 or more. timed: function that returns a context in
    which the ranks measure; data are loaded outside of this context. share: fraction of a core's time to which each
    rank is limited (`compute.seconds_of_steps`). If ``share`` is None, the rank's quota of processor time gives the
    fraction; a rank without a quota has no limit.

    Raises SetupError on all ranks if the configuration or the data have an error. Raises SetupError, too, if ``mpi``
    has one rank and no ``mpiexec`` is found that can start two additional ranks.
    """
    from grsgd.simulator.calibration.work import measure_work

    with launch.collective_setup(mpi):
        if mpi.size == 1:
            check_mpiexec()
    sharing = launch.ranks_on_cores(mpi)
    rank = prepare(mpi, config)
    driver, comm = rank.driver, rank.comm
    with timed():
        share = share_of(driver) if share is None else share
        compute = step_times(mpi.allgather(measure_computing(rank, steps, share)))
        work = typical_work(mpi, measure_work(mpi, config, rank, rank.make_model()), share)
        hosts = places.hosts(mpi)
        if mpi.size == 1:
            pairs, processor = on_two_ranks(config.comm.progress_mode, compute[0].median)
        else:
            pairs = driver.run(measure_pairs(comm, hosts))
            driver.run(barrier(comm))
            processor = measure_processor(driver, comm, *usual_ranks(compute, hosts), pairs, rank.step)
        three = [hosts.index(host) for host in dict.fromkeys(hosts)][:3]
        nbytes = min(max(rank.nbytes, MIN_QUEUE_BYTES), MAX_QUEUE_BYTES)
        queue_bytes = driver.run(measure_queue(comm, *three, nbytes)) if len(three) == 3 else None
        driver.run(barrier(comm))  # unlike MPI's barrier, this barrier has a timeout and frees the core while it waits
    driver.close()
    pairs = [pair for of_rank in mpi.allgather(pairs) for pair in of_rank]
    crowded = any(mpi.allgather(sharing > available_cores()))
    queue_bytes = mpi.bcast(queue_bytes, root=three[0])
    processor = next((found for found in mpi.allgather(processor) if found is not None), None)
    return Calibration(pairs, compute, hosts, crowded, queue_bytes, processor, work)


def computing(mpi, config: Config, steps: int, timed: Callable[[], AbstractContextManager]) -> list[StepTimes]:
    """Measure the seconds that each rank computes in a training step (`Calibration.compute`), on all ranks of ``mpi``.
    The function measures no messages.

    Raises SetupError on all ranks if the set-up fails on any rank."""
    rank = prepare(mpi, config)
    with timed():
        compute = measure_computing(rank, steps, share_of(rank.driver))
    rank.driver.close()
    return step_times(mpi.allgather(compute))


def work(mpi, config: Config, timed: Callable[[], AbstractContextManager], steps: int) -> float | None:
    """Train for ``steps`` steps on all ranks of ``mpi``. Return the processor seconds of the algorithm's own code per
    step (`Calibration.work`), and measure nothing else.

    Raises SetupError on all ranks if the set-up fails on any rank."""
    from grsgd.simulator.calibration.work import measure_work

    rank = prepare(mpi, config)
    model = rank.make_model()
    with timed():
        share = share_of(rank.driver)
        seconds = measure_work(mpi, config, rank, model, steps)
    rank.driver.close()
    return typical_work(mpi, seconds, share)


def share_of(driver: MpiDriver) -> float | None:
    """Return the fraction of a core that this rank's quota of processor time allows; None if the rank has no quota."""
    quota = driver.quota()
    return quota and quota.cores


def typical_work(mpi, seconds: float | None, share: float | None) -> float | None:
    """Return the median over the ranks of ``seconds / share``: a rank's measured processor seconds, divided by the
    fraction of a core that the rank may use. Return None if ``seconds`` is None on every rank."""
    found = mpi.allgather(None if seconds is None else seconds / (share or 1.0))
    known = [of_rank for of_rank in found if of_rank is not None]
    return statistics.median(known) if known else None


def usual_ranks(compute: list[StepTimes], hosts: list[str]) -> tuple[int, int]:
    """Return the numbers of two ranks whose training steps take about as long as the median over all ranks. If the run
    has several hosts, the two returned ranks are on different hosts."""
    median = statistics.median(times.median for times in compute)
    here, *others = sorted(range(len(compute)), key=lambda rank: abs(compute[rank].median - median))
    return here, next((rank for rank in others if hosts[rank] != hosts[here]), others[0])


def measure_processor(
    driver, comm, here: int, there: int, pairs: list[Pair], step: Callable[[], None]
) -> ProcessorTimes | None:
    """Measure the processor time on rank ``here`` of messages from and to rank ``there``, while rank ``here`` takes
    training steps.

    Returns the measured times on rank ``here``, and None on all other ranks. All ranks except ``here`` and ``there``
    take training steps, too, until rank ``here`` tells them to wait. If the measurement takes longer than
    `MEASURING_SECONDS`, the waiting ranks raise SetupError.
    """
    slowest = np.zeros(comm.size)
    if pairs:
        slowest[comm.rank] = 1 / min(pair.bandwidth for pair in pairs)
    driver.run(ring_allreduce(comm, slowest))
    exchanges = exchanges_beside(driver, comm, step) if driver.progress_mode == "thread" else None
    deadline = time.monotonic() + MEASURING_SECONDS
    others = set(range(comm.size)) - {here, there}
    found = None

    def let_others_wait():
        for other in others:
            yield comm.Isend(np.zeros(1, np.uint8), other, tags.CALIBRATION_SIGNAL)

    if comm.rank in others:
        told = driver.start(ended(comm.Irecv(np.zeros(1, np.uint8), here, tags.CALIBRATION_SIGNAL)))
        while not told.Test() and time.monotonic() < deadline:
            driver.run(computing_of(step))  # the steps keep shared cores as busy as in a training
    else:
        found = MessageMeter(driver, comm, here, there, step, let_others_wait).measure(float(slowest.max()), exchanges)
    all_there = driver.start(barrier(comm))  # a barrier in the foreground might exceed the driver's timeout
    while not all_there.Test():
        if time.monotonic() > deadline:
            raise SetupError(f"calibrate: ranks {here} and {there} have not measured within {MEASURING_SECONDS:g} s")
        driver.run(waiting_for(all_there, time.perf_counter() + driver.timeout / 2))
    return found


def waiting_for(pollable, end: float):
    """Wait until ``pollable`` is complete, or until `time.perf_counter` has reached ``end``. This function is a
    generator that yields the objects it waits for."""
    yield Until(lambda: pollable.Test() or time.perf_counter() > end, "ranks that measure")


def measure_queue(comm, sender: int, early: int, late: int, nbytes: int):
    """Measure how many bytes of a message wait in the send queue of rank ``sender`` before the bytes of the next
    message. This function is a generator that yields the objects it waits for.

    When half of a message to rank ``early`` has arrived, the sender begins to send a message to rank ``late``. The
    message to ``late`` delays the message to ``early``, and the sender computes the bytes in its queue from this delay.
    Returns the median number of bytes on rank ``sender``, and None on other ranks.

    nbytes: bytes of each message. `measure_queue` can find at most ``nbytes / 2`` bytes in the queue.
    """
    message, other = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    signal = np.zeros(1)
    waiting = []
    for _ in range(QUEUE_ROUNDS):
        if comm.rank == sender:
            alone = yield from seconds_of_first(comm, early, None, (message, other), 0.0)
            first = yield from seconds_of_first(comm, early, late, (message, other), alone / 2)
            waiting.append(0.5 - (first / alone - 1))  # fraction of the message to `early` that was in the queue
        elif comm.rank == early:
            for _ in range(2):
                yield from take_part(comm, sender, message, signal)
        elif comm.rank == late:
            yield from take_part(comm, sender, message, signal)
    return round(min(max(statistics.median(waiting), 0.0), 0.5) * nbytes) if waiting else None


def seconds_of_first(comm, early: int, late: int | None, buffers, wait: float):
    """Return the seconds from sending a message to rank ``early`` to receiving the answer. If ``late`` is not None,
    send a message to rank ``late``, too, after ``wait`` seconds. This function is a generator that yields the objects
    it waits for."""
    answers = np.zeros(1), np.zeros(1)
    begin = time.perf_counter()
    first = comm.Irecv(answers[0], early, tags.CALIBRATION)
    sending = [comm.Isend(buffers[0], early, tags.CALIBRATION)]
    if late is not None:
        yield Delay(wait)
        sending += [comm.Isend(buffers[1], late, tags.CALIBRATION), comm.Irecv(answers[1], late, tags.CALIBRATION)]
    yield first
    seconds = time.perf_counter() - begin
    yield sending
    return seconds


def take_part(comm, sender: int, message, signal):
    """Receive one message of `measure_queue` from rank ``sender``, and send an answer. This function is a
    generator that yields the objects it waits for."""
    yield comm.Irecv(message, sender, tags.CALIBRATION)
    yield comm.Isend(signal, sender, tags.CALIBRATION)


def check_mpiexec():
    """Raise ConfigError, with advice for the user, if no ``mpiexec`` is found that can start two ranks."""
    try:
        find_mpiexec()
    except ConfigError as error:
        raise ConfigError(
            f"calibrate: {error}, and latency and bandwidth need two ranks: start calibrate with your cluster's "
            "launcher, such as `srun --mpi=pmix --ntasks=2 python -m grsgd calibrate`"
        ) from None


def on_two_ranks(progress_mode: str, step_seconds: float) -> tuple[list[Pair], ProcessorTimes]:
    """Start two additional ranks whose steps compute for ``step_seconds``, and return the measurements of these ranks.
    Raises SetupError if the two ranks fail or take too long."""
    mpiexec = find_mpiexec()
    command = [mpiexec, "-n", "2", *module("grsgd.simulator.calibration.calibrate")]
    command += [progress_mode, repr(step_seconds)]
    job = subprocess.Popen(
        command,
        env=without_launcher(job_environment()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=TWO_RANKS_SECONDS)
        failure = f"exit code {job.returncode}" if job.returncode else "the two ranks did not see each other"
    except subprocess.TimeoutExpired:
        output, failure = "", f"no end within {TWO_RANKS_SECONDS:g} s"
    finally:
        if job.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    for line in output.splitlines():
        if job.returncode == 0 and line.startswith(ANSWER_PREFIX):
            pairs, times = json.loads(line.removeprefix(ANSWER_PREFIX))
            pairs = [Pair(tuple(ranks), *numbers) for ranks, *numbers in pairs]
            return pairs, ProcessorTimes(*(Spread(*value) if isinstance(value, list) else value for value in times))
    said = next((line.strip() for line in output.splitlines() if any(c.isalpha() for c in line)), "nothing")
    raise SetupError(f"calibrate: {shlex.join(command[:3])}: {failure}; first line of its output: {said}")


def main():
    """Measure messages between the two ranks of this job, and print the results as a line of JSON. The command line has
    two arguments: the value of the option ``comm.progress_mode``, and the seconds that a step computes."""
    mode, seconds = sys.argv[1:]
    mpi = launch.world()
    launch.abort_on_error(mpi)
    if mpi.size != 2:
        return
    comm = Communicator(MpiBackend(mpi).dup())
    driver = launch.driver(mpi, TWO_RANKS_SECONDS / 4, mode)
    pairs = driver.run(measure_pairs(comm, places.hosts(mpi)))
    processor = measure_processor(driver, comm, 0, 1, pairs, work_of(float(seconds), driver.poll))
    driver.close()
    if processor is not None:
        print(ANSWER_PREFIX + json.dumps([pairs, processor]), flush=True)


if __name__ == "__main__":
    main()
