"""Measures what the simulator needs to know of this machine or cluster: computing, latency, bandwidth.

Everything is measured through the communicator and the driver that training uses, so that it is what training gets.
"""

import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from grsgd import __version__, launch
from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import Driver, available_cores
from grsgd.comm.pollables import Delay
from grsgd.config import Config, ConfigError
from grsgd.simulate.network import ComputeSpec, as_duration, as_rate

LARGE_BYTES = 4 * 1024 * 1024
DIFFERENT = 0.2
"""A pair or a rank that deviates from the median by more than this part of it gets an entry of its own."""
ROUNDS = {8: 1000, LARGE_BYTES: 30}
"""Round trips by size of the message, at most; fewer if they take longer than `SECONDS` together."""
SECONDS = 0.5
FEWEST = 5
SHARED_BYTES, SHARED_ROUNDS = 1024 * 1024, 15
"""Of the messages that show how two share a port."""
STARTS_AGAIN_SECONDS = 120.0
"""How long two more ranks may take to start and to measure."""
TAG = 1
MARK = "grsgd-pairs "
CROWDED = "More ranks than cores: a step takes this long while its rank has a core, and longer on average."


class Pair(NamedTuple):
    """Between two ranks; seconds, and bytes per second."""

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


class Calibration(NamedTuple):
    """What was measured: pairs of neighbouring ranks; by rank, median and sigma of the logarithm of the seconds of a
    step, and the host. ``crowded``: whether ranks share cores, so that they computed by turns. ``seniority`` as for
    `NetworkSpec`; None with fewer than three hosts."""

    pairs: list[Pair]
    compute: list[tuple[float, float]]
    hosts: list[str]
    crowded: bool
    seniority: float | None = None


def calibrate(mpi, config: Config, steps: int = 30) -> Calibration:
    """Measure on all ranks of ``mpi``; with one rank, start two more for a moment. The same result on all ranks.

    steps: of training, to measure computing; 2 or more.

    Raises launch.UsageError, on all ranks, for what is wrong with configuration or data, and if there is no mpiexec to
    start two ranks with.
    """
    from grsgd.data import DataError
    from grsgd.simulate.compute import measure
    from grsgd.train import use_threads

    use_threads()
    comm = Communicator(mpi.Dup())
    sharing, local_rank = launch.ranks_on_cores(mpi), launch.local_rank(mpi)
    driver = launch.driver(mpi, config.comm.timeout, config.comm.progress)
    with launch.together(mpi, (ConfigError, DataError)):
        trainer = single_trainer(config, driver, local_rank)
        if mpi.size == 1:
            find_mpiexec()
    driver.run(barrier(comm))
    compute = measure(trainer, steps)
    others = driver.start(barrier(comm))
    while not others.Test():  # as in a run, everybody computes until the last one has measured
        trainer.gradient()
        trainer.algorithm.update()
    driver.run(barrier(comm))
    pairs = driver.run(measure_pairs(comm)) if mpi.size > 1 else pairs_of_two_ranks()
    driver.run(barrier(comm))
    hosts = launch.hosts(mpi)
    three = [hosts.index(host) for host in dict.fromkeys(hosts)][:3]
    seniority = driver.run(measure_seniority(comm, *three)) if len(three) == 3 else None
    driver.run(barrier(comm))  # waits with a time-out, and without taking a core, which MPI's own may not do
    driver.close()
    pairs = [pair for of_rank in mpi.allgather(pairs) for pair in of_rank]
    crowded = any(mpi.allgather(sharing > available_cores()))
    return Calibration(pairs, mpi.allgather(compute), hosts, crowded, mpi.bcast(seniority, root=three[0]))


