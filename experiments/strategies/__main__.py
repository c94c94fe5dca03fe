"""The strategies of a parameter server side by side, with stragglers and without::

    python -m experiments.strategies                             # what `make table-strategies` does: MPI, 4 workers
    python -m experiments.strategies --seeds 3                   # medians
    python -m experiments.strategies --simulate --ranks 9        # 8 workers in simulated time

Every strategy trains MNIST-5k with the same options but its name. With stragglers, worker 1 computes 3 times slower
and every worker pauses now and then. The last rank is the server.

Runs lie in results/strategies; one that is there and was made by the same version of the code is not made again.
"""

import argparse
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from experiments.cache import Unfinished, kept, made_side_by_side
from experiments.environment import environment
from grsgd import config
from grsgd.calibrate import find_mpiexec
from grsgd.config import Config, ConfigError
from grsgd.report import target, time_to_target
from grsgd.results import Run, load_run
from grsgd.simulate.network import network
from grsgd.simulate.run import simulate
from grsgd.strategies import STRATEGIES

BASE = Path(__file__).with_name("base.toml")
OURS = "adsp"
SETTINGS = {"equal speeds": False, "worker 1 is 3 times slower, all pause now and then": True}
SLOW, SLOWDOWN = 1, 3.0
TAIL = {"probability": 0.05, "seconds": 0.1}
"""In the runs with stragglers every twentieth step of every worker takes 0.1 s longer on average."""
NETWORK, COMPUTE = "25gbit,20us", "constant:0.005"
"""Of simulated runs."""
FINISHED = "epochs"
"""The attribute `stopped` of a run that trained to its end."""
TIMEOUT = 300
"""Seconds for one run on MPI; one that takes longer hangs."""
BUCKETS = {"0": (0, 0), "1-2": (1, 2), "3-5": (3, 5), "6+": (6, math.inf)}
"""Of the staleness of gradients, first and last number of updates."""
PAPER_TIME, PAPER_ACCURACY = (9.61, 41.15), 3.29
"""What Wang and Zhu claim for adsp: per cent less time than the other strategies, and points of accuracy more."""


class Cell(NamedTuple):
    """One run; its file's name."""

    strategy: str
    setting: str
    seed: int
    ranks: int
    simulated: bool

    @property
    def name(self) -> str:
        speeds = "stragglers" if SETTINGS[self.setting] else "equal"
        clock = "virtual" if self.simulated else "mpi"
        return f"{self.strategy}-{speeds}-n{self.ranks - 1}-{clock}-seed{self.seed}"

    def path(self, folder: Path) -> Path:
        return folder / f"{self.name}.h5"

    def overrides(self) -> list[str]:
        found = [f"seed={self.seed}", f'algorithm.strategy="{self.strategy}"']
        if SETTINGS[self.setting]:
            found.append(f"stragglers.slowdown.{SLOW}={SLOWDOWN}")
            for worker, (key, value) in itertools.product(range(self.ranks - 1), TAIL.items()):
                found.append(f"stragglers.tail.{worker}.{key}={value}")
        return found

    def config(self) -> Config:
        return config.load(BASE, self.overrides())


class Result(NamedTuple):
    """What a run says."""

    seconds: float
    """To the target; NaN if it was not reached."""
    accuracy: float
    """The best one."""
    staleness: float
    """Mean over all gradients."""
    buckets: tuple[float, ...]
    """Shares of the gradients in `BUCKETS`."""
    shares: tuple[float, ...]
    """Of each worker in the gradients."""
    rate: float
    """Pushes a second."""


