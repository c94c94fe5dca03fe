"""The tables and figures of five papers, from runs by the clock and in simulated time::

    python -m experiments.tables                                  # what ``make tables`` does: all of them
    python -m experiments.tables cssgd-load grsgd                 # what ``make table-cssgd-load table-grsgd`` does
    python -m experiments.tables --report                         # what ``make report`` does

Runs lie in results/SCALE/runs; those that are there are not made again, so that what was interrupted goes on.
"""

import argparse
import os
import shlex
import shutil
import sys
import time
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

from tqdm import tqdm

from experiments.cache import Unfinished, make_in_parallel
from experiments.papers import folder as folder_of
from experiments.tables import report
from experiments.tables.numbers import part_of_a_step
from experiments.tables.outcome import Figure, Outcome
from experiments.tables.requests import MissingRun, RunRequests
from experiments.tables.run_spec import MEASURED, SIMULATED, TIMING_ONLY, UNIT_STEPS, RunSpec
from experiments.tables.scale import IMAGENET, SCALES
from experiments.tables.section import Section
from experiments.tables.sources import Store, hosts, machine
from experiments.tables.targets import PAPERS, Target, chosen
from grsgd.errors import ConfigError, DataError, RunFileError
from grsgd.files import exclusive_lock
from grsgd.job.ending import exit_on_signals
from grsgd.testbed.hosts import TestbedError
from grsgd.training.description import commit
from grsgd.units import rate

PROGRAM = "python -m experiments.tables"
MIN_STEP_CPU_SECONDS = 0.02
"""Seconds of the processor's time from which on a testbed slows computations evenly (docs/testbed.md)."""
GUESSED_SECONDS = {MEASURED: 10.0, SIMULATED: 8.0, UNIT_STEPS: 4.0, TIMING_ONLY: 2.0}
"""Guesses of the seconds of a run, before one was made."""


def parse_arguments() -> argparse.Namespace:
    """Also sets ``targets``; ends the program where the arguments are wrong."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a table or figure, or a paper, for all of its (default: all)"
    )
    parser.add_argument(
        "--scale", choices=sorted(SCALES), default="smoke", help="sizes of the trainings (default: %(default)s)"
    )
    parser.add_argument(
        "--imagenet", type=Path, metavar="FOLDER", help="train on the ImageNet in this folder; sets --scale imagenet"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a value in every training"
    )
    parser.add_argument("--fresh", action="store_true", help="remove all runs of the scale first")
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="number of parallel simulations (default: %(default)s)",
    )
    parser.add_argument("--report", action="store_true", help="only write the report, from the results that are there")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder for runs and reports (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.imagenet:
        options.scale = IMAGENET.name
    try:
        options.targets = [] if options.report else chosen(options.names)
    except ValueError as error:
        parser.error(str(error))
    if own := [setting for setting in options.set if setting.partition("=")[0].strip() in ("seed", "optimizer.lr")]:
        parser.error(f"--set {own[0]}: seeds and learning rates are the targets' own")
    if options.fresh and options.names:
        parser.error("--fresh removes all runs of the scale: give no names")
    return options


def main() -> int:
    options = parse_arguments()
    folder, page = options.results / options.scale, options.results / "report.html"
    papers = [folder_of(paper) for paper in PAPERS]
    if options.report:
        try:
            report.build(folder, papers, page)
        except (ValueError, OSError) as error:
            print(f"{PROGRAM}: error: {error}", file=sys.stderr)
            return 1
        print(page)
        return 0
    began = time.perf_counter()
    exit_on_signals()
    try:
        with only_one(folder):
            if options.fresh:
                shutil.rmtree(folder / "runs", ignore_errors=True)
                shutil.rmtree(folder / "networks", ignore_errors=True)
            errors = make_all(options.targets, options, folder)
            report.build(folder, papers, page)
    except (KeyboardInterrupt, SystemExit) as ended:
        print(f"{PROGRAM}: interrupted; the same command goes on with what is left", file=sys.stderr)
        return ended.code if isinstance(ended, SystemExit) else 130
    except (ConfigError, DataError, TestbedError, Unfinished) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    for line in errors:
        print(f"{PROGRAM}: error: {line}", file=sys.stderr)
    print(f"{page}; {(time.perf_counter() - began) / 60:.1f} minutes")
    return 1 if errors else 0


@contextmanager
def only_one(folder: Path):
    """Keep other processes out: runs that share the machine would be timed. Raises Unfinished if one is at work."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_suffix(".lock")
    try:
        file = exclusive_lock(lock, timeout=0)
    except TimeoutError:
        raise Unfinished(f"tables are being made in {folder} already: one after the other") from None
    except OSError as error:
        raise Unfinished(f"{lock}: {error.strerror}") from None
    with file:
        yield


