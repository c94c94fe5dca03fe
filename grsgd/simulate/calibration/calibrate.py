"""Measures what the simulator needs to know of this machine or cluster: computing, latency, bandwidth.

Everything is measured through the communicator and the driver that training uses, so that it is what training gets.
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
from grsgd.job import launch
from grsgd.mpi_environment import find_mpiexec, job_environment, module, without_launcher
from grsgd.simulate.calibration.computing import (
    StepTimes,
    barrier,
    computing_of,
    measure_computing,
    prepare,
    step_times,
)
from grsgd.simulate.calibration.exchanges import exchanges_beside
from grsgd.simulate.calibration.given_work import work_of
from grsgd.simulate.calibration.messages import MessageMeter, ProcessorTimes, ended
from grsgd.simulate.calibration.spread import Spread

LARGE_BYTES = 4 * 1024 * 1024
"""The size of the messages that show the bandwidth."""
MAX_ROUNDS, MIN_ROUNDS = {8: 1000, LARGE_BYTES: 30}, 5
"""Round trips by size of the message; fewer than the most if they take longer than `SECONDS` together."""
SECONDS = 0.5
LEAST_QUEUE_BYTES, MOST_QUEUE_BYTES, QUEUE_ROUNDS = 256 * 1024, 1024 * 1024, 9
"""Between which bounds the size of the model is the size of the messages that show how much of one waits in its
sender's queue, and how often. Of longer ones more of the queue can be seen; each round sends three."""
TWO_RANKS_SECONDS = 120.0
"""How long two more ranks may take to start and to measure."""
MEASURING_SECONDS = 1800.0
"""How long other ranks wait while two measure what messages take of a processor."""
ANSWER_PREFIX = "grsgd-calibrate "
"""At the beginning of the line in which two more ranks say what they have measured."""


class Pair(NamedTuple):
    """Latency [s] and bandwidth [bytes/s] between two ranks."""

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


class Calibration(NamedTuple):
    """The results of a calibration."""

    pairs: list[Pair]
    """Measurements of neighbouring ranks."""
    compute: list["StepTimes"]
    """By rank."""
    hosts: list[str]
    """The host of each rank."""
    crowded: bool
    """Whether ranks share cores, so that they computed by turns."""
    queue_bytes: int | None = None
    """As for `grsgd.simulate.network.NetworkSpec`; None with fewer than three hosts."""
    processor: ProcessorTimes | None = None
    """The time that messages take of a processor; None if that was not measured."""
    work: float | None = None
    """What a step of the algorithm takes more than one alone, in seconds; None if that was not measured."""


def calibrate(
    mpi,
    config: Config,
    steps: int = 30,
    timed: Callable[[], AbstractContextManager] = nullcontext,
    share: float | None = None,
) -> Calibration:
    """Measure on all ranks of ``mpi``; with one rank, start two more for a moment. The same result on all ranks.

    steps: of training, to measure computing; 2 or more. timed: makes a context in which the ranks measure, and load no
    data. share: of a core that each rank is limited to; None: what its quota leaves it, if it has one
    (`compute.seconds_of_steps`).

    Raises SetupError, on all ranks, for what is wrong with configuration or data, and if there is no mpiexec to
    start two ranks with.
    """
    from grsgd.simulate.calibration.work import measure_work

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
        hosts = launch.hosts(mpi)
        if mpi.size == 1:
            pairs, processor = on_two_ranks(config.comm.progress_mode, compute[0].median)
        else:
            pairs = driver.run(measure_pairs(comm, hosts))
            driver.run(barrier(comm))
            processor = measure_processor(driver, comm, *usual_ranks(compute, hosts), pairs, rank.step)
        three = [hosts.index(host) for host in dict.fromkeys(hosts)][:3]
        nbytes = min(max(rank.nbytes, LEAST_QUEUE_BYTES), MOST_QUEUE_BYTES)
        queue_bytes = driver.run(measure_queue(comm, *three, nbytes)) if len(three) == 3 else None
        driver.run(barrier(comm))  # waits with a time-out, and without taking a core, which MPI's own may not do
    driver.close()
    pairs = [pair for of_rank in mpi.allgather(pairs) for pair in of_rank]
    crowded = any(mpi.allgather(sharing > available_cores()))
    queue_bytes = mpi.bcast(queue_bytes, root=three[0])
    processor = next((found for found in mpi.allgather(processor) if found is not None), None)
    return Calibration(pairs, compute, hosts, crowded, queue_bytes, processor, work)