def single_trainer(config: Config, driver: Driver, local_rank: int):
    """A trainer that trains as every rank of a run does, but for communication. Raises ConfigError and DataError."""
    from mpi4py import MPI

    from grsgd import gpu
    from grsgd.comm.control import Control
    from grsgd.simulate.compute import alone
    from grsgd.train import Trainer, build_model, load_data

    dataset = load_data(config)
    device = gpu.pick_device(config.device, local_rank)
    gpu.use(device)
    model = build_model(config, dataset, device)
    comm, aside, control = (Communicator(MPI.COMM_SELF.Dup()) for _ in range(3))
    return Trainer(alone(config), dataset, model, comm, aside, Control(control), driver)


def barrier(comm):
    """Schedule: ends when all ranks have begun it."""
    yield from ring_allreduce(comm, np.zeros(comm.size))


def measure_pairs(comm):
    """Schedule: measure the pairs (i, i+1), one after the other. Returns this rank's with the next one, in a list.

    A rank begins with its pair when the pair before has ended, so nothing else is under way. A message says whether
    another round trip follows: rank i decides by the clock.
    """
    n, rank = comm.size, comm.rank
    pairs = []
    first = rank == 0
    if first:
        pairs.append((yield from measure_pair(comm, 1)))
    if not first or n > 2:  # the way from 1 to 0 is that from 0 to 1
        for nbytes in ROUNDS:
            yield from answer(comm, (rank - 1) % n, nbytes)
    if not first and n > 2:
        pairs.append((yield from measure_pair(comm, (rank + 1) % n)))
    return pairs


def measure_pair(comm, other: int):
    """Schedule: `Pair` of this rank and ``other``, which runs `answer`."""
    halves = {}
    for nbytes, most in ROUNDS.items():
        outgoing, incoming = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        seconds: list[float] = []
        began = time.perf_counter()
        go_on = True
        while go_on:
            begin = time.perf_counter()
            late = begin - began > SECONDS and len(seconds) >= FEWEST
            go_on = outgoing[0] = not (late or len(seconds) == most)
            receiving = comm.Irecv(incoming, other, TAG)
            yield [receiving, comm.Isend(outgoing, other, TAG)]
            seconds.append(time.perf_counter() - begin)
        halves[nbytes] = statistics.median(seconds[1:]) / 2  # the first one finds caches cold and the other asleep
    latency, large = halves.values()
    return Pair((comm.rank, other), latency, LARGE_BYTES / max(large - latency, 0.01 * large))


def answer(comm, other: int, nbytes: int):
    """Schedule: send back what comes from ``other`` until it says that this was the last."""
    incoming, outgoing = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    incoming[0] = 1
    while incoming[0]:
        yield comm.Irecv(incoming, other, TAG)
        yield comm.Isend(outgoing, other, TAG)


def measure_seniority(comm, hub: int, early: int, late: int):
    """Schedule: how evenly two messages share the way to ``hub``, and the way from it, when that of ``late`` begins as
    half of that of ``early`` is there. On ``hub`` a number from 0.1 to 1, the mean of both medians, elsewhere nothing.

    Alone, a message takes S. The first of two then ends after S/2 + (1 + seniority) S/2.
    """
    message, other = np.zeros(SHARED_BYTES, np.uint8), np.zeros(SHARED_BYTES, np.uint8)
    word = np.zeros(1)
    found = []
    for outwards in (False, True):
        ratios = []
        for _ in range(SHARED_ROUNDS):
            if comm.rank == hub:
                alone = yield from seconds_of_first(comm, outwards, early, None, (message, other), 0.0)
                first = yield from seconds_of_first(comm, outwards, early, late, (message, other), alone / 2)
                ratios.append(2 * first / alone - 2)
            elif comm.rank == early:
                for _ in range(2):
                    yield from take_part(comm, outwards, hub, message, word)
            elif comm.rank == late:
                yield from take_part(comm, outwards, hub, message, word)
        if ratios:
            found.append(min(max(statistics.median(ratios), 0.1), 1.0))
    return statistics.mean(found) if found else None