def make_all(targets: list[Target], options: argparse.Namespace, folder: Path) -> list[str]:
    """Make the runs, print and save the outcomes; return what went wrong, a line each.

    Raises ConfigError, DataError, TestbedError and Unfinished.
    """
    scale = SCALES[options.scale]
    store = Store(folder, hosts(max(scale.clock_ranks) + 1, scale.cpu))
    requests = RunRequests(scale, store, tuple(options.set), options.imagenet)
    wrong: dict[str, None] = {}
    # First the grid of learning rates, then what lies beside its ends.
    for requests.stage in ("tuning", "tuning", "asking"):
        requests.asked = {}
        for target in targets:
            requests.begin()
            with suppress(MissingRun):  # told when it is shown
                target.make(requests, Section(target.name, None))
        wrong |= dict.fromkeys(make(list(requests.asked), store, options.workers, scale.run_timeout, requests.stage))
    requests.stage = "showing"
    outcomes: dict[str, Outcome] = {}
    errors: dict[str, list[float]] = {}
    for target in targets:
        try:
            outcomes[target.name] = show(target, requests, folder, options)
        except MissingRun as error:
            wrong[f"{target.name}: a run is missing: {error}"] = None
            (folder / f"{target.name}.json").unlink(missing_ok=True)
            continue
        errors[target.name] = requests.simulator_errors()
    claims = report.read_claims([folder_of(paper) for paper in PAPERS])
    for name, outcome in outcomes.items():
        others = [error for other, some in errors.items() if outcomes[other].paper == outcome.paper for error in some]
        outcome = replace(
            outcome, figures=[with_error(figure, errors[name], others, outcome.runs) for figure in outcome.figures]
        )
        outcome.save(folder)
        print(report.text(outcome, claims), end="\n\n")
    return list(wrong)


# ---- making runs


def make(specs: list[RunSpec], store: Store, workers: int, run_timeout: float, stage: str) -> list[str]:
    """Make the runs that are not there; return what went wrong. Raises Unfinished if there can be no calibration.

    run_timeout: seconds of a run by the clock.
    """
    calibrate(specs, store)
    specs = list({store.path(spec): spec for spec in specs}.values())  # other words may say the same
    missing = [spec for spec in specs if store.find(spec) is None]
    missing.sort(
        key=lambda spec: (spec.source, spec.ranks), reverse=True
    )  # long ones first, and those by the clock last
    simulated = [spec for spec in missing if spec.source != MEASURED]
    failures = []
    with Progress(missing, len(specs), workers, stage) as progress:
        with suppress(BrokenProcessPool):  # told below
            for spec in make_in_parallel(simulate, simulated, store, workers):
                progress.made(spec)
        failures += [failure(store, spec) for spec in simulated if store.find(spec) is None]
        by_link: dict = {}
        for spec in (spec for spec in missing if spec.source == MEASURED):
            by_link.setdefault(spec.link, {}).setdefault(spec.ranks, []).append(spec)
        for link, by_ranks in by_link.items():
            with store.hosts.connected(link) as mpi_host:
                for group in by_ranks.values():
                    for spec, error in store.train(group, mpi_host, run_timeout):
                        progress.made(spec)
                        failures += [error] if error else []
    return failures


