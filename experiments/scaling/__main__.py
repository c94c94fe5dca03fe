"""How a step's time grows with the number of ranks, for every registered algorithm, in simulated time::

    python -m experiments.scaling                                  # what `make figure-scaling` does
    python -m experiments.scaling --ranks 4,8,16 --steps 4         # a quick look

Time per step is ``n / (steps per second of all ranks)`` while they train: what a step of all ranks takes on average,
for synchronous and asynchronous algorithms alike. It says nothing about how much a step is worth: an algorithm that
never waits steps as fast as it computes, however slow its messages are. So there are also the time that it takes after
the last step to bring in what is under way, and how many models a rank has sent a step, which is less where exchanges
cannot keep up; what all this does to the model, accuracies must tell.

Runs lie in results/scaling; one that is there and was made by the same version of the code is not simulated again.
"""

import argparse
import csv
import itertools
import os
import sys
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from tabulate import tabulate
from tqdm import tqdm

from experiments.cache import Unfinished, kept, made_side_by_side
from grsgd import config
from grsgd.algorithms import ALGORITHMS
from grsgd.config import Config, ConfigError
from grsgd.figures import COLOURS, LINES, MARKERS
from grsgd.report import seconds_per_step
from grsgd.results import Run, load_run
from grsgd.simulate.network import network
from grsgd.simulate.run import simulate

BASE = Path(__file__).with_name("base.toml")
NETWORKS = {"1 Gbit/s, 50 us": "1gbit,50us", "25 Gbit/s, 20 us": "25gbit,20us"}
SPEEDS = {"equal speeds": False, "one rank 4x slower, random delays": True}
COMPUTE_SECONDS = 0.1
"""A GPU's forward and backward pass, or nearly."""
FINISHED = "steps"
"""The attribute `stopped` of a run that took all its steps."""
OPTIONS = {"cssgd": ('scheme="grouped-rs"',)}
"""Of algorithms whose defaults are not made for many ranks: the coded scheme has n(n-1)/2 blocks."""
MOST_RANKS = {"cssgd": 64}
"""Of algorithms in which so many messages are under way at once that simulating more takes too long."""
SLOWDOWN = 4.0
TAIL = {"probability": 0.1, "seconds": 0.1}
"""In the runs with stragglers every tenth step of every rank takes 0.1 s longer on average, and rank 1 is slower."""


class Cell(NamedTuple):
    """One run; its file's name."""

    algorithm: str
    ranks: int
    network: str
    speed: str
    steps: int

    def path(self, folder: Path) -> Path:
        speed = "stragglers" if SPEEDS[self.speed] else "equal"
        words = [self.algorithm, f"n{self.ranks}", NETWORKS[self.network], speed]
        return folder / ("-".join(words).replace(",", "-") + f"-{self.steps}.h5")

    def config(self) -> Config:
        """The run's configuration; raises ConfigError where the algorithm cannot run on so many ranks."""
        overrides = [f'algorithm.name="{self.algorithm}"', f"train.steps={self.steps}"]
        overrides += [f"algorithm.{option}" for option in OPTIONS.get(self.algorithm, ())]
        if SPEEDS[self.speed]:
            overrides.append(f"stragglers.slowdown.1={SLOWDOWN}")
            for rank, (key, value) in itertools.product(range(self.ranks), TAIL.items()):
                overrides.append(f"stragglers.tail.{rank}.{key}={value}")
        loaded = config.load(BASE, overrides)
        loaded.check_ranks(self.ranks)
        return loaded


class Result(NamedTuple):
    """What a run says. ``models_sent_per_step``: payload over M, the mean over the ranks' steps."""

    seconds_per_step: float
    drain_seconds: float
    models_sent_per_step: float


def run_cell(cell: Cell, folder: Path):
    """Make the cell's run file. Raises Unfinished, and leaves no file."""
    path = cell.path(folder)
    spec = network(NETWORKS[cell.network], "switch")
    stopped = simulate(cell.config(), cell.ranks, spec, path, f"constant:{COMPUTE_SECONDS}", timing_only=True)
    if stopped != FINISHED:
        path.unlink(missing_ok=True)
        raise Unfinished(f"{path.name}: {stopped}")


def done(cell: Cell, folder: Path) -> Run | None:
    """The cell's run if it is there, has finished, and is what would be run today."""
    today = {
        "ranks": cell.ranks,
        "config": cell.config().toml(),
        "network": network(NETWORKS[cell.network], "switch").summary(),
        "compute": f"constant:{COMPUTE_SECONDS}",
        "timing_only": True,
        "stopped": FINISHED,
    }
    return kept(cell.path(folder), today)


def result(run: Run) -> Result:
    seconds = sum(run.ranks[f"{what}_seconds"] for what in ("compute", "communicate", "wait"))
    models_sent = run.traffic["sent"].sum() / run.attributes["model_bytes"]
    return Result(
        seconds_per_step=seconds_per_step(run),
        drain_seconds=max(0.0, round(float(run.curve["time"][-1] - seconds.max()), 9)),  # sums of many, rounded
        models_sent_per_step=float(models_sent / run.ranks["steps"].sum()),
    )


