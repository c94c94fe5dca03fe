"""Makes the runs on testbeds whose hosts share one medium, one after the other, as far as they are not there."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

from coding.cost import cost_in_models
from experiments.multicast.figures.plan import CPU, SMALL, STEPS, Turn, jobs
from experiments.multicast.measure import RATE, TIMEOUT, shared_medium
from experiments.papers.cssgd_2021.tasks import ASGD
from experiments.runner.batch import Training, make_each
from experiments.runner.hosts import machine
from experiments.runner.kept_runs import run_file
from experiments.runner.parallel import Unfinished
from grsgd.runs.finished import finished_run
from grsgd.runs.run_file import Run
from grsgd.units import rate

AROUND_SECONDS, START_SECONDS = 3.0, 25.0
"""About what a run takes beside its steps, and a testbed and a job until it trains."""
SCHEMES = {"ssgd": "ssgd-multicast", "coded": "coded", "grouped": "grouped-rs", "ring_allreduce": "ring"}
"""The names that `coding.cost` has for configurations, where those are others."""


def file_of(turn: Turn, folder: Path) -> Path:
    words = re.sub(r"\W+", "-", f"{turn.task.name} {turn.nodes} {turn.method.name} {turn.round}")
    spec, hosts = turn.spec(), f"a shared medium of {RATE}, {CPU:g} cores each, of {machine()}"
    return run_file(folder, words.lower(), spec.load(), spec.ranks, hosts)


def kept(turn: Turn, folder: Path) -> Run | None:
    """Return the run if it is there."""
    return finished_run(file_of(turn, folder))


def make(todo: Iterable[Turn], folder: Path, announce: Callable[[str], None]) -> Iterator[Turn]:
    """Make runs, those of a round on one number of hosts in one job; yields each when it is done.

    A run that fails is made once more, for launchers now and then fail by themselves.

    Raises TestbedError, and Unfinished where a run fails twice.
    """
    for job in jobs(todo):
        hosts, runs = job[0].hosts, [training(turn, folder) for turn in job]
        with shared_medium(hosts, CPU) as host:
            for turn, (_, error) in zip(job, make_each(host, hosts, runs, TIMEOUT, announce), strict=True):
                if error:
                    raise Unfinished(f"{turn}: {error}")
                yield turn


def training(turn: Turn, folder: Path) -> Training:
    spec = turn.spec()
    return Training(str(spec.toml), list(spec.overrides), str(file_of(turn, folder)))


# ---- how long it takes


class Forecast:
    """About how long runs take: what other rounds took, or else what their bytes take on the medium."""

    def __init__(self):
        self._took: dict[Turn, list[float]] = {}
        self._since = time.monotonic()

    def begin(self):
        """Time the runs that are made from now on."""
        self._since = time.monotonic()

    def made(self, turn: Turn):
        now = time.monotonic()
        self._took.setdefault(turn._replace(round=0), []).append(now - self._since)
        self._since = now

    def seconds(self, turn: Turn) -> float:
        took = self._took.get(turn._replace(round=0))
        return median(took) if took else expected_seconds(turn)

    def minutes(self, todo: Iterable[Turn]) -> float:
        """Return about how long it takes to make these."""
        todo = list(todo)
        return (sum(map(self.seconds, todo)) + START_SECONDS * len(jobs(todo))) / 60


def expected_seconds(turn: Turn) -> float:
    small = SMALL[turn.task]
    computing = small.compute_seconds / CPU * (turn.method.r or 1)
    return AROUND_SECONDS + STEPS * (computing + models(turn) * small.model_bytes / rate(RATE))


def models(turn: Turn) -> float:
    """Return what all nodes send in a step, in units of M; a packet to several counts once."""
    n, method = turn.nodes, turn.method
    if method == ASGD:
        return 2.0 * n
    scheme = "per-block" if method.config == "ssgd" and method.r else SCHEMES.get(method.config, "ssgd-unicast")
    return float(cost_in_models(scheme, n, method.r or 1).once)
