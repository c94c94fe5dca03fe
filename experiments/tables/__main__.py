"""The tables and figures of five papers, made from measured and simulated runs::

    python -m experiments.tables                                  # as ``make tables``: all of them
    python -m experiments.tables cssgd-load grsgd                 # as ``make table-cssgd-load table-grsgd``
    python -m experiments.tables --scale desk --hours 2           # a part; the same command makes the next part
    python -m experiments.tables --report                         # as ``make report``

Run files are stored in results/SCALE/runs. A run whose run file exists is not repeated, so the same command continues
after an interruption.
"""

import argparse
import math
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.papers import ROOT
from experiments.papers import folder as folder_of
from experiments.runner import forecast, lost_signals, records
from experiments.runner.conditions import Conditions
from experiments.runner.costs import Costs, kind
from experiments.runner.hosts import Hosts, find_hosts
from experiments.runner.learning_rates import MissingRun
from experiments.runner.maker import Maker
from experiments.runner.outcome import Outcome
from experiments.runner.parallel import Unfinished
from experiments.runner.plan import Plan
from experiments.runner.progress import duration, hours_of
from experiments.runner.run_spec import MEASURED, RunSpec
from experiments.runner.scale import SCALES
from experiments.runner.store import Store
from experiments.tables import codes, report, results_page, sequential
from experiments.tables.arguments import PROGRAM, parse_arguments
from experiments.tables.claims import read_claims
from experiments.tables.show import outcome
from experiments.tables.simulator_error import with_simulator_errors
from experiments.tables.targets import PAPERS, TARGETS, Target
from grsgd.data.fetch import fetch
from grsgd.errors import ConfigError, DataError
from grsgd.files import exclusive_lock
from grsgd.job.ending import exit_on_signals
from grsgd.testbed.hosts import TestbedError

RECORDS = ROOT / "docs" / "results"
"""Folder of the recorded runs in the repository, with a folder for each scale (size of the experiments)."""
NOT_ALL_MADE = 3
"""Exit code of the command if the hours given with ``--hours`` passed before all runs were made."""


def main() -> int:
    options = parse_arguments(__doc__.splitlines()[0])
    folder = options.results / options.scale
    if options.report or options.results_page:
        return write_page(options, folder)
    exit_on_signals()
    lost_signals.remember()
    try:
        if options.dry_run:
            return foretell(options, folder)
        with only_one(folder):
            return record(options, folder) if options.record else make_tables(options, folder)
    except (KeyboardInterrupt, SystemExit) as ended:
        print(f"{PROGRAM}: interrupted; run the same command again to make the remaining runs", file=sys.stderr)
        return ended.code if isinstance(ended, SystemExit) else 130
    except (ConfigError, DataError, TestbedError, Unfinished) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1