def seconds_of_first(comm, outwards: bool, early: int, late: int | None, buffers, wait: float):
    """Schedule: seconds until a message to or from ``early`` is there, if ``wait`` seconds after it one to or from
    ``late`` begins."""
    now, later, answers = np.zeros(1), np.full(1, wait), (np.zeros(1), np.zeros(1))
    begin = time.perf_counter()
    if outwards:
        first, sending = comm.Irecv(answers[0], early, TAG), [comm.Isend(buffers[0], early, TAG)]
        if late is not None:
            yield Delay(wait)
            sending += [comm.Isend(buffers[1], late, TAG), comm.Irecv(answers[1], late, TAG)]
    else:
        first, sending = comm.Irecv(buffers[0], early, TAG), [comm.Isend(now, early, TAG)]
        if late is not None:
            sending += [comm.Irecv(buffers[1], late, TAG), comm.Isend(later, late, TAG)]
    yield first
    seconds = time.perf_counter() - begin
    yield sending
    return seconds


def take_part(comm, outwards: bool, hub: int, message, word):
    """Schedule: what ``hub`` measures, at the other end."""
    if outwards:
        yield comm.Irecv(message, hub, TAG)
        yield comm.Isend(word, hub, TAG)
    else:
        yield comm.Irecv(word, hub, TAG)
        yield Delay(float(word[0]))
        yield comm.Isend(message, hub, TAG)