def run_cell(cell: Cell, folder: Path):
    """Make the cell's run file. Raises Unfinished, and leaves no file."""
    path = cell.path(folder)
    path.unlink(missing_ok=True)
    if cell.simulated:
        stopped = simulate(cell.config(), cell.ranks, network(NETWORK, "switch"), path, COMPUTE)
        if stopped != FINISHED:
            path.unlink(missing_ok=True)
            raise Unfinished(f"{cell.name}: {stopped}")
        return
    try:
        mpiexec = find_mpiexec()
    except ConfigError:
        raise Unfinished("there is no mpiexec here; --simulate needs none") from None
    command = [mpiexec, "-n", str(cell.ranks), sys.executable, "-m", "grsgd", "train", str(BASE)]
    command += [word for override in cell.overrides() for word in ("--set", override)] + ["--out", str(path)]
    try:
        done = subprocess.run(
            command, env=environment(), timeout=TIMEOUT, check=False, text=True, capture_output=True
        )
    except subprocess.TimeoutExpired:
        raise Unfinished(f"{cell.name}: not done after {TIMEOUT} s") from None
    if done.returncode:
        path.unlink(missing_ok=True)
        raise Unfinished(f"{cell.name}: exit code {done.returncode}: {done.stderr.strip()}")


def done(cell: Cell, folder: Path) -> Run | None:
    """The cell's run if it is there, has finished, and is what would be run today."""
    today = {"ranks": cell.ranks, "config": cell.config().toml(), "stopped": FINISHED}
    if cell.simulated:
        today |= {"clock": "virtual", "network": network(NETWORK, "switch").summary(), "compute": COMPUTE}
    return kept(cell.path(folder), today)