def write_page(options: argparse.Namespace, folder: Path) -> int:
    """Write the report, or docs/results.md, from the existing results; return the exit code of the command."""
    papers = [folder_of(paper) for paper in PAPERS]
    try:
        if options.results_page:
            print(results_page.build(options.results, papers, ROOT / "docs"))
        else:
            report.build(folder, papers, options.results / "report.html")
            print(options.results / "report.html")
    except (ValueError, OSError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def only_one(folder: Path):
    """Return a context in which no other process can make tables in ``folder``.

    A second process would disturb the runs that are timed. Raises Unfinished if another process is making tables in
    the folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_suffix(".lock")
    try:
        file = exclusive_lock(lock, timeout=0)
    except TimeoutError:
        raise Unfinished(f"another process makes tables in {folder}: wait until it has ended") from None
    except OSError as error:
        raise Unfinished(f"{lock}: {error.strerror}") from None
    with file:
        yield


def make_plans(options: argparse.Namespace, folder: Path) -> list[Plan]:
    """Return the plans of all runs that the chosen targets (tables or figures) need.

    The first plan is for the code as it is now, and missing runs are made for this plan. At a scale that uses recorded
    runs, each earlier version of the code that has made runs has a plan, too. The plan of an earlier version has the
    targets for which this version of the code has made all runs.
    """
    scale = SCALES[options.scale]
    is_joined = scale.is_joined or options.recorded
    if is_joined:
        records.unpack(RECORDS / scale.name, folder)
    store = Store(folder, find_hosts(max(scale.clock_ranks) + 1, scale.cpu), is_joined)
    others = store.other_codes() if is_joined else []
    plans = [plan_of(options, each) for each in (store, *map(store.with_code, others))]
    codes.share(plans)
    return plans


def plan_of(options: argparse.Namespace, store: Store) -> Plan:
    conditions = Conditions(SCALES[options.scale], store.emulated, tuple(options.set), options.imagenet)
    return Plan(conditions, store, {target.name: target.needs(conditions) for target in options.targets})


def foretell(options: argparse.Namespace, folder: Path) -> int:
    """Print how long the missing runs will probably take; return the exit code of the command."""
    plans = make_plans(options, folder)
    on = plans[0].store.hosts
    costs = costs_on(on)
    print(forecast.format_table(forecast.forecast_targets(plans, costs), costs, options.workers * on.nodes))
    return 0


def costs_on(on: Hosts) -> Costs:
    """Return an object that estimates durations of runs on ``on``.

    If the hosts are not emulated, each rank is assumed to have one core.
    """
    return Costs(on.cpu if on.emulated else 1.0)


def record(options: argparse.Namespace, folder: Path) -> int:
    """Pack the existing runs of all targets into docs/results, and print the size of the archives.

    If a run was made by uncommitted code, and was not recorded before, nothing is changed, and Unfinished is raised.
    """
    recorded, plans = RECORDS / options.scale, make_plans(options, folder)
    plans += second_looks(plans, TARGETS)
    runs: dict[str, set[Path]] = {}
    calibrations: dict[str, set[Path]] = {}
    made_on, made = set(), {}
    for plan in plans:
        there = {spec for target in plan.needs for spec in plan.existing_runs(target)}
        made |= {plan.store.path(spec): plan.find(spec) for spec in there}
        for target in plan.needs:
            runs.setdefault(TARGETS[target].paper, set()).update(map(plan.store.path, plan.existing_runs(target)))
        calibrations.setdefault(plan.store.code, set()).update(plan.store.networks.calibrations(there))
        made_on |= {spec.place or plan.store.hosts.place for spec in there if spec.source == MEASURED}
    codes.check_committed(made, records.names(recorded))
    records.record(recorded, {paper: files for paper, files in runs.items() if files}, calibrations, made_on)
    for path in sorted(recorded.iterdir()):
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB" if path.is_file() else path)
    return 0


# ---- functions that make tables


def make_tables(options: argparse.Namespace, folder: Path) -> int:
    """Make the missing runs, the outcomes of the targets (tables or figures) and the report; return the exit code.

    Raises ConfigError, DataError, TestbedError and Unfinished.
    """
    began = time.monotonic()
    if options.fresh:
        remove_runs(folder)
    plans = make_plans(options, folder)
    maker = Maker(
        plans[0].store,
        costs_on(plans[0].store.hosts),
        options.workers,
        SCALES[options.scale].run_timeout,
        -math.inf if options.recorded else began + 3600 * (options.hours or math.inf),
    )
    make_runs(plans, maker, piecewise=bool(options.hours))
    outcomes, missing = collect_outcomes(plans, options, folder)
    undecided = sequential.undecided_targets(outcomes) if SCALES[options.scale].has_second_look else []
    if second := second_looks(plans, undecided):
        for plan in second:
            # plans of earlier versions of the code are skipped, because only the present code can run
            if plan.store is plans[0].store:
                make_runs([plan], maker, piecewise=bool(options.hours))
        outcomes, missing = collect_outcomes([*plans, *map(with_all_runs, second)], options, folder)
    show(outcomes, folder)
    problems = list(maker.failures) + missing
    page = options.results / "report.html"
    report.build(folder, [folder_of(paper) for paper in PAPERS], page)
    for line in problems:
        print(f"{PROGRAM}: {line}", file=sys.stderr)
    print(f"{page}; {(time.monotonic() - began) / 60:.1f} minutes")
    if maker.left and not options.recorded:
        hours = hours_of(Counter(map(kind, maker.left)), maker.side_by_side, maker.costs)
        print(f"at least {len(maker.left)} runs remain, {duration(hours)}: run the same command again", file=sys.stderr)
        return NOT_ALL_MADE
    return 1 if problems else 0


def remove_runs(folder: Path):
    """Remove all runs and calibrations of a scale (size of the experiments) from ``folder``.

    Raises Unfinished if the scale has recorded runs, which would be copied into ``folder`` again.
    """
    if SCALES[folder.name].is_joined and (recorded := RECORDS / folder.name).exists():
        raise Unfinished(f"--fresh: the runs recorded in {recorded} count as made; remove that folder first")
    shutil.rmtree(folder / "runs", ignore_errors=True)
    shutil.rmtree(folder / "networks", ignore_errors=True)


def make_runs(plans: list[Plan], maker: Maker, piecewise: bool):
    """Make the runs of all targets (tables or figures) together.

    If ``piecewise`` is true, the runs of one target are made after the runs of another. If ``piecewise`` is true, the
    first targets are complete even if the time does not suffice for all targets.
    """
    found, plan = forecast.forecast_targets(plans, maker.costs), plans[0]
    print(forecast.sum_up(found.values(), maker.costs, maker.side_by_side), file=sys.stderr)
    if time.monotonic() < maker.until:
        fetch_data(spec for forecast in found.values() for spec in forecast.missing)
    for targets in [[target] for target in plan.needs] if piecewise else [list(plan.needs)]:
        what = targets[0] if piecewise else "tables and figures"
        asked: set[RunSpec] = set()
        while trials := [spec for spec in plan.trials(targets) if spec not in asked]:
            maker.make(trials, f"{what}, learning rates")
            asked |= set(trials)
        maker.make(plan.specs(targets), what)


def fetch_data(missing: Iterable[RunSpec]):
    """Download the public data sets that ``missing`` runs need and that are not on the disk. Raises DataError."""
    for name, folder in forecast.to_fetch(missing):
        fetch(name, folder, partial(print, file=sys.stderr))


def second_looks(plans: list[Plan], targets: Iterable[str]) -> list[Plan]:
    """Return plans for ``targets`` with twice as many seeds as ``plans``.

    A plan that has none of the targets is left out.
    """
    wanted, second = set(targets), []
    for plan in plans:
        conditions = replace(plan.conditions, looks=sequential.LOOKS)
        needs = {name: TARGETS[name].needs(conditions) for name in plan.needs if name in wanted}
        second += [Plan(conditions, plan.store, needs)] * bool(needs)
    return second


def with_all_runs(plan: Plan) -> Plan:
    """Return a copy of the plan with only the targets (tables or figures) whose runs all exist."""
    return Plan(plan.conditions, plan.store, {name: of for name, of in plan.needs.items() if plan.is_complete(name)})


def collect_outcomes(plans: list[Plan], options: argparse.Namespace, folder: Path) -> tuple[list[Outcome], list[str]]:
    """Return the outcomes of the targets (tables or figures) whose runs all exist.

    If several plans have a target, the last of these plans gives the outcome. The second returned value has a line for
    each target without an outcome, with the name of a missing run.
    """
    missing, outcomes = [], {}
    of_target = {target: plan for plan in plans for target in plan.needs}
    for target in options.targets:
        try:
            outcomes[target.name] = outcome(target, of_target[target.name], folder, command(target, options))
        except MissingRun as error:
            missing.append(f"{target.name}: a run is missing: {error}")
            (folder / f"{target.name}.json").unlink(missing_ok=True)
    return with_simulator_errors(outcomes, of_target), missing


def show(outcomes: list[Outcome], folder: Path):
    """Save the outcomes of targets in ``folder``, and print them as text."""
    claims = read_claims([folder_of(paper) for paper in PAPERS])
    for shown in outcomes:
        shown.save(folder)
        print(report.text(shown, claims), end="\n\n")


def command(target: Target, options: argparse.Namespace) -> str:
    """Return the shell command by which a user makes the target (table or figure)."""
    words = [f"make table-{target.name}"]
    words += [f"IMAGENET={shlex.quote(str(options.imagenet))}" if options.imagenet else f"SCALE={options.scale}"]
    return " ".join([*words, *([f"SET={shlex.quote(' '.join(options.set))}"] if options.set else [])])


if __name__ == "__main__":
    sys.exit(main())
