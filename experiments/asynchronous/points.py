"""The runs of the comparison: distributions of the time per gradient, strategies of the server, and learning rates."""

import json
import math
from typing import NamedTuple

import numpy as np

from experiments.runner.run_spec import SIMULATED, Link, RunSpec

WORKERS = 8
"""Number of workers of the server."""
RANKS = WORKERS + 1
"""Number of ranks; the last rank is the server."""
NETWORK = Link("10tbit", latency="1us", nominal=True)
"""A network on which a model is sent in a hundred-thousandth of the time of a gradient."""
SECONDS = 0.1
"""Seconds in which a worker without slowdown computes a gradient; the median if times are random."""


class Distribution(NamedTuple):
    """A distribution of the workers' seconds per gradient."""

    title: str
    slowdown: tuple[float, ...] = (1.0,) * WORKERS
    """Factor by which each worker's time is longer, from worker 1 on."""
    sigma: float = 0.0
    """Standard deviation of the logarithm of a gradient's time, drawn anew for each gradient; 0 for equal times."""

    @property
    def compute(self) -> str:
        """Return the distribution as a value of ``grsgd simulate --compute``, without the slowdowns."""
        return f"lognormal:{SECONDS},{self.sigma}" if self.sigma else f"constant:{SECONDS}"

    @property
    def fixed_seconds(self) -> list[float] | None:
        """Return the seconds of each worker's gradient; None if times vary, because then the optimum is unknown."""
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
"""Name of the synchronous method that waits for all workers."""
CONTROL = "m_sync 8"
"""Name of the control: the baseline by another strategy, whose results must equal the baseline's."""
SYNCHRONOUS = {
    "m_sync 2": {"strategy": "m_sync", "fastest": 2},
    "m_sync 4": {"strategy": "m_sync", "fastest": 4},
    "m_sync 7": {"strategy": "m_sync", "fastest": 7},
    BASELINE: {"strategy": "bsp"},
}
"""Options of the m-synchronous methods by name; the baseline waits for all workers, as does m = 8."""
ASYNCHRONOUS = {
    "asp": {"strategy": "asp"},
    "ringmaster 16": {"strategy": "ringmaster", "staleness_limit": 16},
    "rennala 8": {"strategy": "rennala", "gradients_per_update": 8},
    "rennala 4": {"strategy": "rennala", "gradients_per_update": 4},
}
"""Options of the asynchronous methods by name; there are as many as synchronous methods.

In the papers, the parameters R and B follow from the noise of the gradients, which is not known in advance.
"""
METHODS = SYNCHRONOUS | ASYNCHRONOUS
RATES = (0.2, 0.4, 0.8, 1.6)
"""Learning rates at which every method is run on every distribution."""
MAX_BEYOND = 3
"""Greatest number of further rates, each twice or half the last rate, if the best rate is at an end of `RATES`."""
TUNING_SEEDS = (1000, 1001)
"""Seeds with which learning rates are chosen."""
SEEDS = (0, 1, 2, 3, 4)
"""Seeds with which all methods are compared at their best rates."""
FINAL_SEEDS = tuple(range(100, 112))
"""Seeds with which the two fastest methods are compared; no rate and no method was chosen with them."""


class StrategyRun(NamedTuple):
    """A run of one strategy of the server, on one distribution of times, with one learning rate and seed."""

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
    """Return the number of gradients that a method applies in one update."""
    options = METHODS.get(method, {})
    alone = 1 if options.get("strategy") in ("asp", "ringmaster") else WORKERS
    return options.get("fastest") or options.get("gradients_per_update") or alone


def bound_gradients(method: str) -> int:
    """Return the number of gradients whose least possible time is compared with a method's, as in ``grsgd bound``."""
    options = METHODS.get(method, {})
    sizes = (options.get(name) for name in ("fastest", "gradients_per_update", "staleness_limit"))
    return next(filter(None, sizes), WORKERS)


def throughput_ratio(seconds: list[float]) -> float:
    """Return the ratio of two rates: gradients that all workers compute, and gradients that m-synchronous SGD applies.

    m is the best for ``seconds``, the fixed time of each worker. The m fastest workers apply m gradients in the time of
    the slowest of them. The ratio is at most 1 + 1/2 + ... + 1/n, hence less than 1 + ln n: with h the ordered times
    and a = max m / h_m, each 1 / h_i is at most a / i.
    """
    ordered = np.sort(seconds)
    applied = np.arange(1, ordered.size + 1) / ordered
    return float((1 / ordered).sum() / applied.max())
