"""Makes the missing runs of a command: simulated runs in parallel, and measured runs one after the other."""

import math
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

from experiments.runner import lost_signals
from experiments.runner.costs import Costs
from experiments.runner.networks import is_stated, number_of
from experiments.runner.occasions import CALIBRATIONS
from experiments.runner.on_nodes import make_on_nodes
from experiments.runner.parallel import Unfinished, make_in_parallel
from experiments.runner.progress import Progress
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY, RunSpec
from experiments.runner.store import Store
from grsgd import data
from grsgd.errors import ConfigError, DataError, RunFileError
from grsgd.units import rate


@dataclass
class Maker:
    """Makes runs, and lists the runs that failed, and the runs that were left out for lack of time.

    workers: number of simulations at a time. run_timeout: greatest number of seconds of a measured run. until: value
    of ``time.monotonic()`` before which each begun run must end by its estimate. in_order: True if runs begin in the
    given order, as for rounds in which each method has one run; False if long runs begin before short ones.
    """

    store: Store
    costs: Costs
    workers: int
    run_timeout: float
    until: float = math.inf
    in_order: bool = False
    failures: dict[str, None] = field(default_factory=dict)
    left: dict[RunSpec, None] = field(default_factory=dict)

    @property
    def side_by_side(self) -> int:
        """Return the number of simulations that all nodes together run at a time."""
        return self.workers * self.store.hosts.nodes

    def make(self, specs: Iterable[RunSpec], what: str):
        """Make the missing runs of ``specs``.

        All runs that use one calibration are made before the next calibration is made. Calibrations are made between
        runs, so that they are made at different times.

        what: name of the runs in the progress line.
        """
        specs = list(specs)
        for number in range(CALIBRATIONS):
            self._make([spec for spec in specs if find_turn(spec) == number], what)

    def _make(self, specs: list[RunSpec], what: str):
        """Make the missing runs of ``specs``, whose simulated times all use the calibration with one number."""
        lost_signals.raise_again()
        if time.monotonic() < self.until:
            self.failures |= dict.fromkeys(calibrate(specs, self.store))
            unmade = set(list_uncalibrated(specs, self.store))
            specs = [spec for spec in specs if spec not in unmade]
        elif missing := list_uncalibrated(specs, self.store):
            self.left |= dict.fromkeys(missing)
            specs = [spec for spec in specs if spec not in self.left]
        # equal runs with different specifications share a file
        specs = list({self.store.path(spec): spec for spec in specs}.values())
        missing = [spec for spec in specs if self.store.find(spec) is None]
        if not self.in_order:
            missing.sort(key=self.costs.seconds, reverse=True)
        with Progress(missing, len(specs), self.side_by_side, self.costs, what) as progress:
            self._simulate([spec for spec in missing if spec.source != MEASURED], progress)
            self._train([spec for spec in missing if spec.source == MEASURED], progress)

    def _simulate(self, specs: list[RunSpec], progress: Progress):
        begun = []
        with suppress(BrokenProcessPool):  # read_failure() reports a killed process of the pool
            in_time = progress.begin(self._in_time(specs, begun))
            spread = make_on_nodes if self.store.hosts.nodes > 1 else make_in_parallel
            for spec in spread(simulate, in_time, self.store, self.workers):
                self._made(spec, progress)
        self.failures |= {read_failure(self.store, spec): None for spec in begun if self.store.find(spec) is None}

    def _train(self, specs: list[RunSpec], progress: Progress):
        # the store has runs from a testbed, but this machine cannot make a testbed
        if self.store.emulated and not self.store.hosts.emulated:
            self.failures |= {f"{spec.words()}: there is no testbed: {self.store.hosts.why}": None for spec in specs}
            return
        by_testbed: dict = {}
        for spec in specs:
            by_testbed.setdefault((spec.link, spec.slow_hosts), {}).setdefault(spec.ranks, []).append(spec)
        for by_ranks in by_testbed.values():
            for group in by_ranks.values():
                if in_time := list(self._in_time(group, [], one_after_the_other=True)):
                    beginning = list(progress.begin(in_time))
                    with self.store.hosts.connected(in_time[0]) as mpi_host:
                        for spec, error in self.store.train(beginning, mpi_host, self.run_timeout):
                            self.failures |= {error: None} if error else {}
                            self._made(spec, progress)

    def _in_time(self, specs: list[RunSpec], begun: list, one_after_the_other: bool = False) -> Iterator[RunSpec]:
        """Yield the runs that will probably end before ``until``, and append them to ``begun``.

        All runs that will probably end after ``until`` are put into ``left``.
        """
        ahead = 0.0
        for spec in specs:
            seconds = self.costs.seconds(spec)
            if time.monotonic() + ahead + seconds > self.until:
                self.left[spec] = None
                continue
            ahead += seconds * one_after_the_other
            begun.append(spec)
            yield spec

    def _made(self, spec: RunSpec, progress: Progress):
        lost_signals.raise_again()
        if (run := self.store.find(spec)) is not None:
            self.costs.learn(spec, run)
        progress.end(spec)


