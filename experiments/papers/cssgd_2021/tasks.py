"""Shared by the figures of the DNN and of the CNN: tasks, algorithms, networks and their times."""

from typing import NamedTuple

from experiments.tables.requests import EQUAL, RunRequests
from experiments.tables.run_spec import MEASURED, SIMULATED, Link
from grsgd.runs.run_file import Run

TIMED_STEPS = 3
"""Steps per rank where the time or traffic of a step is found; coded packets are many."""


class Task(NamedTuple):
    """A model on its data. benchmark: the accuracy to which the paper takes times; best_r: what it finds the best on 8
    nodes; claim: on the time that the best r saves."""

    name: str
    folder: str
    benchmark: float
    best_r: int
    claim: str
    small_seeds: int
    """Number of seeds at a small scale; with one, every other n is left out, too, because trainings are long."""

    def target(self, requests: RunRequests) -> float:
        return requests.load(f"{self.folder}/ring_allreduce").train.target_accuracy

    def seeds(self, requests: RunRequests) -> range | None:
        """Return the seeds at a small scale; None: those of the scale."""
        return range(self.small_seeds) if self.is_small(requests) else None

    def nodes(self, requests: RunRequests) -> list[int]:
        """n whose task is not at the target by chance."""
        every = 2 if self.small_seeds == 1 and self.is_small(requests) else 1
        return [n for n in requests.scale.coding_ranks[::every] if 1 / n < self.target(requests)]

    def is_small(self, requests: RunRequests) -> bool:
        return requests.scale.file == "smoke.toml" and len(requests.scale.coding_ranks) > 2


DNN = Task("DNN", "cssgd/dnn", 0.82, 3, "cssgd-best-dnn", small_seeds=2)
CNN = Task("CNN", "cssgd/cnn", 0.7, 2, "cssgd-best-cnn", small_seeds=1)


class Method(NamedTuple):
    """An algorithm. r: its redundancy; None where it has none."""

    config: str
    r: int | None = None

    def extra(self, n: int) -> tuple[str, ...]:
        """Return the overrides of a training: the task of n nodes has n classes."""
        return (f"data.only_classes={n}", *([f"algorithm.r={self.r}"] if self.r else []))

    def takes_part(self, n: int) -> bool:
        """Return whether there is anything to send: with r = n every node computes everything."""
        return self.r is None or self.r < n


UNICAST, MULTICAST, RING = Method("ssgd_unicast"), Method("ssgd"), Method("ring_allreduce")
ASGD = Method("asgd")


def coded(r: int) -> Method:
    return Method("coded", r)


def grouped(r: int) -> Method:
    return Method("grouped", r)


def grouped_direct(r: int) -> Method:
    return Method("grouped_direct", r)


class Setup(NamedTuple):
    """The network, and where its times come from. counting: which count of bytes takes time there."""

    name: str
    source: str
    counting: str
    medium: str = "switch"
    multicast: bool = False

    def link(self, requests: RunRequests) -> Link | None:
        special = self.medium != "switch" or self.multicast
        return Link(requests.scale.rate, self.medium, self.multicast) if special else None


NETWORKS = (
    "A packet to several nodes is sent once on the shared medium and by the multicasting switch; on the other switch a "
    "copy is sent to every receiver."
)
SHARED = Setup("shared medium, simulated", SIMULATED, "once", "shared")
TRUE_MULTICAST = Setup("multicasting switch, simulated", SIMULATED, "once", multicast=True)
COPIES = Setup("switch, simulated", SIMULATED, "per receiver")
TESTBED = Setup("switch, measured", MEASURED, "per receiver")


def step(requests: RunRequests, task: Task, method: Method, n: int, setup: Setup) -> float:
    """Return the seconds of a step."""
    config = f"{task.folder}/{method.config}"
    return requests.seconds_per_step(config, n, setup.source, EQUAL, method.extra(n), TIMED_STEPS, setup.link(requests))


def seconds(requests: RunRequests, task: Task, method: Method, n: int, setup: Setup) -> list[float]:
    """Return the seconds to the target accuracy, by seed."""
    config, seeds = f"{task.folder}/{method.config}", task.seeds(requests)
    if method is ASGD:  # does not multicast: its time is the same on both switches
        return requests.seconds(config, n, setup.source, EQUAL, method.extra(n), seeds)
    return requests.seconds(config, n, setup.source, EQUAL, method.extra(n), seeds, setup.link(requests), TIMED_STEPS)


def short_run(
    requests: RunRequests, task: Task, method: Method, n: int, setup: Setup, more: tuple[str, ...] = ()
) -> list[Run]:
    """Return the run that ``step`` is measured of, for what else it tells."""
    config = f"{task.folder}/{method.config}"
    return requests.short(config, n, setup.source, EQUAL, (*method.extra(n), *more), TIMED_STEPS, setup.link(requests))


def steps_to_target(requests: RunRequests, task: Task, n: int) -> list[float]:
    """Return the steps by seed; the same for all synchronous algorithms."""
    config = f"{task.folder}/ring_allreduce"
    batch = n * requests.load(config).data.batch_size
    return [samples / batch for samples in requests.samples(config, n, RING.extra(n), task.seeds(requests))]