def make_runs(cells: list[Cell], folder: Path, fresh: bool = False) -> dict[Cell, Run]:
    """All runs, those that are missing made now: simulated ones side by side, others one after another. Raises
    Unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = {cell: None if fresh else done(cell, folder) for cell in cells}
    missing = [cell for cell in cells if runs[cell] is None]
    with tqdm(total=len(missing), desc="runs", disable=not missing) as bar:
        for cell in made(missing, folder):
            runs[cell] = load_run(cell.path(folder))
            bar.update()
    return runs


def made(cells: list[Cell], folder: Path):
    """Makes runs and yields their cells."""
    if not all(cell.simulated for cell in cells):
        for cell in cells:
            run_cell(cell, folder)
            yield cell
        return
    yield from made_side_by_side(run_cell, cells, folder, len(os.sched_getaffinity(0)))


def result(run: Run) -> Result:
    steps = run.ranks["steps"][:-1]  # the last rank is the server
    ages, counts = run.staleness["value"], run.staleness["count"].sum(axis=0)
    return Result(
        seconds=time_to_target(run),
        accuracy=float(np.nanmax(run.curve["test_accuracy"])),
        staleness=float(np.average(ages, weights=counts)),
        buckets=tuple(
            float(counts[(ages >= least) & (ages <= most)].sum() / counts.sum()) for least, most in BUCKETS.values()
        ),
        shares=tuple((steps / steps.sum()).tolist()),
        rate=float(steps.sum() / run.curve["time"][-1]),
    )


def median(results: list[Result]) -> Result:
    """Of several seeds, number by number; NaN where one of them did not reach the target."""
    return Result(
        *(
            tuple(np.median(values, axis=0).tolist()) if isinstance(values[0], tuple) else float(np.median(values))
            for values in zip(*results, strict=True)
        )
    )


def table(results: dict[str, Result], goal: float) -> str:
    """A row for each strategy."""
    headers = ["strategy", f"to {100 * goal:g} % [s]", "best [%]", "staleness", *(f"{name} [%]" for name in BUCKETS)]
    headers += ["gradients of each worker [%]", "pushes/s"]
    rows = [
        [
            name,
            "—" if math.isnan(r.seconds) else f"{r.seconds:.2f}",
            f"{100 * r.accuracy:.1f}",
            f"{r.staleness:.2f}",
            *(f"{100 * share:.0f}" for share in r.buckets),
            shares(r.shares),
            f"{r.rate:.1f}",
        ]
        for name, r in results.items()
    ]
    align = ["left", *["right"] * (len(headers) - 1)]
    return tabulate(rows, headers=headers, tablefmt="pipe", colalign=align, disable_numparse=True)


def shares(values: tuple[float, ...]) -> str:
    """As per cent; of many workers the slow one, and the range of the others."""
    percent = [f"{100 * value:.0f}" for value in values]
    if len(values) <= 8:
        return " ".join(percent)
    others = sorted(value for worker, value in enumerate(values) if worker != SLOW)
    return f"worker {SLOW}: {100 * values[SLOW]:.1f}; others: {100 * others[0]:.1f} to {100 * others[-1]:.1f}"


def verdict(results: dict[str, Result]) -> str:
    """What adsp gained or lost against each other strategy, and whether that is what its paper claims."""
    lines, ours = [], results[OURS]
    for name, other in results.items():
        if name != OURS:
            points = 100 * (ours.accuracy - other.accuracy)
            lines.append(
                f"{OURS} against {name}: {time_against(ours.seconds, other.seconds)}; best {points:+.1f} points"
            )
    least, most = PAPER_TIME
    lines.append(
        f"The paper claims {least} to {most} % less time than other strategies and up to {PAPER_ACCURACY} points more."
    )
    groups: dict[str, list[str]] = {}
    for name, other in results.items():
        if name != OURS:
            groups.setdefault(gain(ours.seconds, other.seconds), []).append(name)
    lines.append("Here: " + "; ".join(f"{kind} {', '.join(names)}" for kind, names in groups.items()) + ".")
    return "\n".join(lines)


def time_against(seconds: float, other: float) -> str:
    if math.isnan(seconds) or math.isnan(other):
        return "time not known: the target was not reached by both"
    percent = 100 * (1 - seconds / other)
    if abs(percent) < 0.05:
        return "the same time"
    return f"{abs(percent):.1f} % {'less' if percent > 0 else 'more'} time"


def gain(seconds: float, other: float) -> str:
    """How a time compares with another, next to what the paper claims."""
    if math.isnan(seconds) or math.isnan(other):
        return "time not known against"
    percent = 100 * (1 - seconds / other)
    if percent >= PAPER_TIME[0]:
        return "as much less time as that, or more, than"
    return "less time, but not so much less, than" if percent > 0 else "no less time than"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.strategies", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=5, help="the workers and one server (default: %(default)s)")
    parser.add_argument("--simulate", action="store_true", help="in simulated time, without MPI")
    parser.add_argument("--fresh", action="store_true", help="make all runs again")
    parser.add_argument("--out", type=Path, default=Path("results/strategies"), help="(default: %(default)s)")
    options = parser.parse_args()
    if options.seeds < 1 or options.ranks < 3:
        parser.error("--seeds must be 1 or more, --ranks 3 or more")
    cells = [
        Cell(strategy, setting, seed, options.ranks, options.simulate)
        for seed, setting, strategy in itertools.product(range(options.seeds), SETTINGS, STRATEGIES)
    ]
    try:
        runs = make_runs(cells, options.out, options.fresh)
    except Unfinished as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    goal = target(runs[cells[0]])
    for setting in SETTINGS:
        results = {
            strategy: median([result(run) for c, run in runs.items() if (c.strategy, c.setting) == (strategy, setting)])
            for strategy in STRATEGIES
        }
        where = f"simulated, {NETWORK}, {COMPUTE} s a step" if options.simulate else "MPI"
        seeds = f", medians of {options.seeds} seeds" if options.seeds > 1 else ""
        print(f"{setting[0].upper()}{setting[1:]}; {options.ranks - 1} workers and a server, {where}{seeds}:\n")
        print(table(results, goal), verdict(results), sep="\n\n", end="\n\n")
    print(
        "staleness: updates of the model between a gradient's pull and its push, the mean, and how many gradients\n"
        "were 0, 1-2, 3-5 and 6 or more updates old; best: highest test accuracy of any snapshot."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
