"""The tables and figures of five papers, from runs by the clock and in simulated time::

    python -m experiments.reproduce                                  # what `make tables` does: all of them
    python -m experiments.reproduce cssgd-load grsgd                 # what `make table-cssgd-load table-grsgd` does
    python -m experiments.reproduce --report                         # what `make report` does

Runs lie in results/SCALE/runs; those that are there are not made again, so that what was interrupted goes on.
"""

import argparse
import fcntl
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

from experiments.cache import Unfinished, made_side_by_side
from experiments.ending import exit_on_signals
from experiments.reproduce import report
from experiments.reproduce.cell import CLOCK, EXPERIMENTS, SIMULATED, STEPS, TIMES, Cell
from experiments.reproduce.lab import Lab, MissingRun, Page, part_of_a_step
from experiments.reproduce.outcome import Figure, Outcome
from experiments.reproduce.scale import IMAGENET, SCALES
from experiments.reproduce.sources import Store, hosts, machine
from experiments.reproduce.targets import PAPERS, Target, chosen
from experiments.testbed.hosts import TestbedError
from grsgd.config import ConfigError
from grsgd.data import DataError
from grsgd.results import RunFileError
from grsgd.run import commit
from grsgd.simulate.network import rate

EVENLY = 0.02
"""Seconds of the processor's time from which on a testbed slows computations evenly (docs/testbed.md)."""
GUESSED_SECONDS = {CLOCK: 10.0, SIMULATED: 8.0, STEPS: 4.0, TIMES: 2.0}
"""Of a run, before one was made."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of tables and figures, or of papers (default: all)")
    parser.add_argument("--scale", choices=sorted(SCALES), default="smoke", help="(default: %(default)s)")
    parser.add_argument("--imagenet", type=Path, metavar="FOLDER", help="your own; makes the scale imagenet")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every training")
    parser.add_argument("--fresh", action="store_true", help="remove all runs of the scale first")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="of simulations")
    parser.add_argument("--report", action="store_true", help="make nothing but the page with what is there")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder (default: %(default)s)")
    options = parser.parse_args()
    if options.imagenet:
        options.scale = IMAGENET.name
    folder, page = options.results / options.scale, options.results / "report.html"
    papers = [EXPERIMENTS / paper for paper in PAPERS]
    if options.report:
        try:
            report.build(folder, papers, page)
        except (ValueError, OSError) as error:
            print(f"{parser.prog}: error: {error}", file=sys.stderr)
            return 1
        print(page)
        return 0
    try:
        targets = chosen(options.names)
    except ValueError as error:
        parser.error(str(error))
    if own := [setting for setting in options.set if setting.partition("=")[0].strip() in ("seed", "optimizer.lr")]:
        parser.error(f"--set {own[0]}: seeds and learning rates are the targets' own")
    if options.fresh and options.names:
        parser.error("--fresh removes all runs of the scale: give no names")
    began = time.perf_counter()
    exit_on_signals()
    try:
        with only_one(folder):
            if options.fresh:
                shutil.rmtree(folder / "runs", ignore_errors=True)
                shutil.rmtree(folder / "networks", ignore_errors=True)
            wrong = make_all(targets, options, folder)
            report.build(folder, papers, page)
    except (KeyboardInterrupt, SystemExit) as ended:
        print(f"{parser.prog}: interrupted; the same command goes on with what is left", file=sys.stderr)
        return ended.code if isinstance(ended, SystemExit) else 130
    except (ConfigError, DataError, TestbedError, Unfinished) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    for line in wrong:
        print(f"{parser.prog}: error: {line}", file=sys.stderr)
    print(f"{page}; {(time.perf_counter() - began) / 60:.1f} minutes")
    return 1 if wrong else 0


@contextmanager
def only_one(folder: Path):
    """While one process is in here no other may be: runs that share the machine would be timed. Raises Unfinished."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_suffix(".lock")
    try:
        file = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # no link of others
    except OSError as error:
        raise Unfinished(f"{lock}: {error.strerror}") from None
    try:
        with suppress(OSError):  # file systems without locks
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unfinished(f"tables are being made in {folder} already: one after the other") from None
        yield
    finally:
        os.close(file)


