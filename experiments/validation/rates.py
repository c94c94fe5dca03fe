"""Checks that compare a testbed with its specification: the rates of its links, and the speeds of its slow hosts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from grsgd.mpi_environment import job_environment
from grsgd.simulator.network import network
from grsgd.testbed.hosts import Testbed

HERE = Path(__file__).parent
MIB = 1024 * 1024
RATE = "100mbit"
BYTES_PER_SECOND = 100e6 / 8
MIN_SHARE = {MIB // 4: 0.75, 4 * MIB: 0.85, 16 * MIB: 0.90}
"""Least fraction of the links' rate that the fastest of eight ring all-reduces must reach, by bytes of the array."""
KEPT = "testbed.json"
"""Name of the JSON file in which the last checks are stored."""
SECONDS = 300.0
"""Greatest number of seconds of one measurement.

The longest measurement, `grsgd calibrate`, takes a hundred seconds.
"""
SPIN = """
import sys, time
sum(i * i for i in range(300_000))
begin, end = time.process_time(), time.perf_counter() + 5
while time.perf_counter() < end:
    sum(i * i for i in range(300_000))
print(time.process_time() - begin)
"""
"""Program that computes for five seconds, and prints how many processor seconds it has had."""


class Check(NamedTuple):
    """A measured value divided by its specified value, with the limits between which the ratio should be."""

    what: str
    found: float
    least: float
    most: float

    @property
    def holds(self) -> bool:
        return self.least <= self.found <= self.most


class Share(NamedTuple):
    """The fraction of the links' rate that ring all-reduces reach with their payload: on average, and at best.

    A link never carries more than its rate, whatever other programs the machine runs. The fraction that the fastest
    all-reduce reaches therefore shows the rate of the link itself.
    """

    mean: float
    best: float


def shares_of_the_wire(testbed: Testbed, sizes, links: int, seconds: float = SECONDS) -> dict[int, Share]:
    """Return the fractions of the rate `RATE` that ring all-reduces reach on ``links`` links, by bytes of the array.

    Raises subprocess.CalledProcessError if the measurement fails, and TimeoutExpired after ``seconds``.
    """
    command = testbed.mpiexec(["-n", testbed.count, sys.executable, HERE / "ring.py", *sizes])
    found = {}
    for size, times in json.loads(output(command, seconds)).items():
        ideal = 2 * (testbed.count - 1) * int(size) / links / BYTES_PER_SECOND
        found[int(size)] = Share(*(ideal / each for each in times))
    return found


def output(command: list, seconds: float) -> str:
    return subprocess.run(
        command, env=job_environment(), stdout=subprocess.PIPE, text=True, timeout=seconds, check=True
    ).stdout


def spin(testbed: Testbed, seconds: float = 60) -> list[float]:
    """Let all hosts compute at once; return the processor seconds that each host has had.

    The hosts compute for so long that the limits of their processors have an even effect. Only the processor time of a
    host counts, and not how much the host computes in this time. The amount of computing would mislead, because cores
    that are threads of one physical core slow each other down.

    Raises subprocess.CalledProcessError if a host's program fails, and TimeoutExpired after ``seconds``.
    """
    jobs = [
        subprocess.Popen(testbed.enter(host, [sys.executable, "-c", SPIN]), stdout=subprocess.PIPE, text=True)
        for host in testbed.hosts
    ]
    found = []
    for job in jobs:
        printed, _ = job.communicate(timeout=seconds)
        if job.returncode:
            raise subprocess.CalledProcessError(job.returncode, job.args)
        found.append(float(printed))
    return found


def save_checks(folder: Path, checks: list[Check]):
    """Write the checks to a JSON file in ``folder``, for `load_checks`."""
    (folder / KEPT).write_text(json.dumps(checks))


def load_checks(folder: Path) -> list[Check]:
    """Return the checks stored in ``folder``; an empty list if no checks are stored."""
    file = folder / KEPT
    return [Check(*fields) for fields in json.loads(file.read_text())] if file.exists() else []


def measure_checks(folder: Path, config: Path) -> Iterator[Check]:
    """Measure a testbed; yield checks of the rates that its links reach, and of the processor time that slow hosts get.

    ``config``: configuration file for ``grsgd calibrate``. Raises TestbedError if a testbed cannot be made on this
    machine.
    """
    with Testbed(hosts=4, rate=RATE) as testbed:
        for size, share in shares_of_the_wire(testbed, MIN_SHARE, links=4).items():
            yield Check(f"links of {RATE}, ring all-reduce of {size / MIB:g} MiB", share.best, MIN_SHARE[size], 1.05)
        arguments = ["-m", "grsgd", "calibrate", config, "--out", folder / "rates.toml"]
        output(testbed.mpiexec(["-n", 4, sys.executable, *arguments]), SECONDS)
        found = network(str(folder / "rates.toml"))
        yield Check(f"links of {RATE}, calibrated", found.bandwidth / BYTES_PER_SECOND, 0.85, 1.02)
    with Testbed(hosts=4, rate=RATE, medium="shared") as testbed:
        share = shares_of_the_wire(testbed, [MIB], links=1)[MIB]
        # the mean over all all-reduces, because a single one seems faster than the medium if the queue takes its last
        # packets
        yield Check(f"shared medium of {RATE}, ring all-reduces of 1 MiB", share.mean, 0.75, 1.05)
    with Testbed(hosts=2, rate=RATE, mtu=1500) as testbed:
        share = shares_of_the_wire(testbed, [4 * MIB], links=2)[4 * MIB]
        yield Check("frames of 1500 bytes, ring all-reduce of 4 MiB", share.best, 0.75, 0.97)
    for factor in (2.0, 4.0):
        with Testbed(hosts=2, cpu=0.6, slow={1: factor}) as testbed:
            fast, slow = spin(testbed)
            yield Check(f"host {factor:g} times slower, 0.6 cores", fast / slow / factor, 0.9, 1.1)
