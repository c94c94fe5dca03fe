"""The runs of one experiment: finds the runs that exist, forecasts the missing ones, and makes them."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from experiments.runner.costs import Costs, Seconds, expected, kind
from experiments.runner.hosts import Hosts
from experiments.runner.maker import Maker
from experiments.runner.parallel import Unfinished
from experiments.runner.progress import duration, hours_of
from experiments.runner.run_spec import RunSpec
from experiments.runner.store import Store
from grsgd.runs.run_file import Run

SIMULATING = Hosts(1, 1.0)
"""Stands for this machine as the hosts of experiments that only simulate runs."""


class Planned(Protocol):
    """A run in an experiment's own terms, whose ``spec`` returns the specification for the runner."""

    def spec(self) -> RunSpec: ...


P = TypeVar("P", bound=Planned)


class KeptRuns:
    """The runs of one experiment in a folder, found by the objects with which the experiment describes them.

    workers: number of simulations at a time. expect: function from a run's specification and the cores of its host to
    expected `Seconds`, as for `Costs`. on: the hosts of measured runs. run_timeout, in_order: as for `Maker`.
    """

    def __init__(
        self,
        folder: Path,
        workers: int = 1,
        expect: Callable[[RunSpec, float], Seconds] = expected,
        on: Hosts = SIMULATING,
        run_timeout: float = 0.0,
        in_order: bool = False,
    ):
        self.store = Store(folder, on)
        self.costs = Costs(on.cpu, expect)
        self.maker = Maker(self.store, self.costs, workers, run_timeout, in_order=in_order)

    def load(self, planned: Iterable[P]) -> dict[P, Run]:
        """Return the existing runs among ``planned``; their durations improve the estimates for missing runs."""
        found = {one: run for one in planned if (run := self.store.find(one.spec())) is not None}
        for one, run in found.items():
            self.costs.learn(one.spec(), run)
        return found

    def forecast(self, planned: Collection[P], existing: Collection[P]) -> str:
        """Return a text that states the number of existing runs, and the time that the missing runs will take."""
        missing = Counter(kind(one.spec()) for one in planned if one not in existing)
        took = duration(self.hours(missing))
        return f"{len(planned)} runs, of which {len(existing)} exist; the others take about {took}"

    def hours(self, counts: Counter[RunSpec]) -> float:
        """Return the approximate hours for the given numbers of runs, by kind of run."""
        return hours_of(counts, self.maker.side_by_side, self.costs)

    def make(self, planned: Iterable[P], what: str = "runs") -> list[str]:
        """Make the runs of ``planned`` that do not exist; return the error messages of runs that failed.

        what: name of the runs in the progress line. Raises TestbedError.
        """
        self.maker.make([one.spec() for one in planned], what)
        return list(self.maker.failures)

    def make_all(self, planned: Iterable[P], what: str = "runs") -> dict[P, Run]:
        """Make the runs of ``planned`` that do not exist, and return all runs of ``planned``.

        Raises TestbedError, and Unfinished if a run failed.
        """
        planned = list(planned)
        if failures := self.make(planned, what):
            raise Unfinished(failures[0] + (f"; {len(failures) - 1} more" if len(failures) > 1 else ""))
        return self.load(planned)
