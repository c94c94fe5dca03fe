"""Shared by the tables and figures of CSSGD: models, algorithms, networks, and the runs that they stand for."""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from experiments.runner import sample
from experiments.runner.conditions import Conditions
from experiments.runner.needs import STOPS_AT_TARGET, Need, Steps, Trajectories, to_target
from experiments.runner.run_spec import MEASURED, SIMULATED, Link
from experiments.runner.sample import Sample
from experiments.runner.setting import Setting
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.runs.measures import seconds_per_step

TIMED_STEPS = 3
"""Steps per rank where the time or the bytes of a step are found; coded packets are many."""
FEWER_NODES = 4
"""Nodes for which times of steps are found at every scale, besides those for which there are trainings."""
CASE_NODES = 4, 8, 10
"""Nodes whose cases are decided where all would be too many to read."""
ASGD_RUNS = 10
"""The paper's, of which it takes the mean."""
FEWER_RUNS = 3
"""Of trainings that take long, or are controls."""
SMALL = "smoke.toml"
"""The file of the scale with the fewest runs."""


@dataclass(frozen=True)
class Task:
    """A model on its data.

    benchmark: the accuracy to which the paper takes times. best_r: the redundancy that it finds the best on 8 nodes.
    claim: on the time that the best one saves. overrides: of the configurations in the folder. is_long: whether
    trainings take so long that, below the paper's scale, they are made on 8 nodes alone. tuning_epochs: the most epochs
    of a trial of a learning rate, below the paper's scale.
    """

    name: str
    folder: str
    benchmark: float
    best_r: int
    claim: str
    overrides: tuple[str, ...] = ()
    is_long: bool = False
    tuning_epochs: float = math.inf

    def target(self, conditions: Conditions) -> float:
        """Return the test accuracy to which times are taken at this scale, a fraction."""
        return conditions.load(self.config(RING), self.overrides).train.target_accuracy

    def tuned_with(self, conditions: Conditions) -> tuple[str, ...]:
        """Return the overrides of trials of learning rates."""
        epochs = conditions.load(self.config(RING), self.overrides).train.epochs
        is_shorter = conditions.scale.file and epochs > self.tuning_epochs
        return (*self.overrides, *([f"train.epochs={self.tuning_epochs}"] if is_shorter else []))

    def is_whole(self, conditions: Conditions) -> bool:
        """Return whether the model is trained to the paper's benchmark accuracy at least."""
        return self.target(conditions) >= self.benchmark

    def batch(self, conditions: Conditions) -> int:
        """Return the samples of a node in a step."""
        return conditions.load(self.config(RING), self.overrides).data.batch_size

    def runs(self, conditions: Conditions) -> int | None:
        """Return the number of trainings of ASGD, and of what it is compared with; None for the scale's."""
        return None if conditions.scale.file == SMALL else ASGD_RUNS

    def nodes(self, conditions: Conditions) -> list[int]:
        """Return the n for which there are trainings, every other one below the paper's scale: more than two, of whom
        redundancy lets no one send, and those whose task is not at the target by chance."""
        nodes = [n for n in conditions.scale.coding_ranks if n > 2 and 1 / n < self.target(conditions)]
        if self.is_long and conditions.scale.file:
            return [n for n in nodes if n == conditions.scale.tuning_ranks]
        return nodes[::-2][::-1] if conditions.scale.file else nodes

    def config(self, method: "Method") -> str:
        return f"{self.folder}/{method.config}"


DNN = Task("DNN", "cssgd/dnn", 0.82, 3, "cssgd-best-dnn")
SIGMOID = Task("DNN, sigmoid output", "cssgd/dnn", 0.82, 3, "cssgd-best-dnn", ('model.output="sigmoid"',))
CNN = Task("CNN", "cssgd/cnn", 0.7, 2, "cssgd-best-cnn", is_long=True, tuning_epochs=6.0)