def find_mpiexec() -> str:
    """The ``mpiexec`` beside this Python, or else on PATH. Raises ConfigError."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None:
        raise ConfigError(
            f"calibrate: no mpiexec in {beside.parent} or on PATH, and latency and bandwidth need two ranks: start it "
            "with your cluster's launcher, such as `srun --mpi=pmix --ntasks=2 python -m grsgd calibrate`"
        )
    return found


def pairs_of_two_ranks() -> list[Pair]:
    """What two ranks that are started for it measure. Raises launch.UsageError."""
    mpiexec = find_mpiexec()
    # A launcher that has started this process has left words in its environment that are not for another launcher.
    private = ("PMI", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE", "PRTE_LAUNCHED", "HYDI_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(private)}
    for key, value in {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # two ranks on one core, if there is only one
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }.items():
        environment.setdefault(key, value)
    command = [mpiexec, "-n", "2", sys.executable, "-m", "grsgd.calibrate"]
    job = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=STARTS_AGAIN_SECONDS)
        failure = f"exit code {job.returncode}" if job.returncode else "two ranks that do not see each other"
    except subprocess.TimeoutExpired:
        output, failure = "", f"no end within {STARTS_AGAIN_SECONDS:g} s"
    finally:
        if job.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    for line in output.splitlines():
        if job.returncode == 0 and line.startswith(MARK):
            return [Pair(tuple(ranks), *numbers) for ranks, *numbers in json.loads(line.removeprefix(MARK))]
    said = next((line.strip() for line in output.splitlines() if any(c.isalpha() for c in line)), "nothing")
    raise launch.UsageError(f"calibrate: {shlex.join(command[:3])}: {failure}; it said: {said}")


def network_file(measured: Calibration, config: Config, command: str) -> str:
    """The TOML file for ``grsgd simulate --topology``. ``command``: what the user typed, for the heading."""
    latency = statistics.median(pair.latency for pair in measured.pairs)
    bandwidth = statistics.median(pair.bandwidth for pair in measured.pairs)
    medians, sigmas = zip(*measured.compute, strict=True)
    compute = ComputeSpec(
        median=float(f"{statistics.median(medians):.4g}"),
        sigma=float(f"{statistics.median(sigmas):.3g}"),
        what=f"{config.model.name} on {config.data.name}, batch size {config.data.batch_size}, {config.dtype}",
    )
    ranks = len(measured.hosts)
    between = f"between ranks i and i+1 of {ranks}" if ranks > 1 else "between two ranks"
    lines = [
        f"# Measured on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by grsgd {__version__}, {launch.library()}:",
        f"#   {command}",
        f"# {plural(ranks, 'rank')} on {places(measured.hosts)}.",
        f"# latency: half a round trip of 8 bytes {between}; bandwidth: {LARGE_BYTES // 2**20} MiB one way.",
        "# One pair at a time; medians of all pairs, which also stand for the pairs that were not measured.",
        f"bandwidth = {quoted(as_rate(bandwidth))}",
        f"latency = {quoted(as_duration(latency))}",
        *([] if measured.seniority is None else [f"seniority = {measured.seniority:.2g}"]),
        "",
        *([f"# {CROWDED}"] if measured.crowded else []),
        "[compute]  # of a training step, gradient and update, on all ranks at once",
        f"median = {compute.median!r}  # s",
        f"sigma = {compute.sigma!r}  # of its logarithm",
        f"what = {quoted(compute.what)}",
    ]
    factors = {rank: median / compute.median for rank, median in enumerate(medians)}
    slowdown = ", ".join(f"{rank} = {factor:.3g}" for rank, factor in factors.items() if differs(factor, 1.0))
    if slowdown:
        lines.append(f"slowdown = {{ {slowdown} }}  # by rank, in units of the median")
    links, ports = [], {}
    for pair in measured.pairs:
        entry = []
        if differs(pair.bandwidth, bandwidth):
            entry.append(f"bandwidth = {quoted(as_rate(pair.bandwidth))}")
            for rank in pair.ranks:
                ports[rank] = max(pair.bandwidth, ports.get(rank, bandwidth))
        if differs(pair.latency, latency):
            entry.append(f"latency = {quoted(as_duration(pair.latency))}")
        if entry:
            source, dest = pair.ranks
            links += ["[[link]]", f"from = {source}", f"to = {dest}", "both_ways = true", *entry, ""]
    if links:
        lines += ["", f"# Pairs that deviate from the medians by more than {DIFFERENT:.0%}.", *links]
    ports = {rank: fastest for rank, fastest in sorted(ports.items()) if fastest > bandwidth}
    if ports:
        lines += ["", "# A link is at most as fast as the ports of its two ranks."]
    for rank, fastest in ports.items():
        lines += ["[[port]]", f"rank = {rank}", f"bandwidth = {quoted(as_rate(fastest))}", ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def differs(value: float, median: float) -> bool:
    return abs(value - median) > DIFFERENT * median


def quoted(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False)


def plural(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")


def places(hosts: Iterable[str]) -> str:
    """How many ranks each host has, in words; of many hosts only the first ones."""
    hosts = list(hosts)
    counts = {host: hosts.count(host) for host in dict.fromkeys(hosts)}
    names = [host if count == 1 else f"{host} ({count})" for host, count in list(counts.items())[:4]]
    more = len(counts) - len(names)
    return ", ".join(names) + (f" and {more} more hosts" if more else "")


def table(measured: Calibration) -> str:
    """What was measured: medians and extremes."""
    from tabulate import tabulate

    rows = []
    for name, values, form in (
        ("latency", [pair.latency for pair in measured.pairs], as_duration),
        ("bandwidth", [pair.bandwidth for pair in measured.pairs], as_rate),
        ("compute a step", [median for median, _ in measured.compute], as_duration),
    ):
        of = "pair" if name != "compute a step" else "rank"
        row = (name, *(form(function(values)) for function in (statistics.median, min, max)))
        rows.append((*row, plural(len(values), of)))
    text = tabulate(rows, headers=("", "median", "least", "most", "of"), tablefmt="pipe", disable_numparse=True)
    return f"{text}\n{CROWDED}" if measured.crowded else text


def write(path: Path, text: str):
    """Write a file at once, or not at all."""
    temporary = path.with_name(f".grsgd-{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def main():
    """On two ranks: print what they measure."""
    mpi = launch.world()
    launch.abort_on_error(mpi)
    if mpi.size != 2:
        return
    comm = Communicator(mpi.Dup())
    pairs = Driver(mpi.rank, STARTS_AGAIN_SECONDS / 4, "inline").run(measure_pairs(comm))
    if pairs:
        print(MARK + json.dumps(pairs), flush=True)


if __name__ == "__main__":
    main()
