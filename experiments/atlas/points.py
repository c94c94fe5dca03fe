"""The points of the atlas: which method exchanges how often, over which links, with which straggler."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from grsgd.config import Config, load

HERE = Path(__file__).parent
HOSTS = 4
CPU = 0.4
"""Processors of a host."""
TASKS = ("gpt", "cnn")
RATES = ("10mbit", "100mbit", "1gbit")
LATENCY = "100us"
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


class Point(NamedTuple):
    """A run."""

    task: str
    method: str
    period: int
    rate: str
    slower: int
    measured: bool

    @property
    def name(self) -> str:
        """The beginning of the name of its file."""
        return "-".join(map(str, (*self[:-1], "measured" if self.measured else "simulated")))

    def overrides(self) -> list[str]:
        """Return what makes the task's configuration this point's. A host of the testbed is slow by itself."""
        found = [f"algorithm.name={json.dumps(self.method)}"]
        if (option := METHODS[self.method]) is not None:
            found.append(f"algorithm.{option}={self.period}")
        if self.slower > 1 and not self.measured:
            found.append(f"stragglers.slowdown.0={float(self.slower)}")
        return found

    @property
    def source(self) -> Path:
        """The task's configuration."""
        return HERE / f"{self.task}.toml"

    def config(self) -> Config:
        return load(self.source, self.overrides())

    @property
    def compute_seconds(self) -> float:
        """Seconds of a gradient, where it is not slower."""
        return self.config().train.compute_seconds / CPU


def periods_of(method: str) -> tuple[int, ...]:
    return (1,) if METHODS[method] is None else PERIODS


def simulated_points() -> Iterator[Point]:
    """Yield all methods, with all periods, on all links: the CNN with and without a straggler, the language model
    without, and where it is measured with one."""
    for task, method, rate, slower in itertools.product(TASKS, METHODS, RATES, SLOWER):
        for period in periods_of(method):
            point = Point(task, method, period, rate, slower, False)
            if task == "cnn" or slower == 1 or point._replace(measured=True) in measured_points():
                yield point


def measured_points() -> Iterator[Point]:
    """Yield those that are measured as well: at one period, the language model on every link, and with a straggler on
    one of them, on which it is measured with every period, too; and there the CNN, with and without a straggler."""
    link = RATES[1]
    for method in METHODS:
        middle = min(PERIODS[1], max(periods_of(method)))
        for rate in RATES:
            yield Point("gpt", method, middle, rate, 1, True)
        yield Point("gpt", method, middle, link, max(SLOWER), True)
        for period in periods_of(method):
            if period != middle:
                yield Point("gpt", method, period, link, 1, True)
        for slower in SLOWER:
            yield Point("cnn", method, middle, link, slower, True)