def variants(conditions: Conditions, task: Task) -> list[Task]:
    """Return the DNN with both outputs, but at the small scale, or the CNN; a step takes as long with either."""
    return [DNN, SIGMOID] if task is DNN and conditions.scale.file != SMALL else [task]


@dataclass(frozen=True)
class Method:
    """An algorithm. r: its redundancy; None where it has none. overrides: of its configuration."""

    name: str
    config: str
    r: int | None = None
    overrides: tuple[str, ...] = ()


UNICAST, MULTICAST = Method("SSGD by unicast", "ssgd_unicast"), Method("SSGD by multicast", "ssgd")
RING, ASGD = Method("ring all-reduce", "ring_allreduce"), Method("ASGD", "asgd")
ALONE = "one rank alone"


def coded(r: int) -> Method:
    return Method(f"CSSGD, r = {r}", "coded", r)


def grouped(r: int) -> Method:
    return Method(f"grouped, r = {r}", "grouped", r)


def all_coded(n: int) -> list[Method]:
    """Return CSSGD with every redundancy with which something is sent."""
    return [coded(r) for r in range(1, n)]


def perhaps_fastest(n: int) -> list[Method]:
    """Return CSSGD with every redundancy that may be the fastest: r = 1, and each r with fewer bytes than r = 1.

    Any other r computes more than r = 1, and sends no less. All nodes together send n C(n-1, r) / r gradients.
    """
    return [method for method in all_coded(n) if method.r == 1 or math.comb(n - 1, method.r) < method.r * (n - 1)]


