"""A store of invented runs, for tests of the tables of experiments."""

from collections.abc import Callable
from types import SimpleNamespace

from experiments import papers
from experiments.runner.conditions import Conditions
from experiments.runner.hosts import EmulatedHosts
from experiments.runner.needs import Need
from experiments.runner.plan import Plan
from experiments.runner.run_spec import RunSpec
from experiments.runner.scale import SMOKE, Scale
from grsgd.runs.run_file import Run
from tests.support.runs import fake_run


def any_run(spec: RunSpec) -> Run:
    """Return an invented run with the seed of the specification ``spec``."""
    return fake_run(seed=seed_of(spec))


def seed_of(spec: RunSpec) -> int:
    return spec.load().seed


class FakeStore:
    """A store of runs. For each specification, the store has the run that ``make`` returns; None stands for a missing
    run."""

    code = "0123abcd"

    def __init__(self, make: Callable[[RunSpec], Run | None] = any_run):
        self.find = make
        self.hosts = EmulatedHosts(9, 0.2)
        self.networks = SimpleNamespace(missing=lambda spec: set())

    @property
    def emulated(self) -> bool:
        return self.hosts.emulated

    def place(self, specs: list[RunSpec]) -> str:
        return ""

    def path(self, spec: RunSpec):
        return papers.ROOT / f"{spec.name('fake')}.h5"


def plan(needs: dict[str, Need], make: Callable[[RunSpec], Run | None] = any_run, scale: Scale = SMOKE) -> Plan:
    """Return the plan of a target named ``it`` that needs the runs in ``needs``."""
    return Plan(Conditions(scale, emulated=True), FakeStore(make), {"it": needs})


def result(need: Need, make: Callable[[RunSpec], Run | None] = any_run, scale: Scale = SMOKE):
    """Return the result for the single need ``need``."""
    return plan({"need": need}, make, scale).results("it")["need"]
