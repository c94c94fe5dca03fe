"""How a step's time grows with the number of ranks, for every registered algorithm, in simulated time::

    python -m experiments.scaling                                  # what `make figure-scaling` does
    python -m experiments.scaling --ranks 4,8,16 --steps 4         # a quick look

Time per step is ``n x batch size / (samples per second of all ranks)``: what a step of all ranks takes on average, for
synchronous and asynchronous algorithms alike. It says nothing about how much a step is worth: see accuracies for that.

Runs lie in results/scaling; one that is there is not simulated again.
"""

import argparse
import csv
import itertools
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from tabulate import tabulate
from tqdm import tqdm

from grsgd import config
from grsgd.algorithms import ALGORITHMS
from grsgd.config import Config, ConfigError
from grsgd.figures import COLOURS, LINES, MARKERS
from grsgd.results import Run, RunFileError, load_run
from grsgd.simulate.network import network
from grsgd.simulate.run import simulate

BASE = Path(__file__).with_name("base.toml")
NETWORKS = {"1 Gbit/s, 50 us": "1gbit,50us", "25 Gbit/s, 20 us": "25gbit,20us"}
SPEEDS = {"equal speeds": False, "one rank 4x slower, random delays": True}
COMPUTE_SECONDS = 0.1
"""A GPU's forward and backward pass, or nearly."""
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
        if SPEEDS[self.speed]:
            overrides.append(f"stragglers.slowdown.1={SLOWDOWN}")
            for rank, (key, value) in itertools.product(range(self.ranks), TAIL.items()):
                overrides.append(f"stragglers.tail.{rank}.{key}={value}")
        loaded = config.load(BASE, overrides)
        loaded.check_ranks(self.ranks)
        return loaded


def run_cell(cell: Cell, folder: Path):
    spec = network(NETWORKS[cell.network], "switch")
    simulate(cell.config(), cell.ranks, spec, cell.path(folder), f"constant:{COMPUTE_SECONDS}", timing_only=True)


def done(cell: Cell, folder: Path) -> Run | None:
    """The cell's run if it is there and is what would be run today."""
    try:
        run = load_run(cell.path(folder))
    except RunFileError:
        return None
    same = run.attributes["config"] == cell.config().toml() and run.attributes["stopped"] == "steps"
    return run if same and run.attributes["compute"] == f"constant:{COMPUTE_SECONDS}" else None


def seconds_per_step(run: Run) -> float:
    last = {name: values[-1] for name, values in run.curve.items()}
    return run.attributes["ranks"] * run.attributes["batch_size"] * last["time"] / last["samples"]


def sweep(cells: list[Cell], folder: Path, workers: int) -> dict[Cell, Run]:
    """All runs, those that are missing made now, the longest first."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if done(cell, folder) is None]
    missing.sort(key=lambda cell: cell.ranks, reverse=True)
    with ProcessPoolExecutor(workers) as pool, tqdm(total=len(missing), desc="runs", disable=not missing) as bar:
        for future in as_completed([pool.submit(run_cell, cell, folder) for cell in missing]):
            future.result()
            bar.update()
    return {cell: done(cell, folder) for cell in cells}


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


def draw(seconds: dict[Cell, float], out: Path):
    """A panel for each network and speed; both axes logarithmic."""
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


def table(seconds: dict[Cell, float]) -> str:
    """A row for each algorithm, network and speed, a column for each number of ranks; seconds."""
    ranks = sorted({cell.ranks for cell in seconds})
    rows = []
    for net, speed, name in itertools.product(NETWORKS, SPEEDS, sorted({cell.algorithm for cell in seconds})):
        points = {c.ranks: s for c, s in seconds.items() if (c.algorithm, c.network, c.speed) == (name, net, speed)}
        rows.append([net, speed, name, *(points.get(n) for n in ranks)])
    return tabulate(rows, headers=["network", "speed", "s a step", *ranks], tablefmt="pipe", floatfmt=".3g")


def write_csv(seconds: dict[Cell, float], path: Path):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*Cell._fields, "seconds_per_step"])
        writer.writerows([*cell, value] for cell, value in seconds.items())


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
        ]
    )
    runs = sweep(cells, options.out.parent / "scaling", options.workers)
    seconds = {cell: seconds_per_step(run) for cell, run in runs.items()}
    draw(seconds, options.out)
    write_csv(seconds, options.out.with_suffix(".csv"))
    print(table(seconds))
    print(f"\n{options.out}, {options.out.with_suffix('.png')}, {options.out.with_suffix('.csv')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