def computing(mpi, config: Config, steps: int, timed: Callable[[], AbstractContextManager]) -> list[StepTimes]:
    """Measure on all ranks of ``mpi`` how long a step computes, and nothing else: as `Calibration.compute`.

    Raises SetupError, on all ranks.
    """
    rank = prepare(mpi, config)
    with timed():
        compute = measure_computing(rank, steps, share_of(rank.driver))
    rank.driver.close()
    return step_times(mpi.allgather(compute))


def work(mpi, config: Config, timed: Callable[[], AbstractContextManager], steps: int) -> float | None:
    """Train for ``steps`` steps on all ranks of ``mpi``; return the seconds of `Calibration.work`, and nothing else.

    Raises SetupError, on all ranks.
    """
    from grsgd.simulate.calibration.work import measure_work

    rank = prepare(mpi, config)
    model = rank.make_model()
    with timed():
        share = share_of(rank.driver)
        seconds = measure_work(mpi, config, rank, model, steps)
    rank.driver.close()
    return typical_work(mpi, seconds, share)


def share_of(driver: MpiDriver) -> float | None:
    """Return the share of a core that the quota of this rank leaves it; None if it has none."""
    quota = driver.quota()
    return quota and quota.cores


def typical_work(mpi, seconds: float | None, share: float | None) -> float | None:
    """Return the median of the seconds of a core that ranks have measured, as they take them with their shares of it;
    None if none has."""
    found = mpi.allgather(None if seconds is None else seconds / (share or 1.0))
    known = [of_rank for of_rank in found if of_rank is not None]
    return statistics.median(known) if known else None


def usual_ranks(compute: list[StepTimes], hosts: list[str]) -> tuple[int, int]:
    """Return two ranks, on two hosts if there are two, that compute about as fast as most."""
    median = statistics.median(times.median for times in compute)
    here, *others = sorted(range(len(compute)), key=lambda rank: abs(compute[rank].median - median))
    return here, next((rank for rank in others if hosts[rank] != hosts[here]), others[0])


def measure_processor(
    driver, comm, here: int, there: int, pairs: list[Pair], step: Callable[[], None]
) -> ProcessorTimes | None:
    """Measure on rank ``here`` what messages from and to ``there`` take of its processor while it takes steps. None on
    the other ranks, which take steps, too, until they are told to wait; raises SetupError on them if all takes too
    long."""
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
            driver.run(computing_of(step))  # so that cores which ranks share are as busy as in a training
    else:
        found = MessageMeter(driver, comm, here, there, step, let_others_wait).measure(float(slowest.max()), exchanges)
    all_there = driver.start(barrier(comm))  # not in the foreground, where it might take longer than a wait may
    while not all_there.Test():
        if time.monotonic() > deadline:
            raise SetupError(f"calibrate: ranks {here} and {there} have not measured within {MEASURING_SECONDS:g} s")
        driver.run(waiting_for(all_there, time.perf_counter() + driver.timeout / 2))
    return found


def waiting_for(pollable, end: float):
    """Schedule: wait until it is true, but no longer than until ``end``."""
    yield Until(lambda: pollable.Test() or time.perf_counter() > end, "ranks that measure")


def measure_pairs(comm, hosts: list[str]):
    """Schedule: measure the pairs (i, i+1), one after the other. Returns this rank's with the next one, in a list.

    hosts: of each rank. Within one the bandwidth is that of messages both ways at once: there is no wire with two
    directions, but processors and a memory that copy them all.

    A rank begins with its pair when the pair before has ended, so nothing else is under way. A message says whether
    another round trip follows: rank i decides by the clock.
    """
    n, rank = comm.size, comm.rank
    before, after = (rank - 1) % n, (rank + 1) % n
    pairs = []
    first = rank == 0
    if first:
        pairs.append((yield from measure_pair(comm, after, hosts[rank] == hosts[after])))
    if not first or n > 2:  # the way from 1 to 0 is that from 0 to 1
        for nbytes in MAX_ROUNDS:
            yield from answer(comm, before, nbytes, at_once(nbytes, hosts[rank] == hosts[before]))
    if not first and n > 2:
        pairs.append((yield from measure_pair(comm, after, hosts[rank] == hosts[after])))
    return pairs


def at_once(nbytes: int, one_host: bool) -> bool:
    """Whether messages of so many bytes are measured both ways at once."""
    return one_host and nbytes == LARGE_BYTES


