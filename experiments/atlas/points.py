"""The points (runs) of the atlas: methods, periods of their exchanges, link rates and stragglers."""

import itertools
import json
from collections.abc import Iterator
from typing import NamedTuple

from experiments.runner.run_spec import MEASURED, SIMULATED, Link, RunSpec, load_config
from grsgd.config import Config

HOSTS = 4
"""Number of hosts, each with one rank."""
CPU = 0.4
"""Number of cores of a host of the testbed."""
TASKS = ("gpt", "cnn")
RATES = ("10mbit", "100mbit", "1gbit")
LATENCY = "100us"
SIGMA = 0.1
"""Standard deviation of the logarithm of the seconds of a gradient, in simulated time."""
PERIODS = (1, 4, 16)
"""The periods of exchanges: numbers of steps from one exchange of models to the next."""
SLOWER = (1, 4)
"""Factors by which host 0 computes more slowly than the other hosts."""
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
"""The methods, each with the name of its option for the period of exchanges.

None stands for a method that exchanges in every step.
"""


class AtlasRun(NamedTuple):
    """A point of the atlas: one run, with its task, method, period, link rate and slowdown of host 0."""

    task: str
    method: str
    period: int
    rate: str
    slower: int
    measured: bool

    def overrides(self) -> tuple[str, ...]:
        """Return the overrides of the task's configuration.

        A slow host needs an override only in simulated time, because the testbed itself makes the host slow.
        """
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
        """Return the seconds in which a host that is not slow computes a gradient."""
        return self.config().train.compute_seconds / CPU


def periods_of(method: str) -> tuple[int, ...]:
    """Return the periods of exchanges with which ``method`` is run."""
    return (1,) if METHODS[method] is None else PERIODS


def simulated_points() -> Iterator[AtlasRun]:
    """Yield the runs in simulated time: all methods with all periods of exchanges on all links.

    The CNN is simulated with and without a straggler. The language model is simulated without a straggler, and with a
    straggler where the testbed measures the same run.
    """
    for task, method, rate, slower in itertools.product(TASKS, METHODS, RATES, SLOWER):
        for period in periods_of(method):
            point = AtlasRun(task, method, period, rate, slower, False)
            if task == "cnn" or slower == 1 or point._replace(measured=True) in measured_points():
                yield point


def measured_points() -> Iterator[AtlasRun]:
    """Yield the points (runs) of the atlas that are measured on a testbed.

    With one period of exchanges, the language model is measured on every link, and on the link ``RATES[1]`` also with
    a straggler. On the link ``RATES[1]``, the language model is measured with every period of exchanges. The CNN is
    measured on the link ``RATES[1]`` with one period of exchanges, with and without a straggler.
    """
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
