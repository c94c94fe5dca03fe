"""Runs of all methods on a testbed with a shared medium, and functions that compute their numbers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from experiments.multicast.methods import AGAIN, Method, methods
from experiments.runner.batch import MpiHost
from experiments.runner.hosts import EmulatedHosts, describe_machine
from experiments.runner.run_spec import MEASURED, Link, RunSpec
from grsgd.comm.driver import available_cores
from grsgd.runs.run_file import Run
from grsgd.testbed.hosts import Testbed

RATE = "100mbit"
MEDIUM = Link(RATE, "shared")
TIMEOUT = 300
"""Greatest number of seconds that a measured run may take."""
OTHER_DATA = 1000
"""Number added to the seed of the control, so that its data differ from the reference's."""


class MediumRun(NamedTuple):
    """A run of one method on ``ranks`` ranks in one round; each round has one run of every method."""

    ranks: int
    title: str
    round: int

    @property
    def method(self) -> Method:
        return next(method for method in methods(self.ranks) if method.title == self.title)

    def spec(self) -> RunSpec:
        seed = self.round + OTHER_DATA * (self.title == AGAIN)
        return RunSpec("multicast/run", (*self.method.overrides(), f"seed={seed}"), self.ranks, MEASURED, MEDIUM)


class MediumNumbers(NamedTuple):
    """The numbers of a run, as means per step.

    seconds: seconds of a step. counted: bytes that all ranks sent by grsgd's count, with headers and repairs; a packet
    to several receivers counts once. interfaces: bytes that the hosts' network interfaces sent. repaired: bytes that
    were sent again after a loss. models: ``interfaces`` divided by the bytes of a model. expected: bytes by the
    formulas, divided by the bytes of a model.
    """

    seconds: float
    counted: float
    interfaces: float
    repaired: float
    models: float
    expected: float


def plan_runs(ranks: int, rounds: int) -> Iterator[MediumRun]:
    """Yield all runs on ``ranks`` ranks, round by round."""
    for number in range(rounds):
        yield from (MediumRun(ranks, method.title, number) for method in in_turn(methods(ranks), number))


def in_turn(compared: Sequence, number: int) -> Sequence:
    """Return the methods ``compared`` in the order of round ``number``; every second round has the reverse order.

    The reversal of every second round keeps a machine that becomes slower with time from slowing one method more than
    another.
    """
    return compared[:: -1 if number % 2 else 1]


class SharedMedium(EmulatedHosts):
    """Emulated hosts for a run, one per rank, all on one shared medium.

    cpu: number of cores of each host; None for no limit.
    """

    def __init__(self, cpu: float | None = None):
        super().__init__(0, cpu or available_cores())
        self.limit = cpu
        self.place = f"hosts that share a medium of {{links}}, {self.cpu:g} cores each, of {describe_machine()}"

    @contextmanager
    def connected(self, spec: RunSpec) -> Iterator[MpiHost]:
        with Testbed(hosts=spec.ranks, rate=spec.link.rate, cpu=self.limit, medium="shared") as testbed:
            yield MpiHost(testbed.mpiexec, testbed.without_cpu_limit)


def numbers_of(run: Run, method: Method) -> MediumNumbers:
    steps, traffic = int(run.ranks["steps"][0]), run.traffic
    ranks, size = run.attributes["ranks"], run.attributes["model_bytes"]
    # The headers include repairs; an IP multicast's headers are counted once, even if it has several receivers.
    headers = traffic["headers"].max(1) if method.transport == "ip-multicast" else traffic["headers"].sum(1)
    interfaces = float(traffic["interface"][:, 0].sum())
    repaired = traffic["repaired"]
    return MediumNumbers(
        float(run.curve["time"][-1]) / steps,
        float((traffic["sent_once"] + headers).sum()) / steps,
        interfaces / steps,
        float(repaired[repaired == repaired].sum()) / steps,
        interfaces / steps / size,
        method.models(ranks, run.attributes["parameters"]),
    )