def measure_pair(comm, other: int, one_host: bool):
    """Schedule: `Pair` of this rank and ``other``, which runs `answer`. Both add up what comes, as all-reduces do."""
    one_way = {}
    for nbytes, most in MAX_ROUNDS.items():
        outgoing, incoming = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        total = np.zeros(nbytes // 4, np.float32)
        seconds: list[float] = []
        began = time.perf_counter()
        go_on = True
        while go_on:
            begin = time.perf_counter()
            late = begin - began > SECONDS and len(seconds) >= MIN_ROUNDS
            go_on = outgoing[0] = not (late or len(seconds) == most)
            receiving = comm.Irecv(incoming, other, tags.CALIBRATION)
            yield [receiving, comm.Isend(outgoing, other, tags.CALIBRATION)]
            total += incoming.view(np.float32)
            seconds.append(time.perf_counter() - begin)
        one_way[nbytes] = statistics.median(seconds[1:])  # the first one finds caches cold and the other asleep
        if not at_once(nbytes, one_host):
            one_way[nbytes] /= 2
    latency, large = one_way.values()
    return Pair((comm.rank, other), latency, LARGE_BYTES / max(large - latency, 0.01 * large))


def answer(comm, other: int, nbytes: int, at_once: bool):
    """Schedule: send as much to ``other`` as comes from it, and is added up, until it says that this was the last:
    back, or ``at_once``."""
    incoming, outgoing = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    total = np.zeros(nbytes // 4, np.float32)
    incoming[0] = 1
    while incoming[0]:
        receiving = comm.Irecv(incoming, other, tags.CALIBRATION)
        if at_once:
            yield [receiving, comm.Isend(outgoing, other, tags.CALIBRATION)]
            total += incoming.view(np.float32)
        else:
            yield receiving
            total += incoming.view(np.float32)
            yield comm.Isend(outgoing, other, tags.CALIBRATION)


def measure_queue(comm, sender: int, early: int, late: int, nbytes: int):
    """Schedule: how many bytes of a message wait in the queue of ``sender``: by how much later one to ``early`` ends if
    another, to ``late``, begins as half of it is there. On ``sender`` the median, elsewhere nothing.

    nbytes: of each message, of which at most half can be seen to wait.
    """
    message, other = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    signal = np.zeros(1)
    waiting = []
    for _ in range(QUEUE_ROUNDS):
        if comm.rank == sender:
            alone = yield from seconds_of_first(comm, early, None, (message, other), 0.0)
            first = yield from seconds_of_first(comm, early, late, (message, other), alone / 2)
            waiting.append(0.5 - (first / alone - 1))  # of the message: this much of its second half went first
        elif comm.rank == early:
            for _ in range(2):
                yield from take_part(comm, sender, message, signal)
        elif comm.rank == late:
            yield from take_part(comm, sender, message, signal)
    return round(min(max(statistics.median(waiting), 0.0), 0.5) * nbytes) if waiting else None


def seconds_of_first(comm, early: int, late: int | None, buffers, wait: float):
    """Schedule: seconds until a message to ``early`` is there, if ``wait`` seconds after it one to ``late`` begins."""
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
    """Schedule: what ``sender`` measures, at the other end."""
    yield comm.Irecv(message, sender, tags.CALIBRATION)
    yield comm.Isend(signal, sender, tags.CALIBRATION)


def check_mpiexec():
    """Raise ConfigError, with what to do, if two ranks cannot be started."""
    try:
        find_mpiexec()
    except ConfigError as error:
        raise ConfigError(
            f"calibrate: {error}, and latency and bandwidth need two ranks: start it with your cluster's launcher, "
            "such as `srun --mpi=pmix --ntasks=2 python -m grsgd calibrate`"
        ) from None


def on_two_ranks(progress_mode: str, step_seconds: float) -> tuple[list[Pair], ProcessorTimes]:
    """Start two ranks, and return what they measure, computing for ``step_seconds`` at a time. Raises SetupError."""
    mpiexec = find_mpiexec()
    command = [mpiexec, "-n", "2", *module("grsgd.simulate.calibration.calibrate")]
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
        failure = f"exit code {job.returncode}" if job.returncode else "two ranks that do not see each other"
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
    raise SetupError(f"calibrate: {shlex.join(command[:3])}: {failure}; it said: {said}")


def main():
    """On two ranks: print what they measure. Arguments: comm.progress_mode, and the seconds of a step."""
    mode, seconds = sys.argv[1:]
    mpi = launch.world()
    launch.abort_on_error(mpi)
    if mpi.size != 2:
        return
    comm = Communicator(MpiBackend(mpi).dup())
    driver = launch.driver(mpi, TWO_RANKS_SECONDS / 4, mode)
    pairs = driver.run(measure_pairs(comm, launch.hosts(mpi)))
    processor = measure_processor(driver, comm, 0, 1, pairs, work_of(float(seconds), driver.poll))
    driver.close()
    if processor is not None:
        print(ANSWER_PREFIX + json.dumps([pairs, processor]), flush=True)


if __name__ == "__main__":
    main()
