"""Models, algorithms, networks and runs that several tables and figures of the CSSGD paper share."""

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
"""Number of steps per rank in simulated runs that find the time or the bytes of a step.

More steps would need too many coded packets. Measured times vary from step to step, so a measured run has as many
steps as the experiment's scale (size) states.
"""
FEWER_NODES = 4
"""Number of nodes on which steps are timed at every scale, in addition to the numbers with trainings."""
CASE_NODES = 4, 8, 10
"""Numbers of nodes for which algorithms are compared; comparisons for all numbers would be too many to read."""
ASGD_RUNS = 10
"""Number of runs of ASGD over which the paper reports the mean."""
FEWER_RUNS = 3
"""Number of seeds of trainings that take long, and of controls."""
SMALL = "smoke.toml"
"""Name of the TOML file with settings of the scale (size of the experiment) that has the fewest runs."""


@dataclass(frozen=True)
class Task:
    """A model of the paper, with its data.

    benchmark: the test accuracy until which the paper measures times. best_r: the redundancy that the paper finds best
    on 8 nodes. claim: the claim on the time that the best redundancy saves. overrides: overrides of the configurations
    in the task's folder. is_long: True if trainings take so long that, except at the paper's scale, they run on 8
    nodes only. tuning_epochs: the greatest number of epochs of a training that tunes the learning rate, except at the
    paper's scale.
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
        """Return the test accuracy until which times are measured under ``conditions``, as a fraction of 1."""
        return conditions.load(self.config(RING), self.overrides).train.target_accuracy

    def tuned_with(self, conditions: Conditions) -> tuple[str, ...]:
        """Return the overrides of the trainings that tune the learning rate of this task."""
        epochs = conditions.load(self.config(RING), self.overrides).train.epochs
        is_shorter = conditions.scale.file and epochs > self.tuning_epochs
        return (*self.overrides, *([f"train.epochs={self.tuning_epochs}"] if is_shorter else []))

    def is_whole(self, conditions: Conditions) -> bool:
        """Return True if the model is trained at least to the paper's benchmark accuracy."""
        return self.target(conditions) >= self.benchmark

    def batch(self, conditions: Conditions) -> int:
        """Return the number of samples that a node trains on per step."""
        return conditions.load(self.config(RING), self.overrides).data.batch_size

    def runs(self, conditions: Conditions) -> int | None:
        """Return the number of trainings of ASGD and of the methods that are compared with ASGD.

        Returns None if the scale (size of the experiment) determines the number.
        """
        return None if conditions.scale.file == SMALL else ASGD_RUNS

    def nodes(self, conditions: Conditions) -> list[int]:
        """Return the numbers of nodes on which the task is trained.

        Except at the paper's scale, every second number is left out. Trainings on two nodes are left out, because with
        redundancy 2 no node sends anything. Numbers n of nodes are left out if guessing one of n classes already
        reaches the target accuracy.
        """
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
    """Return the variants of a task that are trained: the DNN with two kinds of output layer, or the CNN.

    In the smallest experiments, only one of the DNN's two kinds of output layer is trained. The kind of output layer
    does not affect times.
    """
    return [DNN, SIGMOID] if task is DNN and conditions.scale.file != SMALL else [task]


@dataclass(frozen=True)
class Method:
    """An algorithm with its options.

    r: its redundancy; None for an algorithm without redundancy. overrides: overrides of its configuration.
    """

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
    """Return CSSGD with every redundancy at which nodes send something: 1 to n - 1 for n nodes."""
    return [coded(r) for r in range(1, n)]


def perhaps_fastest(n: int) -> list[Method]:
    """Return CSSGD with redundancy 1, and with each redundancy r that sends fewer bytes than redundancy 1.

    A redundancy r that does not send fewer bytes than redundancy 1 computes more, and is therefore slower. With
    redundancy r, all n nodes together send n C(n-1, r) / r gradients in a step.
    """
    return [method for method in all_coded(n) if method.r == 1 or math.comb(n - 1, method.r) < method.r * (n - 1)]


