"""Runs of all methods on a testbed whose hosts share one medium, and what is taken from their files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from experiments.multicast.methods import methods
from experiments.runner.batch import MpiHost, Training, make_each
from experiments.runner.parallel import Unfinished
from grsgd.runs.run_file import Run, load_run
from grsgd.testbed.hosts import Testbed

CONFIG = Path(__file__).with_name("run.toml")
RATE = "100mbit"
TIMEOUT = 300
"""Seconds that a run may take."""


class Point(NamedTuple):
    """A run of a method of so many ranks, in a round: each round has one of every method."""

    ranks: int
    title: str
    round: int


class Result(NamedTuple):
    """seconds: of a step. counted: bytes that all ranks sent in it by their own count, a multicast once, headers and
    repairs included. interfaces: bytes that the hosts' interfaces sent. repaired: bytes that were sent again by MPI.
    models: of ``interfaces`` in units of M. expected: what the formulas say, in units of M."""

    seconds: float
    counted: float
    interfaces: float
    repaired: float
    models: float
    expected: float


def measure(ranks: int, rounds: int, folder: Path) -> Iterator[tuple[Point, Result]]:
    """Make all runs on one testbed, round after round. Raises TestbedError and Unfinished."""
    compared = methods(ranks)
    todo, runs = [], []
    for number in range(rounds):
        for method in in_turn(compared, number):
            todo.append((Point(ranks, method.title, number), method))
            out = folder / f"{ranks}-{compared.index(method)}-{number}.h5"
            runs.append(Training(str(CONFIG), method.overrides(), str(out)))
    with shared_medium(ranks) as host:
        made = make_each(host, ranks, runs, TIMEOUT)
        for (point, method), (one, error) in zip(todo, made, strict=True):
            if error:
                raise Unfinished(error)
            yield point, result(load_run(one.out), method)


def in_turn(compared: Sequence, number: int) -> Sequence:
    """Return the methods in the order of a round: every second one backwards, so that a machine that slows down slows
    no method more than another."""
    return compared[:: -1 if number % 2 else 1]


@contextmanager
def shared_medium(hosts: int, cpu: float | None = None) -> Iterator[MpiHost]:
    """While inside, so many hosts share a medium. cpu: cores of each; None: no limit. Raises TestbedError."""
    with Testbed(hosts=hosts, rate=RATE, cpu=cpu, medium="shared") as testbed:
        yield MpiHost(testbed.mpiexec, testbed.without_cpu_limit)


def result(run: Run, method) -> Result:
    steps, traffic = int(run.ranks["steps"][0]), run.traffic
    ranks, size = run.attributes["ranks"], run.attributes["model_bytes"]
    # Headers are counted by receiver, those of a multicast for each; what is sent again is among them.
    headers = traffic["headers"].max(1) if method.transport == "ip-multicast" else traffic["headers"].sum(1)
    interfaces = float(traffic["interface"][:, 0].sum())
    repaired = traffic["repaired"]
    return Result(
        float(run.curve["time"][-1]) / steps,
        float((traffic["sent_once"] + headers).sum()) / steps,
        interfaces / steps,
        float(repaired[repaired == repaired].sum()) / steps,
        interfaces / steps / size,
        method.models(ranks, run.attributes["parameters"]),
    )
