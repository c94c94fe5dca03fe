"""The runs of the comparison, by distribution of the time per gradient, strategy of the server, and learning rate."""

import json
import math
from typing import NamedTuple

import numpy as np

from experiments.runner.run_spec import SIMULATED, Link, RunSpec

WORKERS = 8
"""Number of workers of the parameter server."""
RANKS = WORKERS + 1
"""Number of ranks: the workers, and the server as the last rank."""
NETWORK = Link("10tbit", latency="1us", nominal=True)
"""A network which sends a model in a hundred-thousandth of the time in which a worker computes a gradient."""
SECONDS = 0.1
"""Seconds in which a worker without slowdown computes a gradient.

If the seconds per gradient are random, ``SECONDS`` is their median.
"""


class Distribution(NamedTuple):
    """A distribution of the seconds in which workers compute a gradient."""

    title: str
    slowdown: tuple[float, ...] = (1.0,) * WORKERS
    """Factors by which the workers compute more slowly, in the order of the workers."""
    sigma: float = 0.0
    """Standard deviation of the logarithm of a gradient's seconds, which are drawn anew for each gradient.

    If ``sigma`` is 0, all gradients of a worker take equally long.
    """

    @property
    def compute(self) -> str:
        """Return the distribution as a value of ``grsgd simulate --compute``, without the slowdowns."""
        return f"lognormal:{SECONDS},{self.sigma}" if self.sigma else f"constant:{SECONDS}"

    @property
    def fixed_seconds(self) -> list[float] | None:
        """Return the seconds in which each worker computes a gradient.

        Returns None if these seconds are random, because the least possible time is not known for random seconds.
        """
        return None if self.sigma else [SECONDS * factor for factor in self.slowdown]


DISTRIBUTIONS = {
    "equal": Distribution("equal, constant"),
    "varied": Distribution("log-normal, sigma 0.2", sigma=0.2),
    "heavy": Distribution("log-normal, sigma 1", sigma=1.0),
    "root": Distribution("worker i: sqrt(i)", tuple(math.sqrt(i) for i in range(1, WORKERS + 1))),
    "linear": Distribution("worker i: i", tuple(float(i) for i in range(1, WORKERS + 1))),
    "slow": Distribution("one 10 times slower", (1.0,) * (WORKERS - 1) + (10.0,)),
}
BASELINE = "bsp"
"""Name of the synchronous method in which the server waits for all workers."""
CONTROL = "m_sync 8"
"""Name of the control: the baseline's algorithm as another strategy, which must give the same results."""
SYNCHRONOUS = {
    "m_sync 2": {"strategy": "m_sync", "fastest": 2},
    "m_sync 4": {"strategy": "m_sync", "fastest": 4},
    "m_sync 7": {"strategy": "m_sync", "fastest": 7},
    BASELINE: {"strategy": "bsp"},
}
"""Options of the synchronous methods, by name of the method.

The baseline waits for all workers, as m-synchronous SGD does with m = 8.
"""
ASYNCHRONOUS = {
    "asp": {"strategy": "asp"},
    "ringmaster 16": {"strategy": "ringmaster", "staleness_limit": 16},
    "rennala 8": {"strategy": "rennala", "gradients_per_update": 8},
    "rennala 4": {"strategy": "rennala", "gradients_per_update": 4},
}
"""Options of the asynchronous methods, by name of the method.

There are as many asynchronous as synchronous methods. The papers on Ringmaster and Rennala derive their parameters R
and B from the noise of the gradients, which is unknown before a training.
"""
METHODS = SYNCHRONOUS | ASYNCHRONOUS
RATES = (0.2, 0.4, 0.8, 1.6)
"""Learning rates at which every method is run on every distribution of times."""
MAX_BEYOND = 3
"""Greatest number of learning rates that are tried beyond `RATES`.

A learning rate beyond `RATES` is tried if the best rate is the least or the greatest tried one; it is half the least
rate or twice the greatest.
"""
TUNING_SEEDS = (1000, 1001)
"""Seeds of the runs that choose the learning rate of each method."""
SEEDS = (0, 1, 2, 3, 4)
"""Seeds of the runs in which all methods are compared, each at its best learning rate."""
FINAL_SEEDS = tuple(range(100, 112))
"""Seeds of the runs that compare the fastest synchronous and the fastest asynchronous method.

No learning rate and no method was chosen by runs with the seeds `FINAL_SEEDS`.
"""


class StrategyRun(NamedTuple):
    """A run of one strategy of the server on one distribution of times, with one learning rate and one seed."""

    distribution: str
    method: str
    rate: float
    seed: int

    def spec(self) -> RunSpec:
        options = {"strategy": "m_sync", "fastest": WORKERS} if self.method == CONTROL else METHODS[self.method]
        changes = {f"algorithm.{name}": value for name, value in options.items()}
        changes |= {"optimizer.lr": self.rate, "seed": self.seed}
        distribution = DISTRIBUTIONS[self.distribution]
        slowdown = enumerate(distribution.slowdown)
        changes |= {f"stragglers.slowdown.{rank}": factor for rank, factor in slowdown if factor != 1}
        overrides = tuple(f"{key}={json.dumps(value)}" for key, value in changes.items())
        return RunSpec("asynchronous/task", overrides, RANKS, SIMULATED, NETWORK, compute=distribution.compute)


def gradients_per_update(method: str) -> int:
    """Return the number of gradients that the server applies in one update of the model under ``method``."""
    options = METHODS.get(method, {})
    alone = 1 if options.get("strategy") in ("asp", "ringmaster") else WORKERS
    return options.get("fastest") or options.get("gradients_per_update") or alone


def bound_gradients(method: str) -> int:
    """Return the number of gradients whose least possible time is compared with a method's, as in ``grsgd bound``."""
    options = METHODS.get(method, {})
    sizes = (options.get(name) for name in ("fastest", "gradients_per_update", "staleness_limit"))
    return next(filter(None, sizes), WORKERS)


def throughput_ratio(seconds: list[float]) -> float:
    """Return the rate at which all workers compute gradients, divided by the rate at which the server applies them.

    ``seconds`` is the fixed time of each worker's gradient, and m is the number of workers at which the most gradients
    are applied per second. In m-synchronous SGD, the m fastest workers apply m gradients in the time that the slowest
    of these m takes for one. For n workers, the ratio of the two rates is at most 1 + 1/2 + ... + 1/n, which is less
    than 1 + ln n.
    Proof: if h are the workers' times in ascending order and a = max m / h_m, then 1 / h_i is at most a / i.
    """
    ordered = np.sort(seconds)
    applied = np.arange(1, ordered.size + 1) / ordered
    return float((1 / ordered).sum() / applied.max())
