"""The runs for figures 8 to 15 of the CSSGD paper: methods of each figure, numbers of nodes, and rounds.

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
"""The network of the measured runs: a shared medium with IP multicast."""
NODES = 4, 6, 8
"""Numbers of nodes if the command-line option ``--nodes`` is not given."""
ALLOWED_NODES = range(3, 9)
"""Numbers of nodes that the option allows.

With more than 8 nodes, a step of the CNN would have fewer samples than CSSGD has blocks.
"""
CPU = 0.2
"""Number of cores of each host of the testbed."""
STEPS = tasks.TIMED_STEPS
TESTED = 100
"""Number of test images, which affects no result of the figures."""
WAIT_SECONDS = 120.0
"""Greatest number of seconds that a rank waits for another rank."""
AGAIN = Method(f"{MULTICAST.name}, again", MULTICAST.config)
"""The control: a repetition of the reference, SSGD by multicast, with other data."""
OTHER_DATA = 1000
"""Number added to the seed of the control, so that its data differ from the reference's."""
CONDITIONS = Conditions(SMOKE, emulated=True)


class Small(NamedTuple):
    """A task of the paper on smaller data and with a smaller model, so that a training step is short.

    The images of the reduced task are half as wide and half as high as the images in the paper. The layers of the
    reduced task's model have about a quarter of the parameters of the paper's model.

    compute_seconds: seconds in which one whole core computes a gradient. On a host, which has `CPU` cores, the ratio of
    communication to computing (Tcomm / Tcalc) of SSGD by multicast on 8 nodes is 9 (DNN) or 4 (CNN). In the paper's
    model, redundancy r is the best if r (r-1) <= Tcomm / Tcalc <= r (r+1). The best redundancy is therefore 3 (DNN) or
    2 (CNN), as the paper states. model_bytes: approximate size of the model in bytes.
    """

    shape: tuple[int, int, int]
    compute_seconds: float
    model_bytes: float


SMALL = {DNN: Small((1, 14, 14), 0.0124, 0.87e6), CNN: Small((3, 16, 16), 0.0194, 0.61e6)}


class Turn(NamedTuple):
    """A run of one method in one round.

    A round has one run of every method for every task and number of nodes.
    """

    round: int
    task: Task
    nodes: int
    method: Method

    def spec(self) -> RunSpec:
        """Return the specification of the run.

        ASGD has one rank more than nodes, for the server.
        """
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


    # ---- functions that list the methods of each figure


def of_time(n: int) -> list[Method]:
    return over_nodes.methods(n, IP)


def of_traffic(n: int) -> list[Method]:
    return over_nodes.traffic_methods(n, IP)


def of_redundancies(n: int) -> list[Method]:
    return redundancy.methods(n, IP)


def of_best(n: int) -> list[Method]:
    return [*best_redundancy.methods(n, IP), ASGD]


def turns(wanted: dict[Task, dict[int, list[Method]]], rounds: int) -> Iterator[Turn]:
    """Yield all runs, round by round.

    wanted: the methods of the figures, by task and number of nodes. The reference (SSGD by multicast) and its control
    are added to the methods.
    """
    for number in range(rounds):
        for task, by_nodes in wanted.items():
            for n, methods in by_nodes.items():
                compared = list(dict.fromkeys([MULTICAST, AGAIN, *methods]))
                yield from (Turn(number, task, n, method) for method in in_turn(compared, number))