def calibrate(specs: list[RunSpec], store: Store):
    """Measure computing and links for the simulations; what was measured before is kept. Raises Unfinished."""
    needed = {store.calibration(spec): spec for spec in specs if spec.source in (SIMULATED, TIMING_ONLY)}
    missing = [spec for spec in needed.values() if not store.calibrated(spec)]
    for links in sorted({spec.link.rate for spec in missing}, key=rate, reverse=True):
        with store.hosts.connected(missing[0].link._replace(rate=links)) as mpi_host:
            for spec in (spec for spec in missing if spec.link.rate == links):
                print(f"calibrating {spec.load().model.name} with links of {links}", file=sys.stderr)
                store.calibrate(spec, mpi_host)


def simulate(spec: RunSpec, store: Store):
    """Simulate, in a process of its own; what goes wrong is written beside where the run would be."""
    error_file = store.path(spec).with_suffix(".error")
    error_file.unlink(missing_ok=True)
    try:
        store.simulate(spec)
    except (ConfigError, DataError, RunFileError, Unfinished, RuntimeError) as error:
        error_file.write_text(str(error))


def failure(store: Store, spec: RunSpec) -> str:
    error_file = store.path(spec).with_suffix(".error")
    return f"{error_file.stem}: {error_file.read_text() if error_file.exists() else 'its process has ended'}"


class Progress:
    """A line with how many runs of the stage are left and how long they will take, by how long the others took."""

    def __init__(self, specs: list[RunSpec], of: int, workers: int, stage: str):
        self.left = Counter(spec.source for spec in specs)
        self.workers = dict.fromkeys((SIMULATED, UNIT_STEPS, TIMING_ONLY), workers) | {MEASURED: 1}
        self.done, self.spent, self.last = Counter(), Counter(), time.monotonic()
        self.bar = tqdm(
            total=of,
            initial=of - len(specs),
            desc="learning rates" if stage == "tuning" else "tables and figures",
            bar_format="{desc}: {n_fmt} of {total_fmt} runs |{bar:24}| {elapsed}{postfix}",
            disable=not specs,
            mininterval=0.2 if sys.stderr.isatty() else 20,
        )

    def __enter__(self):
        self.say()
        return self

    def __exit__(self, *exception):
        self.bar.close()

    def made(self, spec: RunSpec):
        now = time.monotonic()
        self.left[spec.source] -= 1
        self.done[spec.source] += 1
        self.spent[spec.source] += now - self.last
        self.last = now
        self.bar.update()
        self.say()

    def say(self):
        seconds = sum(count * self.seconds(source) for source, count in self.left.items())
        self.bar.set_postfix_str(f"{self.left.total()} left, about {seconds / 60:.0f} min", refresh=False)

    def seconds(self, source: str) -> float:
        """Return the seconds of one run, with as many side by side as there are workers."""
        if self.done[source]:
            return self.spent[source] / self.done[source]
        return GUESSED_SECONDS[source] / self.workers[source]


# ---- showing results


def show(target: Target, requests: RunRequests, folder: Path, options: argparse.Namespace) -> Outcome:
    """Raises MissingRun."""
    requests.begin()
    section = Section(target.name, folder)
    target.make(requests, section)
    if requests.tuned:
        section.table(*learning_rates(requests))
    runs = [(spec, requests.store.path(spec), requests.found(spec)) for spec in requests.used]
    commits = sorted({str(run.attributes.get("commit")) for _, _, run in runs})
    return Outcome(
        target=target.name,
        title=target.title,
        paper=target.paper,
        scale=requests.scale.name,
        command=command(target, options),
        tables=section.tables,
        figures=section.figures,
        findings=section.findings,
        notes=section.notes + caveats(requests),
        provenance={
            "machine": machine(),
            "code": str(commit()),
            "code of the runs": ", ".join(commits) or "none",
            "made": time.strftime("%Y-%m-%d %H:%M %Z"),
        }
        | by_clock(requests),
        runs=[
            {
                "command": requests.store.command(spec),
                "file": str(path),
                "commit": str(run.attributes.get("commit")),
                "source": spec.source,
            }
            for spec, path, run in runs
        ],
    )


