"""What the figures of the DNN and of the CNN share: tasks, algorithms, networks and their times."""

from typing import NamedTuple

from experiments.reproduce.cell import CLOCK, SIMULATED, Link
from experiments.reproduce.lab import EQUAL, Lab
from grsgd.results import Run

STEPS = 3
"""Of a rank, where the time or traffic of a step is found; coded packets are many."""


class Family(NamedTuple):
    """A model on its data. benchmark: the accuracy to which the paper takes times; best_r: what it finds the best on 8
    nodes; claim: on the time that the best r saves."""

    name: str
    folder: str
    benchmark: float
    best_r: int
    claim: str
    small_seeds: int
    """At a small scale: how many; with one, every other n is left out, too, because trainings are long."""

    def target(self, lab: Lab) -> float:
        return lab.load(f"{self.folder}/ring_allreduce").train.target_accuracy

    def seeds(self, lab: Lab) -> range | None:
        """The scale's, if it is not a small one."""
        return range(self.small_seeds) if self.is_small(lab) else None

    def nodes(self, lab: Lab) -> list[int]:
        """n whose task is not at the target by chance."""
        every = 2 if self.small_seeds == 1 and self.is_small(lab) else 1
        return [n for n in lab.scale.coding_ranks[::every] if 1 / n < self.target(lab)]

    def is_small(self, lab: Lab) -> bool:
        return lab.scale.file == "smoke.toml" and len(lab.scale.coding_ranks) > 2


DNN = Family("DNN", "cssgd/dnn", 0.82, 3, "cssgd-best-dnn", small_seeds=2)
CNN = Family("CNN", "cssgd/cnn", 0.7, 2, "cssgd-best-cnn", small_seeds=1)


class Contestant(NamedTuple):
    """An algorithm. r: its redundancy; None where it has none."""

    config: str
    r: int | None = None

    def extra(self, n: int) -> tuple[str, ...]:
        """The task of n nodes has n classes."""
        return (f"data.only_classes={n}", *([f"algorithm.r={self.r}"] if self.r else []))

    def takes_part(self, n: int) -> bool:
        """With r = n every node computes everything, and there is nothing to send."""
        return self.r is None or self.r < n


UNICAST, MULTICAST, RING = Contestant("ssgd_unicast"), Contestant("ssgd"), Contestant("ring_allreduce")
ASGD = Contestant("asgd")


def coded(r: int) -> Contestant:
    return Contestant("coded", r)


def grouped(r: int) -> Contestant:
    return Contestant("grouped", r)


def grouped_direct(r: int) -> Contestant:
    return Contestant("grouped_direct", r)


class Way(NamedTuple):
    """Where a time comes from. counting: which count of bytes takes time there."""

    name: str
    source: str
    counting: str
    medium: str = "switch"
    multicast: bool = False

    def link(self, lab: Lab) -> Link | None:
        special = self.medium != "switch" or self.multicast
        return Link(lab.scale.rate, self.medium, self.multicast) if special else None


NETWORKS = (
    "A packet to several nodes is sent once on the shared medium and by the multicasting switch; on the other switch a "
    "copy is sent to every receiver."
)
SHARED = Way("shared medium, simulated", SIMULATED, "once", "shared")
TRUE_MULTICAST = Way("multicasting switch, simulated", SIMULATED, "once", multicast=True)
COPIES = Way("switch, simulated", SIMULATED, "per receiver")
TESTBED = Way("switch, measured", CLOCK, "per receiver")


def step(lab: Lab, family: Family, who: Contestant, n: int, way: Way) -> float:
    """Seconds of a step."""
    config = f"{family.folder}/{who.config}"
    return lab.seconds_per_step(config, n, way.source, EQUAL, who.extra(n), STEPS, way.link(lab))


def seconds(lab: Lab, family: Family, who: Contestant, n: int, way: Way) -> list[float]:
    """Seconds to the target accuracy, by seed."""
    config, seeds = f"{family.folder}/{who.config}", family.seeds(lab)
    if who is ASGD:  # does not multicast: its time is the same on both switches
        return lab.seconds(config, n, way.source, EQUAL, who.extra(n), seeds)
    return lab.seconds(config, n, way.source, EQUAL, who.extra(n), seeds, way.link(lab), STEPS)


def short_run(lab: Lab, family: Family, who: Contestant, n: int, way: Way, more: tuple[str, ...] = ()) -> list[Run]:
    """The run that `step` is measured of, for what else it tells."""
    config = f"{family.folder}/{who.config}"
    return lab.short(config, n, way.source, EQUAL, (*who.extra(n), *more), STEPS, way.link(lab))


def steps_to_target(lab: Lab, family: Family, n: int) -> list[float]:
    """By seed; the same for all synchronous algorithms."""
    config = f"{family.folder}/ring_allreduce"
    batch = n * lab.load(config).data.batch_size
    return [samples / batch for samples in lab.samples(config, n, RING.extra(n), family.seeds(lab))]