def sweep(cells: list[Cell], folder: Path, workers: int) -> dict[Cell, Run]:
    """All runs, those that are missing made now, the longest first. Raises Unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = {cell: done(cell, folder) for cell in cells}
    missing = [cell for cell in cells if runs[cell] is None]
    missing.sort(key=lambda cell: cell.ranks, reverse=True)
    with tqdm(total=len(missing), desc="runs", disable=not missing) as bar:
        for cell in made_side_by_side(run_cell, missing, folder, workers):
            runs[cell] = load_run(cell.path(folder))
            bar.update()
    return runs


def possible(cells: list[Cell]) -> list[Cell]:
    """Those that can run; says which cannot."""
    left = []
    for cell in cells:
        try:
            cell.config()
            left.append(cell)
        except ConfigError as error:
            print(f"left out: {cell.algorithm} on {cell.ranks} ranks: {error}", file=sys.stderr)
    return left


def draw(results: dict[Cell, Result], out: Path):
    """A panel for each network and speed; both axes logarithmic."""
    seconds = {cell: result.seconds_per_step for cell, result in results.items()}
    names = sorted({cell.algorithm for cell in seconds})
    ranks = sorted({cell.ranks for cell in seconds})
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    panels = figure.subplots(len(SPEEDS), len(NETWORKS), sharex=True, sharey=True, squeeze=False)
    for (row, speed), (column, net) in itertools.product(enumerate(SPEEDS), enumerate(NETWORKS)):
        panel = panels[row][column]
        panel.set_title(f"{net}, {speed}", fontsize=10)
        panel.axhline(COMPUTE_SECONDS, color="0.6", linewidth=6, alpha=0.5, zorder=0, label="computing alone")
        for index, name in enumerate(names):
            points = {c.ranks: s for c, s in seconds.items() if (c.algorithm, c.network, c.speed) == (name, net, speed)}
            panel.loglog(
                list(points),
                list(points.values()),
                label=name,
                color=COLOURS[index % len(COLOURS)],
                linestyle=LINES[index % len(LINES)],
                marker=MARKERS[index % len(MARKERS)],
                markersize=5,
                markerfacecolor="none" if index >= len(COLOURS) else None,
            )
        panel.set_xticks(ranks, [str(n) for n in ranks], minor=False)
        panel.minorticks_off()
        panel.grid(alpha=0.3, which="both")
        if row == len(SPEEDS) - 1:
            panel.set_xlabel("ranks")
        if column == 0:
            panel.set_ylabel("time per step [virtual s]")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.suptitle("Time per step of all ranks, simulated: ResNet-50 (102 MB), 0.1 s of computing", fontsize=11)
    for suffix in (".pdf", ".png"):
        figure.savefig(out.with_suffix(suffix), dpi=150)


def table(results: dict[Cell, Result]) -> str:
    """A row for each algorithm, network and speed: seconds per step, a column for each number of ranks; what else there
    is to know, for the most ranks."""
    ranks = sorted({cell.ranks for cell in results})
    rows = []
    for net, speed, name in itertools.product(NETWORKS, SPEEDS, sorted({cell.algorithm for cell in results})):
        points = {c.ranks: r for c, r in results.items() if (c.algorithm, c.network, c.speed) == (name, net, speed)}
        if points:
            most = points[max(points)]
            times = [points[n].seconds_per_step if n in points else None for n in ranks]
            rows.append([net, speed, name, *times, most.drain_seconds, most.models_sent_per_step])
    headers = ["network", "speed", "s a step", *ranks, "then drains [s]", "sent a step [M]"]
    return tabulate(rows, headers=headers, tablefmt="pipe", floatfmt=".3g")


def write_csv(results: dict[Cell, Result], path: Path):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*Cell._fields, *Result._fields])
        writer.writerows([*cell, *result] for cell, result in results.items())


def steps_for(ranks: int, steps: int) -> int:
    """Large runs take half as many."""
    return steps if ranks <= 64 else max(1, steps // 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="4,8,16,32,64,128,256", metavar="N,N,...", help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="of a rank; on more than 64 half (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/figure-scaling.pdf"), help="(default: %(default)s)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    options = parser.parse_args()
    try:
        ranks = sorted({int(n) for n in options.ranks.split(",")})
    except ValueError:
        ranks = []
    if not ranks or ranks[0] < 2 or options.steps < 1 or options.workers < 1:
        parser.error("--ranks are numbers of 2 or more, with commas between; --steps and --workers 1 or more")
    cells = possible(
        [
            Cell(algorithm, n, net, speed, steps_for(n, options.steps))
            for algorithm, n, net, speed in itertools.product(sorted(ALGORITHMS), ranks, NETWORKS, SPEEDS)
            if n <= MOST_RANKS.get(algorithm, n)
        ]
    )
    try:
        runs = sweep(cells, options.out.parent / "scaling", options.workers)
    except Unfinished as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    results = {cell: result(run) for cell, run in runs.items()}
    draw(results, options.out)
    write_csv(results, options.out.with_suffix(".csv"))
    print(table(results))
    print(f"\n{options.out}, {options.out.with_suffix('.png')}, {options.out.with_suffix('.csv')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