def by_clock(requests: RunRequests) -> dict[str, str]:
    """Return what runs by the clock were made on."""
    links = {spec.link for spec in requests.used if spec.source == MEASURED}
    return {"clock": "; ".join(sorted({requests.store.hosts.describe(link) for link in links}))} if links else {}


def caveats(requests: RunRequests) -> list[str]:
    """Return what is to be known of runs by the clock: what could not be emulated, or how evenly."""
    on, runs = requests.store.hosts, [requests.found(spec) for spec in requests.used if spec.source == MEASURED]
    if not on.emulated:
        why = f" ({on.why})" if on.why else ""
        return [f"Measured on {on.description}{why}. Slow links are only simulated."] if runs else []
    used = [on.cpu * float(part_of_a_step(run, "compute").min()) for run in runs]
    if not used or min(used) >= MIN_STEP_CPU_SECONDS:
        return []
    return [
        f"Steps that were measured compute for {1e3 * min(used):.0f} to {1e3 * max(used):.0f} ms of the processor's "
        f"time. The testbed slows computations evenly from {1e3 * MIN_STEP_CPU_SECONDS:.0f} ms on: in shorter ones a "
        "rank that has waited begins at full speed, which favours algorithms that wait, as all-reduces do, in measured "
        "times."
    ]


def with_error(figure: Figure, own: list[float], others: list[float], runs: list[dict]) -> Figure:
    """Return a figure with the simulator's error in the caption, if the figure shows simulated times.

    own, others: of trainings of the target, and of all targets of the paper.
    """
    if not figure.times or not any(run["source"] in (SIMULATED, TIMING_ONLY) for run in runs):
        return figure
    errors = own or others
    if errors:
        of = "the same trainings" if own else "other trainings, of the paper's other targets"
        note = (
            f"Simulated against measured times of {of}: median {median(errors):+.0%}, from {min(errors):+.0%} to "
            f"{max(errors):+.0%}, of {len(errors)}."
        )
    else:
        note = "Simulated times, not held against the clock here."
    return replace(figure, caption=f"{figure.caption} {note}")


def command(target: Target, options: argparse.Namespace) -> str:
    """Return what a user types for the target."""
    words = [f"make table-{target.name}"]
    words += [f"IMAGENET={shlex.quote(str(options.imagenet))}" if options.imagenet else f"SCALE={options.scale}"]
    return " ".join([*words, *([f"SET={shlex.quote(' '.join(options.set))}"] if options.set else [])])


def learning_rates(requests: RunRequests) -> tuple[str, list[str], list[list[str]]]:
    """Return the table of learning rates: caption, headers and rows."""
    grid, rows = requests.scale.learning_rates, []
    for (config, extra), found in requests.tuned.items():
        best = requests.learning_rate(config, extra)
        cells = dict.fromkeys(grid, "")
        for tried, (samples, accuracy) in found.items():
            cells[tried] = f"{samples / 1000:.0f}k" if samples == samples else f"{100 * accuracy:.1f} %"
        cells[best] += " †" if best in (grid[0], grid[-1]) else " *"
        rows.append([" ".join([config, *extra]), *cells.values()])
    caption = (
        f"Learning rates: samples to the target accuracy, or the best accuracy where it was not reached, on "
        f"{requests.scale.tuning_ranks} ranks in simulated time; * is what is used, † too, but at the end of the grid. "
        "One seed, which is not used again. The first and the last rate are tried only where the one beside it is the "
        "best."
    )
    return caption, ["configuration", *(f"{rate:g}" for rate in grid)], rows


if __name__ == "__main__":
    sys.exit(main())
