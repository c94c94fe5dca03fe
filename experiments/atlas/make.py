"""Makes the runs of the atlas: in simulated time side by side, and on testbeds one after the other."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np

from experiments.atlas.analytic import step_seconds
from experiments.atlas.points import CPU, HOSTS, LATENCY, Point
from experiments.runner.batch import MpiHost, Training, make_each
from experiments.runner.hosts import machine
from experiments.runner.kept_runs import Simulation, run_file
from experiments.runner.parallel import make_in_parallel
from grsgd.runs.finished import finished_run
from grsgd.runs.run_file import Run
from grsgd.testbed.hosts import Testbed

TIMEOUT = 900
"""Seconds that a measured run may take."""
SIMULATED_SECONDS = {"gpt": 40.0, "cnn": 12.0}
"""About how long a simulation takes on one core."""
AROUND = 15.0
"""Seconds around the training of a measured run, most of them for its test values."""
START = 45.0
"""Seconds that a testbed takes to be made, and a job to start on it."""


def simulation(point: Point) -> Simulation:
    compute = f"lognormal:{point.compute_seconds:g},0.1"
    return Simulation(point.name, point.config(), HOSTS, f"{point.rate},{LATENCY}", compute)


def file_of(point: Point, folder: Path) -> Path:
    """Return the point's run file."""
    if not point.measured:
        return simulation(point).path(folder)
    hosts = f"testbed, {point.rate} links, {CPU:g} cores each, host 0 {point.slower} times slower, of {machine()}"
    return run_file(folder, point.name, point.config(), HOSTS, hosts)


def kept(point: Point, folder: Path) -> Run | None:
    """Return the point's run if it is there."""
    return finished_run(file_of(point, folder))


def hours(points: Iterable[Point], workers: int) -> float:
    """Return about how long it takes to make these."""
    simulated = measured = 0.0
    beds = set()
    for point in points:
        if not point.measured:
            simulated += SIMULATED_SECONDS[point.task]
        else:
            beds.add((point.rate, point.slower))
            steps = point.config().train.samples / point.config().data.batch_size / HOSTS
            measured += AROUND + steps * step_seconds(point)
    return (simulated / workers + measured + START * len(beds)) / 3600


def simulate_point(point: Point, folder: Path):
    """Make a run file in simulated time."""
    simulation(point).make(folder)


def simulated(points: list[Point], folder: Path, workers: int) -> Iterator[Point]:
    """Make all simulated ones; yields each when it is done."""
    yield from make_in_parallel(simulate_point, points, folder, workers)


class Interfaces:
    """The bytes that the hosts' interfaces have sent while ranks trained, run by run.

    Hosts have no limit of their processors while a job starts and while models are tested: ``without_cpu_limit`` is
    entered before and after each training.
    """

    def __init__(self, testbed: Testbed):
        self.testbed = testbed
        self.sent: list[int] = []
        """Between leaving that context and entering it again: every second one is of a training."""
        self.before: np.ndarray | None = None

    @contextmanager
    def without_cpu_limit(self):
        if self.before is not None:
            self.sent.append(int((self.testbed.counters() - self.before)[:, 0].sum()))
        with self.testbed.without_cpu_limit():
            yield
        self.before = self.testbed.counters()

    def last_training(self) -> int:
        return self.sent[-1]


def measured(points: list[Point], folder: Path, announce: Callable[[str], None]) -> Iterator[Point]:
    """Make all measured ones, those of one testbed in one job; yields each when it is done.

    A run that fails twice is announced and left out; the others of its testbed are made in another job.
    """

    def bed(point):
        return point.rate, point.slower

    for (rate, slower), group in groupby(sorted(points, key=bed), bed):
        of_bed = list(group)
        with Testbed(HOSTS, rate, CPU, {0: float(slower)}) as testbed:
            interfaces = Interfaces(testbed)
            host = MpiHost(testbed.mpiexec, interfaces.without_cpu_limit)
            runs = [Training(str(p.source), p.overrides(), str(file_of(p, folder))) for p in of_bed]
            for point, (_, error) in zip(of_bed, make_each(host, HOSTS, runs, TIMEOUT, announce), strict=True):
                if error:
                    announce(f"left out: {error}")
                    continue
                sent = {"interfaces": interfaces.last_training()}
                file_of(point, folder).with_suffix(".json").write_text(json.dumps(sent))
                yield point