def list_uncalibrated(specs: Iterable[RunSpec], store: Store) -> list[RunSpec]:
    """Return the simulated runs among ``specs`` whose calibration or other measurements are missing."""
    return [spec for spec in specs if store.networks.missing(spec)]


def find_turn(spec: RunSpec) -> int:
    """Return the number of the calibration that a run uses; 0 if the run uses no calibration."""
    return number_of(spec) if spec.source in (SIMULATED, TIMING_ONLY) and not is_stated(spec) else 0


def calibrate(specs: list[RunSpec], store: Store) -> list[str]:
    """Measure links, processors and the work of algorithms for simulated runs, as far as measurements are missing.

    Returns the reasons why measurements could not be made, without repetitions.
    """
    networks, allowed, failures = store.networks, [], {}
    for spec in list_uncalibrated(specs, store):
        try:
            networks.check_hosts(spec)
            allowed.append(spec)
        except Unfinished as error:
            failures[str(error)] = None

    def fastest_first(spec: RunSpec) -> float:
        return -rate(networks.measured(spec).link.rate)

    for _, alike in groupby(sorted(allowed, key=fastest_first), key=fastest_first):
        try:
            _calibrate_links(list_uncalibrated(alike, store), store)
        except Unfinished as error:
            failures[str(error)] = None
    return list(failures)


def _calibrate_links(left: list[RunSpec], store: Store):
    """Make the missing measurements for simulated runs whose links all have one rate.

    Raises Unfinished if a measurement fails twice.
    """
    if not left:  # the work of an algorithm may already have been measured with links of another rate
        return
    networks = store.networks
    with store.hosts.connected(networks.measured(left[0])) as mpi_host:
        if wanted := [networks.measured(spec) for spec in left if not networks.calibration(spec).exists()]:
            models = sorted({spec.load().model.name for spec in wanted})
            say(f"calibrating {', '.join(models)} with links of {wanted[0].link.rate}")
            networks.calibrate(wanted, mpi_host)
        if left := list_uncalibrated(left, store):
            say(f"measuring what {len({networks.work_name(spec) for spec in left})} algorithms take in a step")
            networks.measure_works(left, mpi_host)


def say(line: str):
    print(line, file=sys.stderr)


def simulate(spec: RunSpec, store: Store):
    """Simulate a run in a process of the pool; write the message of an error to a file next to the run's path."""
    data.keep_loaded()
    error_file = store.path(spec).with_suffix(".error")
    error_file.unlink(missing_ok=True)
    try:
        store.simulate(spec)
    except (ConfigError, DataError, RunFileError, Unfinished, RuntimeError) as error:
        error_file.write_text(str(error))


def read_failure(store: Store, spec: RunSpec) -> str:
    """Return a text with the reason why a simulation has left no run file."""
    error_file = store.path(spec).with_suffix(".error")
    why = error_file.read_text() if error_file.exists() else "its process was killed; is there enough memory?"
    return f"{error_file.stem}: {why}"