def all_grouped(n: int) -> list[Method]:
    """Return the grouped scheme with every number of groups, from two on, by its least redundancy."""
    groups = {-(-n // r): r for r in range(n - 1, 0, -1)}
    return [grouped(r) for count, r in sorted(groups.items(), reverse=True) if count > 1]


@dataclass(frozen=True)
class Network:
    """The network that joins the nodes, and where its times come from."""

    name: str
    source: str = SIMULATED
    medium: str = "switch"

    def link(self, conditions: Conditions) -> Link | None:
        return Link(conditions.scale.rate, self.medium) if self.medium != "switch" else None

    def nodes(self, conditions: Conditions) -> list[int]:
        """Return the n for which there are times of steps."""
        if self.source == MEASURED:
            return list(conditions.scale.clock_ranks)
        return sorted({FEWER_NODES, *conditions.scale.coding_ranks} - {2})


SHARED, SWITCH = Network("shared medium", medium="shared"), Network("switch")
TESTBED = Network("switch, by the clock", MEASURED)
IN_SIMULATION = SHARED, SWITCH
EVERYWHERE = SHARED, SWITCH, TESTBED
NETWORKS_NOTE = (
    "A packet to several nodes is sent once on the shared medium; on the switch a copy goes to every receiver, as in "
    "MPI's broadcasts. A switch that multicasts is about as fast as that: a node receives as much as it would send."
)
SAME_STEPS = (
    "SSGD, CSSGD, the grouped scheme and ring all-reduce apply the same gradient, so they take the same steps to an "
    "accuracy, and what one saves over another in time or bytes is what it saves in a step. The steps are those of a "
    "single rank with a batch n times as large, which differs in the order of the samples and in rounding; times of "
    "a step are those of short runs."
)
SENDS_MORE = (
    "Coded blocks cannot be added up before they are sent: all nodes together send n C(n-1, r) / r gradients, once, "
    "SSGD by multicast, which adds up first, n, and by unicast n (n-1); a node computes r times as much."
)


def setting(conditions: Conditions, task: Task, method: Method, n: int, network: Network = SWITCH) -> Setting:
    """Return the training of a task on n nodes, which has n classes."""
    redundancy = (f"algorithm.r={method.r}",) if method.r else ()
    return Setting(
        task.config(method),
        n,
        network.source,
        overrides=(*task.overrides, f"data.only_classes={n}", *redundancy, *method.overrides),
        link=network.link(conditions),
        tuned_with=task.tuned_with(conditions),
    )


def alone(conditions: Conditions, task: Task) -> Setting:
    """Return the training of one rank, with its own batch, on the task of the nodes that are tuned on."""
    return setting(conditions, task, RING, conditions.scale.tuning_ranks).but(ranks=1)


def case_nodes(nodes: list[int]) -> list[int]:
    """Return the n whose cases are decided."""
    return [n for n in nodes if n in CASE_NODES] or nodes


# ---- times and bytes of a step


def steps(
    conditions: Conditions,
    task: Task,
    networks: Iterable[Network],
    methods: Callable[[int, Network], list[Method]],
    seeds: int | None = None,
) -> dict[Hashable, Need]:
    """Return the short runs of these methods, for all n of each network, as far as a step has a sample for each block.
    seeds: None for as many as the scale has."""
    batch = task.batch(conditions)
    return {
        (task, network, method, n): Steps(
            setting(conditions, task, method, n, network), seeds, None if network.source == MEASURED else TIMED_STEPS
        )
        for network in networks
        for n in network.nodes(conditions)
        for method in methods(n, network)
        if method.config != "coded" or blocks(n, method.r) <= n * batch
    }


def blocks(n: int, r: int) -> int:
    """Return into how many blocks CSSGD cuts the samples of a step (section 3.1): one for every r of n nodes."""
    return math.comb(n, r)


def step_seconds(found: Found, *key) -> Sample:
    """Return the seconds of a step, by seed."""
    return sample.of(found[key], seconds_per_step)


def fastest(found: Found, task: Task, network: Network, methods: list[Method], n: int) -> Method:
    """Return the method whose step takes the least time, by medians, of those that were timed."""
    methods = [method for method in methods if (task, network, method, n) in found]
    return min(methods, key=lambda method: step_seconds(found, task, network, method, n).median())


# ---- steps to the target accuracy


def trainings(conditions: Conditions, task: Task) -> dict[Hashable, Need]:
    """Return the trainings of the synchronous algorithms, by task and n, which may stop at the target."""
    return {
        (task, n): Trajectories(stopping(setting(conditions, task, RING, n)), task.runs(conditions))
        for n in task.nodes(conditions)
    }


def stopping(trained: Setting) -> Setting:
    return trained.but(overrides=(*trained.overrides, *STOPS_AT_TARGET))


def steps_to_target(found: Found, task: Task, n: int) -> Sample:
    """Return the steps of any synchronous algorithm to the target accuracy, by seed."""
    return to_target(found[task, n], "samples").scaled(1 / (n * task.batch(found.conditions)))


def combined(function: Callable[..., float], *samples: Sample) -> Sample:
    """Return the function of the values of each seed that all samples know, bounds excepted; else None."""
    seeds = sorted(set().union(*(each.values for each in samples)))
    values = {}
    for seed in seeds:
        each = [one.exact.get(seed) for one in samples]
        values[seed] = None if None in each else function(*each)
    return Sample(values)


def notes(section: Section, conditions: Conditions, task: Task):
    """Write what is to be known of times to the target accuracy."""
    batch = task.batch(conditions)
    for n in task.nodes(conditions):
        left_out = [r for r in range(1, n) if blocks(n, r) > n * batch]
        if left_out:
            section.note(
                f"{task.name} on {n} nodes without r = {', '.join(map(str, left_out))}: CSSGD would cut the samples of "
                f"a step, {n * batch}, into up to {max(blocks(n, r) for r in left_out)} blocks."
            )
    section.note(
        f"{task.name}: n nodes train on the first n classes, to a test accuracy of {task.target(conditions):.0%}; "
        f"the paper's benchmark is {task.benchmark:.0%}. {SAME_STEPS} {NETWORKS_NOTE}"
    )
