"""The points of the atlas: which method exchanges how often, over which links, with which straggler."""

import itertools
import json
from collections.abc import Iterator
from typing import NamedTuple

from experiments.runner.run_spec import MEASURED, SIMULATED, Link, RunSpec, load_config
from grsgd.config import Config

HOSTS = 4
CPU = 0.4
"""Processors of a host."""
TASKS = ("gpt", "cnn")
RATES = ("10mbit", "100mbit", "1gbit")
LATENCY = "100us"
SIGMA = 0.1
"""Of the logarithm of the seconds of a gradient, in simulated time."""
PERIODS = (1, 4, 16)
SLOWER = (1, 4)
"""How many times slower host 0 computes."""
METHODS = {
    "ring_allreduce": None,
    "local_sgd": "H",
    "diloco": "H",
    "noloco": "H",
    "decoupled": "H",
    "lasgd": "Hmin",
    "dpsgd": "period",
    "gossip": "period",
    "grsgd": "H",
}
"""The methods, and by which option each exchanges every so many steps; None: in every step."""


class AtlasRun(NamedTuple):
    """A run, a point of the atlas."""

    task: str
    method: str
    period: int
    rate: str
    slower: int
    measured: bool

    def overrides(self) -> tuple[str, ...]:
        """Return what makes the task's configuration this point's. A host of the testbed is slow by itself."""
        found = [f"algorithm.name={json.dumps(self.method)}"]
        if (option := METHODS[self.method]) is not None:
            found.append(f"algorithm.{option}={self.period}")
        if self.slower > 1 and not self.measured:
            found.append(f"stragglers.slowdown.0={float(self.slower)}")
        return tuple(found)

    def config(self) -> Config:
        return load_config(f"atlas/{self.task}", self.overrides())

    def spec(self) -> RunSpec:
        config, overrides = f"atlas/{self.task}", self.overrides()
        if self.measured:
            slow = ((0, float(self.slower)),) if self.slower > 1 else ()
            return RunSpec(config, overrides, HOSTS, MEASURED, Link(self.rate), slow)
        link, compute = Link(self.rate, latency=LATENCY, nominal=True), f"lognormal:{self.compute_seconds:g},{SIGMA}"
        return RunSpec(config, overrides, HOSTS, SIMULATED, link, compute=compute)

    @property
    def compute_seconds(self) -> float:
        """Seconds of a gradient, where it is not slower."""
        return self.config().train.compute_seconds / CPU


def periods_of(method: str) -> tuple[int, ...]:
    return (1,) if METHODS[method] is None else PERIODS


def simulated_points() -> Iterator[AtlasRun]:
    """Yield all methods, with all periods, on all links: the CNN with and without a straggler, the language model
    without, and where it is measured with one."""
    for task, method, rate, slower in itertools.product(TASKS, METHODS, RATES, SLOWER):
        for period in periods_of(method):
            point = AtlasRun(task, method, period, rate, slower, False)
            if task == "cnn" or slower == 1 or point._replace(measured=True) in measured_points():
                yield point


def measured_points() -> Iterator[AtlasRun]:
    """Yield those that are measured as well: at one period, the language model on every link, and with a straggler on
    one of them, on which it is measured with every period, too; and there the CNN, with and without a straggler."""
    link = RATES[1]
    for method in METHODS:
        middle = min(PERIODS[1], max(periods_of(method)))
        for rate in RATES:
            yield AtlasRun("gpt", method, middle, rate, 1, True)
        yield AtlasRun("gpt", method, middle, link, max(SLOWER), True)
        for period in periods_of(method):
            if period != middle:
                yield AtlasRun("gpt", method, period, link, 1, True)
        for slower in SLOWER:
            yield AtlasRun("cnn", method, middle, link, slower, True)