def make_all(targets: list[Target], options: argparse.Namespace, folder: Path) -> list[str]:
    """Make the runs, print and save the outcomes; returns what went wrong, a line each.

    Raises ConfigError, DataError, TestbedError and Unfinished.
    """
    scale = SCALES[options.scale]
    store = Store(folder, hosts(max(scale.clock_ranks) + 1, scale.cpu))
    lab = Lab(scale, store, tuple(options.set), options.imagenet)
    wrong: dict[str, None] = {}
    for lab.stage in ("tuning", "tuning", "asking"):  # first the grid of learning rates, then what lies beside its ends
        lab.asked = {}
        for target in targets:
            lab.begin()
            with suppress(MissingRun):  # told when it is shown
                target.make(lab, Page(target.name, None))
        wrong |= dict.fromkeys(make(list(lab.asked), store, options.workers, scale.longest, lab.stage))
    lab.stage = "showing"
    outcomes: dict[str, Outcome] = {}
    errors: dict[str, list[float]] = {}
    for target in targets:
        try:
            outcomes[target.name] = show(target, lab, folder, options)
        except MissingRun as error:
            wrong[f"{target.name}: a run is missing: {error}"] = None
            (folder / f"{target.name}.json").unlink(missing_ok=True)
            continue
        errors[target.name] = lab.simulator_errors()
    claims = report.read_claims([EXPERIMENTS / paper for paper in PAPERS])
    for name, outcome in outcomes.items():
        others = [error for other, some in errors.items() if outcomes[other].paper == outcome.paper for error in some]
        outcome = replace(
            outcome, figures=[with_error(figure, errors[name], others, outcome.runs) for figure in outcome.figures]
        )
        outcome.save(folder)
        print(report.text(outcome, claims), end="\n\n")
    return list(wrong)


# ---- making runs


def make(cells: list[Cell], store: Store, workers: int, longest: float, stage: str) -> list[str]:
    """Make the runs that are not there; returns what went wrong. Raises Unfinished if there can be no calibration.

    longest: seconds of a run by the clock.
    """
    calibrate(cells, store)
    cells = list({store.path(cell): cell for cell in cells}.values())  # other words may say the same
    missing = [cell for cell in cells if store.find(cell) is None]
    missing.sort(
        key=lambda cell: (cell.source, cell.ranks), reverse=True
    )  # long ones first, and those by the clock last
    simulated = [cell for cell in missing if cell.source != CLOCK]
    failures = []
    with Progress(missing, len(cells), workers, stage) as progress:
        with suppress(BrokenProcessPool):  # told below
            for cell in made_side_by_side(simulate, simulated, store, workers):
                progress.made(cell)
        failures += [failure(store, cell) for cell in simulated if store.find(cell) is None]
        by_link: dict = {}
        for cell in (cell for cell in missing if cell.source == CLOCK):
            by_link.setdefault(cell.link, {}).setdefault(cell.ranks, []).append(cell)
        for link, by_ranks in by_link.items():
            with store.on.joined(link) as place:
                for group in by_ranks.values():
                    for cell, error in store.train(group, place, longest):
                        progress.made(cell)
                        failures += [error] if error else []
    return failures


def calibrate(cells: list[Cell], store: Store):
    """Measure computing and links for the simulations; what was measured before is kept. Raises Unfinished."""
    needed = {store.calibration(cell): cell for cell in cells if cell.source in (SIMULATED, TIMES)}
    missing = [cell for cell in needed.values() if not store.calibrated(cell)]
    for links in sorted({cell.link.rate for cell in missing}, key=rate, reverse=True):
        with store.on.joined(missing[0].link._replace(rate=links)) as place:
            for cell in (cell for cell in missing if cell.link.rate == links):
                print(f"calibrating {cell.load().model.name} with links of {links}", file=sys.stderr)
                store.calibrate(cell, place)


def simulate(cell: Cell, store: Store):
    """In a process of its own; what goes wrong is written beside where the run would be."""
    trouble = store.path(cell).with_suffix(".error")
    trouble.unlink(missing_ok=True)
    try:
        store.simulate(cell)
    except (ConfigError, DataError, RunFileError, Unfinished, RuntimeError) as error:
        trouble.write_text(str(error))


def failure(store: Store, cell: Cell) -> str:
    trouble = store.path(cell).with_suffix(".error")
    return f"{trouble.stem}: {trouble.read_text() if trouble.exists() else 'its process has ended'}"


class Progress:
    """A line with how many runs of the stage are left and how long they will take, by how long the others took."""

    def __init__(self, cells: list[Cell], of: int, workers: int, stage: str):
        self.left = Counter(cell.source for cell in cells)
        self.workers = dict.fromkeys((SIMULATED, STEPS, TIMES), workers) | {CLOCK: 1}
        self.done, self.spent, self.last = Counter(), Counter(), time.monotonic()
        self.bar = tqdm(
            total=of,
            initial=of - len(cells),
            desc="learning rates" if stage == "tuning" else "tables and figures",
            bar_format="{desc}: {n_fmt} of {total_fmt} runs |{bar:24}| {elapsed}{postfix}",
            disable=not cells,
            mininterval=0.2 if sys.stderr.isatty() else 20,
        )

    def __enter__(self):
        self.say()
        return self

    def __exit__(self, *exception):
        self.bar.close()

    def made(self, cell: Cell):
        now = time.monotonic()
        self.left[cell.source] -= 1
        self.done[cell.source] += 1
        self.spent[cell.source] += now - self.last
        self.last = now
        self.bar.update()
        self.say()

    def say(self):
        seconds = sum(count * self.seconds(source) for source, count in self.left.items())
        self.bar.set_postfix_str(f"{self.left.total()} left, about {seconds / 60:.0f} min", refresh=False)

    def seconds(self, source: str) -> float:
        """Of one run, with as many side by side as there are workers."""
        if self.done[source]:
            return self.spent[source] / self.done[source]
        return GUESSED_SECONDS[source] / self.workers[source]


