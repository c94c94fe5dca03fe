"""The runs for figures 8 to 15 of CSSGD: the methods that they have today, on how many nodes, in which rounds.

A run that several figures need is made once.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

from experiments.multicast.measure import RATE, in_turn
from experiments.papers.cssgd_2021 import best_redundancy, over_nodes, redundancy, tasks
from experiments.papers.cssgd_2021.tasks import ASGD, CNN, DNN, MULTICAST, UNICAST, Method, Network, Task
from experiments.runner.conditions import Conditions
from experiments.runner.run_spec import MEASURED, RunSpec
from experiments.runner.scale import SMOKE

IP = Network("by IP multicast", MEASURED, "shared")
NODES = 4, 6, 8
ALLOWED_NODES = range(3, 9)
"""With more, a step of the CNN has fewer samples than CSSGD has blocks."""
CPU = 0.2
"""Cores of each host."""
STEPS = tasks.TIMED_STEPS
TESTED = 100
"""Images on which models are tested, which nothing is made of; there are 40 of each class."""
WAIT_SECONDS = 120.0
"""The most that ranks wait for each other."""
AGAIN = Method(f"{MULTICAST.name}, again", MULTICAST.config)
"""The reference once more, on other data: a control."""
OTHER_DATA = 1000
"""Added to the seed of these."""
CONDITIONS = Conditions(SMOKE, emulated=True)


class Small(NamedTuple):
    """A task made so small that a step is short enough: images half as wide and high as the paper's, for which
    the layers have about a quarter of the numbers.

    compute_seconds: of a core, for a gradient. On a host's share of it SSGD by multicast on 8 nodes then computes a
    ninth (DNN) or a quarter (CNN) of the time that its messages take of the medium, so that the paper's model has its
    least where the paper says: r (r-1) <= Tcomm / Tcalc <= r (r+1) for r = 3 and r = 2. model_bytes: about.
    """

    shape: tuple[int, int, int]
    compute_seconds: float
    model_bytes: float


SMALL = {DNN: Small((1, 14, 14), 0.0124, 0.87e6), CNN: Small((3, 16, 16), 0.0194, 0.61e6)}


class Turn(NamedTuple):
    """A run: each round has one of every method for every task and number of nodes."""

    round: int
    task: Task
    nodes: int
    method: Method

    def spec(self) -> RunSpec:
        """Return what is to be run; of ASGD on one rank more, which serves."""
        small = SMALL[self.task]
        replaced = ['data.name="synthetic"', f"data.shape={json.dumps(small.shape)}", f"data.only_test={TESTED}"]
        replaced += [f"train.compute_seconds={small.compute_seconds}", f"comm.timeout={WAIT_SECONDS}"]
        if self.method not in (UNICAST, ASGD, tasks.RING):
            replaced += ['algorithm.transport="ip-multicast"', f'algorithm.rate="{RATE}"']
        setting = tasks.setting(CONDITIONS, self.task, self.method, self.nodes, IP)
        short = CONDITIONS.short(setting.but(overrides=(*setting.overrides, *replaced)), STEPS)
        seed = self.round + OTHER_DATA * (self.method == AGAIN)
        return CONDITIONS.spec(short, seed, CONDITIONS.load(setting.config).optimizer.lr)

    @property
    def hosts(self) -> int:
        return self.nodes + (self.method == ASGD)

    def __str__(self):
        return f"{self.task.name}, {self.nodes} nodes, {self.method.name}, round {self.round + 1}"


# ---- the methods of figures


def of_time(n: int) -> list[Method]:
    return over_nodes.methods(n, IP)


def of_traffic(n: int) -> list[Method]:
    return over_nodes.traffic_methods(n, IP)


def of_redundancies(n: int) -> list[Method]:
    return redundancy.methods(n, IP)


def of_best(n: int) -> list[Method]:
    return [*best_redundancy.methods(n, IP), ASGD]


def turns(wanted: dict[Task, dict[int, list[Method]]], rounds: int) -> Iterator[Turn]:
    """Iterate over all runs, round after round. wanted: the methods, by task and number of nodes; the reference and its
    control are always among them."""
    for number in range(rounds):
        for task, by_nodes in wanted.items():
            for n, methods in by_nodes.items():
                compared = list(dict.fromkeys([MULTICAST, AGAIN, *methods]))
                yield from (Turn(number, task, n, method) for method in in_turn(compared, number))
