"""The runs of the comparison: how long gradients take, which of them are applied, and at which learning rate."""

import json
import math
from typing import NamedTuple

import numpy as np

from experiments.runner.run_spec import SIMULATED, Link, RunSpec

WORKERS = 8
RANKS = WORKERS + 1
"""The last one is the server."""
NETWORK = Link("10tbit", latency="1us", nominal=True)
"""A model travels in a hundred-thousandth of the time that a gradient takes."""
SECONDS = 0.1
"""Of a gradient, where nothing makes it slower: the median where it varies."""


class Distribution(NamedTuple):
    """How long the workers' gradients take."""

    title: str
    slowdown: tuple[float, ...] = (1.0,) * WORKERS
    """By worker, from 1."""
    sigma: float = 0.0
    """Of the logarithm of the time, which is drawn anew for each gradient; 0 is constant."""

    @property
    def compute(self) -> str:
        """Return it as ``grsgd simulate --compute`` takes it, without the slowdowns."""
        return f"lognormal:{SECONDS},{self.sigma}" if self.sigma else f"constant:{SECONDS}"

    @property
    def fixed_seconds(self) -> list[float] | None:
        """The seconds of each worker's gradient; None where they vary, of which the optimal time is not known."""
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
CONTROL = "m_sync 8"
"""The baseline by another strategy, which must not differ from it."""
SYNCHRONOUS = {
    "m_sync 2": {"strategy": "m_sync", "fastest": 2},
    "m_sync 4": {"strategy": "m_sync", "fastest": 4},
    "m_sync 7": {"strategy": "m_sync", "fastest": 7},
    BASELINE: {"strategy": "bsp"},
}
"""m-synchronous SGD; with m = 8 it is the baseline."""
ASYNCHRONOUS = {
    "asp": {"strategy": "asp"},
    "ringmaster 16": {"strategy": "ringmaster", "staleness_limit": 16},
    "rennala 8": {"strategy": "rennala", "gradients_per_update": 8},
    "rennala 4": {"strategy": "rennala", "gradients_per_update": 4},
}
"""As many methods as on the other side. By the papers R and B follow from the noise, which is not known before."""
METHODS = SYNCHRONOUS | ASYNCHRONOUS
RATES = (0.2, 0.4, 0.8, 1.6)
"""Learning rates that every method is tried with on every distribution."""
MOST_BEYOND = 3
"""How many rates beyond these, each twice or half the last one, are tried where the best is an end."""
TUNING_SEEDS = (1000, 1001)
SEEDS = (0, 1, 2, 3, 4)
"""With which all methods are compared, at the best rate."""
FINAL_SEEDS = tuple(range(100, 112))
"""With which the best of each side are compared: neither rates nor methods were chosen with them."""


class StrategyRun(NamedTuple):
    """A run of a strategy of the server's."""

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
    """Return how many gradients a method applies at once."""
    options = METHODS.get(method, {})
    alone = 1 if options.get("strategy") in ("asp", "ringmaster") else WORKERS
    return options.get("fastest") or options.get("gradients_per_update") or alone


def bound_gradients(method: str) -> int:
    """Return how many gradients' least possible time a method is held against, as ``grsgd bound`` does."""
    options = METHODS.get(method, {})
    sizes = (options.get(name) for name in ("fastest", "gradients_per_update", "staleness_limit"))
    return next(filter(None, sizes), WORKERS)


def throughput_ratio(seconds: list[float]) -> float:
    """Return by how much more gradients a second all workers compute than m-synchronous SGD applies with the best m.

    Workers take fixed times. The m fastest apply m gradients in the time of the slowest of them. The ratio is at most
    1 + 1/2 + ... + 1/n, so less than 1 + ln n: with a = max m / h_m, each 1 / h_i is at most a / i.
    """
    ordered = np.sort(seconds)
    applied = np.arange(1, ordered.size + 1) / ordered
    return float((1 / ordered).sum() / applied.max())
