"""The tables and figures of five papers, from runs by the clock and in simulated time::

    python -m experiments.reproduce                                  # what `make tables` does: all of them
    python -m experiments.reproduce cssgd-load grsgd                 # what `make table-cssgd-load table-grsgd` does
    python -m experiments.reproduce --report                         # what `make report` does

Runs lie in results/SCALE/runs; those that are there are not made again, so that what was interrupted goes on.
"""

import argparse
import os
import platform
import re
import shutil
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from experiments.cache import Unfinished, made_side_by_side
from experiments.reproduce import report
from experiments.reproduce.cell import CLOCK, EXPERIMENTS, SIMULATED, STEPS, TIMES, Cell
from experiments.reproduce.lab import Lab, MissingRun, Page
from experiments.reproduce.outcome import Outcome
from experiments.reproduce.scale import SCALES
from experiments.reproduce.sources import Store, hosts
from experiments.reproduce.targets import PAPERS, Target, chosen
from grsgd.config import ConfigError
from grsgd.data import DataError
from grsgd.results import RunFileError
from grsgd.run import commit

GUESSED_SECONDS = {CLOCK: 10.0, SIMULATED: 8.0, STEPS: 4.0, TIMES: 2.0}
"""Of a run, before one was made."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.reproduce", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of tables and figures, or of papers (default: all)")
    parser.add_argument("--scale", choices=sorted(SCALES), default="smoke", help="(default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every training")
    parser.add_argument("--fresh", action="store_true", help="make all runs again")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="of simulations")
    parser.add_argument("--report", action="store_true", help="make nothing but the page with what is there")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder (default: %(default)s)")
    options = parser.parse_args()
    folder, page = options.results / options.scale, options.results / "report.html"
    papers = [EXPERIMENTS / paper for paper in PAPERS]
    if options.report:
        report.build(folder, papers, page)
        print(page)
        return 0
    try:
        targets = chosen(options.names)
    except ValueError as error:
        parser.error(str(error))
    if options.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    scale = SCALES[options.scale]
    began = time.perf_counter()
    try:
        store = Store(folder, hosts(max(scale.clock_ranks) + 1, scale.cpu))
        lab = Lab(scale, store, tuple(options.set))
        for lab.stage in ("tuning", "asking"):
            lab.asked = {}
            for target in targets:
                target.make(lab, Page(target.name, None))
            failures = make(list(lab.asked), store, options.workers)
    except (ConfigError, DataError, Unfinished) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    for failure in failures:
        print(f"{parser.prog}: error: {failure}", file=sys.stderr)
    lab.stage, claims, missing = "showing", report.read_claims(papers), 0
    for target in targets:
        try:
            outcome = show(target, lab, folder)
        except MissingRun as error:
            print(f"{parser.prog}: error: {target.name}: a run is missing: {error}", file=sys.stderr)
            missing += 1
            continue
        outcome.save(folder)
        print(report.text(outcome, claims), end="\n\n")
    report.build(folder, papers, page)
    print(f"{page}; {(time.perf_counter() - began) / 60:.1f} minutes")
    return 1 if failures or missing else 0


# ---- making runs


def make(cells: list[Cell], store: Store, workers: int) -> list[str]:
    """Make the runs that are not there; returns what went wrong. Raises Unfinished if there can be no calibration."""
    calibrate(cells, store)
    cells = list({store.path(cell): cell for cell in cells}.values())  # other words may say the same
    missing = [cell for cell in cells if store.find(cell) is None]
    missing.sort(
        key=lambda cell: (cell.source, cell.ranks), reverse=True
    )  # long ones first, and those by the clock last
    simulated = [cell for cell in missing if cell.source != CLOCK]
    failures = []
    with Progress(missing, len(cells), workers) as progress:
        for cell in made_side_by_side(simulate, simulated, store, workers):
            progress.made(cell)
        failures += [failure(store, cell) for cell in simulated if store.find(cell) is None]
        by_link: dict = {}
        for cell in (cell for cell in missing if cell.source == CLOCK):
            by_link.setdefault(cell.link, {}).setdefault(cell.ranks, []).append(cell)
        for link, by_ranks in by_link.items():
            with store.on.joined(link) as place:
                for group in by_ranks.values():
                    for cell, error in store.train(group, place):
                        progress.made(cell)
                        failures += [error] if error else []
    return failures


def calibrate(cells: list[Cell], store: Store):
    """Measure computing and links for the simulations; what was measured before is kept. Raises Unfinished."""
    needed = {store.calibration(cell): cell for cell in cells if cell.source in (SIMULATED, TIMES)}
    missing = [cell for path, cell in needed.items() if not path.exists()]
    for rate in {cell.link.rate for cell in missing}:
        with store.on.joined(missing[0].link._replace(rate=rate)) as place:
            for cell in (cell for cell in missing if cell.link.rate == rate):
                print(f"calibrating {cell.load().model.name} with links of {rate}", file=sys.stderr)
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
    """A line with how many runs are left and how long they will take, by how long the others took."""

    def __init__(self, cells: list[Cell], of: int, workers: int):
        self.left = Counter(cell.source for cell in cells)
        self.workers = dict.fromkeys((SIMULATED, STEPS, TIMES), workers) | {CLOCK: 1}
        self.done, self.spent, self.last = Counter(), Counter(), time.monotonic()
        self.bar = tqdm(
            total=of,
            initial=of - len(cells),
            bar_format="{n_fmt} of {total_fmt} runs |{bar:24}| {elapsed}{postfix}",
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


def show(target: Target, lab: Lab, folder: Path) -> Outcome:
    """Raises MissingRun."""
    lab.begin()
    page = Page(target.name, folder)
    target.make(lab, page)
    error = lab.simulator_error()
    if lab.tuned:
        page.table(*learning_rates(lab))
    runs = [(cell, lab.store.path(cell), lab.found(cell)) for cell in lab.used]
    commits = sorted({str(run.attributes.get("commit")) for _, _, run in runs})
    return Outcome(
        target=target.name,
        title=target.title,
        paper=target.paper,
        scale=lab.scale.name,
        command=f"make table-{target.name} SCALE={lab.scale.name}",
        tables=page.tables,
        figures=[replace(figure, caption=f"{figure.caption} {error}".strip()) for figure in page.figures],
        findings=page.findings,
        notes=page.notes + not_emulated(lab),
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


def not_emulated(lab: Lab) -> list[str]:
    """What is to be known of runs by the clock that were not made on emulated hosts."""
    rates = sorted({cell.link.rate for cell in lab.used if cell.source == CLOCK})
    if not rates or lab.store.on.emulated:
        return []
    note = f"Measured on {lab.store.on.words}."
    if len(rates) > 1:
        note += f" With links of {' and '.join(rates)} these are the same runs; only simulated ones differ."
    return [note]


def learning_rates(lab: Lab) -> tuple[str, list[str], list[list[str]]]:
    """The table of the sweep."""
    rows = []
    for config, found in lab.tuned.items():
        best = lab.learning_rate(config)
        cells = [
            f"{samples / 1000:.0f}k" if samples == samples else f"{100 * accuracy:.1f} %"
            for samples, accuracy in found.values()
        ]
        marked = [f"{text} *" if rate == best else text for rate, text in zip(found, cells, strict=True)]
        rows.append([config, *marked])
    caption = (
        f"Learning rates: samples to the target accuracy, or the best accuracy where it was not reached, on "
        f"{lab.scale.tuning_ranks} ranks in simulated time; * is what is used. One seed, which is not used again."
    )
    return caption, ["configuration", *(f"{rate:g}" for rate in lab.scale.learning_rates)], rows


def machine() -> str:
    try:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        model = None
    return f"{len(os.sched_getaffinity(0))} cores, {model[1] if model else platform.machine()}"


if __name__ == "__main__":
    sys.exit(main())