def all_grouped(n: int) -> list[Method]:
    """Return the grouped scheme with every number of groups from two on, each with the least redundancy for it."""
    groups = {-(-n // r): r for r in range(n - 1, 0, -1)}
    return [grouped(r) for count, r in sorted(groups.items(), reverse=True) if count > 1]


@dataclass(frozen=True)
class Network:
    """The network that connects the nodes, and the source of its times (simulated or measured)."""

    name: str
    source: str = SIMULATED
    medium: str = "switch"

    def link(self, conditions: Conditions) -> Link | None:
        return Link(conditions.scale.rate, self.medium) if self.medium != "switch" else None

    def nodes(self, conditions: Conditions) -> list[int]:
        """Return the numbers of nodes on which steps are timed over this network."""
        if self.source == MEASURED:
            return list(conditions.scale.clock_ranks)
        return sorted({FEWER_NODES, *conditions.scale.coding_ranks} - {2})


SHARED, SWITCH = Network("shared medium", medium="shared"), Network("switch")
TESTBED = Network("switch, measured", MEASURED)
IN_SIMULATION = SHARED, SWITCH
EVERYWHERE = SHARED, SWITCH, TESTBED
NETWORKS_NOTE = (
    "A packet to several nodes is sent once on the shared medium; on the switch a copy goes to every receiver, as in "
    "MPI's broadcasts. A switch that multicasts is about as fast as that: a node receives as much as it would send."
)
SAME_STEPS = (
    "SSGD, CSSGD, the grouped scheme and ring all-reduce apply the same gradient, so they take the same number of "
    "steps to an accuracy. So a saving per step, in time or bytes, is also the saving until the accuracy. The steps "
    "are counted in the training of a single rank with a batch n times as large, which differs in the order of the "
    "samples and in rounding; times of a step come from short runs."
)
SENDS_MORE = (
    "Coded blocks cannot be added up before they are sent. So all nodes of CSSGD together send n C(n-1, r) / r "
    "gradients, if a packet counts once. SSGD adds up first, and sends n gradients by multicast or n (n-1) by unicast. "
    "A node of CSSGD computes r times as much as a node of SSGD."
)


def setting(conditions: Conditions, task: Task, method: Method, n: int, network: Network = SWITCH) -> Setting:
    """Return the setting of a task's training or timing on n nodes, whose data have n classes."""
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
    """Return the setting of one rank that trains alone with its own batch.

    The data of the single rank have as many classes as on the number of nodes for which learning rates are tuned.
    """
    return setting(conditions, task, RING, conditions.scale.tuning_ranks).but(ranks=1)


def case_nodes(nodes: list[int]) -> list[int]:
    """Return the numbers among ``nodes`` for which algorithms are compared.

    If `CASE_NODES` has none of the numbers in ``nodes``, all of ``nodes`` are returned.
    """
    return [n for n in nodes if n in CASE_NODES] or nodes


# ---- functions on the time and the bytes of a step


def steps(
    conditions: Conditions,
    task: Task,
    networks: Iterable[Network],
    methods: Callable[[int, Network], list[Method]],
    seeds: int | None = None,
) -> dict[Hashable, Need]:
    """Return the specifications of short runs of ``methods``, for all numbers of nodes of each network.

    Runs of CSSGD with more blocks than samples in a step are left out.

    seeds: number of seeds of each run; None takes the number of the experiment's scale (size).
    """
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
    """Return the number of blocks into which CSSGD divides the samples of a step: one per choice of r nodes.

    Section 3.1 of the CSSGD paper defines the blocks.
    """
    return math.comb(n, r)


def step_seconds(found: Found, *key) -> Sample:
    """Return the seconds of a step, by seed, in the runs with the key ``key``."""
    return sample.of(found[key], seconds_per_step)


def fastest(found: Found, task: Task, network: Network, methods: list[Method], n: int) -> Method:
    """Return the method among ``methods`` whose step has the least median time over the seeds."""
    methods = [method for method in methods if (task, network, method, n) in found]
    return min(methods, key=lambda method: step_seconds(found, task, network, method, n).median())


# ---- functions on the number of steps to the target accuracy


def trainings(conditions: Conditions, task: Task) -> dict[Hashable, Need]:
    """Return the specifications of the synchronous algorithms' trainings, by task and number of nodes.

    A training may stop at the target accuracy.
    """
    return {
        (task, n): Trajectories(stopping(setting(conditions, task, RING, n)), task.runs(conditions))
        for n in task.nodes(conditions)
    }


def stopping(trained: Setting) -> Setting:
    return trained.but(overrides=(*trained.overrides, *STOPS_AT_TARGET))


def steps_to_target(found: Found, task: Task, n: int) -> Sample:
    """Return the number of steps to the target accuracy, by seed, which is equal for all synchronous algorithms."""
    return to_target(found[task, n], "samples").scaled(1 / (n * task.batch(found.conditions)))


def combined(function: Callable[..., float], *samples: Sample) -> Sample:
    """Apply ``function`` to the values that ``samples`` have for each seed; return the results as a sample by seed.

    The value of a seed is None if one of ``samples`` has no value for the seed, or only a bound.
    """
    seeds = sorted(set().union(*(each.values for each in samples)))
    values = {}
    for seed in seeds:
        each = [one.exact.get(seed) for one in samples]
        values[seed] = None if None in each else function(*each)
    return Sample(values, algorithms=sample.algorithms_of(samples))


def notes(section: Section, conditions: Conditions, task: Task):
    """Write into the section how the times to the target accuracy were found, and which redundancies are left out."""
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