# ---- showing results


def show(target: Target, lab: Lab, folder: Path, options: argparse.Namespace) -> Outcome:
    """Raises MissingRun."""
    lab.begin()
    page = Page(target.name, folder)
    target.make(lab, page)
    if lab.tuned:
        page.table(*learning_rates(lab))
    runs = [(cell, lab.store.path(cell), lab.found(cell)) for cell in lab.used]
    commits = sorted({str(run.attributes.get("commit")) for _, _, run in runs})
    return Outcome(
        target=target.name,
        title=target.title,
        paper=target.paper,
        scale=lab.scale.name,
        command=command(target, options),
        tables=page.tables,
        figures=page.figures,
        findings=page.findings,
        notes=page.notes + caveats(lab),
        provenance={
            "machine": machine(),
            "code": str(commit()),
            "code of the runs": ", ".join(commits) or "none",
            "made": time.strftime("%Y-%m-%d %H:%M %Z"),
        }
        | by_clock(lab),
        runs=[
            {
                "command": lab.store.command(cell),
                "file": str(path),
                "commit": str(run.attributes.get("commit")),
                "source": cell.source,
            }
            for cell, path, run in runs
        ],
    )


def by_clock(lab: Lab) -> dict[str, str]:
    """What runs by the clock were made on."""
    links = {cell.link for cell in lab.used if cell.source == CLOCK}
    return {"clock": "; ".join(sorted({lab.store.on.describe(link) for link in links}))} if links else {}


def caveats(lab: Lab) -> list[str]:
    """What is to be known of runs by the clock: what could not be emulated, or how evenly."""
    on, runs = lab.store.on, [lab.found(cell) for cell in lab.used if cell.source == CLOCK]
    if not on.emulated:
        why = f" ({on.why})" if on.why else ""
        return [f"Measured on {on.words}{why}. Slow links are only simulated."] if runs else []
    used = [on.cpu * float(part_of_a_step(run, "compute").min()) for run in runs]
    if not used or min(used) >= EVENLY:
        return []
    return [
        f"Steps that were measured compute for {1e3 * min(used):.0f} to {1e3 * max(used):.0f} ms of the processor's "
        f"time. The testbed slows computations evenly from {1e3 * EVENLY:.0f} ms on: in shorter ones a rank that has "
        "waited begins at full speed, which favours algorithms that wait, as all-reduces do, in measured times."
    ]


def with_error(figure: Figure, own: list[float], others: list[float], runs: list[dict]) -> Figure:
    """With the simulator's error in the caption, if the figure shows simulated times.

    own, others: of trainings of the target, and of all targets of the paper.
    """
    if not figure.times or not any(run["source"] in (SIMULATED, TIMES) for run in runs):
        return figure
    errors = own or others
    if errors:
        of = "the same trainings" if own else "other trainings, of the paper's other targets"
        said = (
            f"Simulated against measured times of {of}: median {median(errors):+.0%}, from {min(errors):+.0%} to "
            f"{max(errors):+.0%}, of {len(errors)}."
        )
    else:
        said = "Simulated times, not held against the clock here."
    return replace(figure, caption=f"{figure.caption} {said}")


def command(target: Target, options: argparse.Namespace) -> str:
    """What a user types for the target."""
    words = [f"make table-{target.name}"]
    words += [f"IMAGENET={shlex.quote(str(options.imagenet))}" if options.imagenet else f"SCALE={options.scale}"]
    return " ".join([*words, *([f"SET={shlex.quote(' '.join(options.set))}"] if options.set else [])])


def learning_rates(lab: Lab) -> tuple[str, list[str], list[list[str]]]:
    """The table of the sweep."""
    grid, rows = lab.scale.learning_rates, []
    for (config, extra), found in lab.tuned.items():
        best = lab.learning_rate(config, extra)
        cells = dict.fromkeys(grid, "")
        for tried, (samples, accuracy) in found.items():
            cells[tried] = f"{samples / 1000:.0f}k" if samples == samples else f"{100 * accuracy:.1f} %"
        cells[best] += " †" if best in (grid[0], grid[-1]) else " *"
        rows.append([" ".join([config, *extra]), *cells.values()])
    caption = (
        f"Learning rates: samples to the target accuracy, or the best accuracy where it was not reached, on "
        f"{lab.scale.tuning_ranks} ranks in simulated time; * is what is used, † too, but at the end of the grid. One "
        "seed, which is not used again. The first and the last rate are tried only where the one beside it is the best."
    )
    return caption, ["configuration", *(f"{rate:g}" for rate in grid)], rows


if __name__ == "__main__":
    sys.exit(main())
