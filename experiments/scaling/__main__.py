"""The growth of a step's time with the number of ranks, for every registered algorithm, in simulated time::

    python -m experiments.scaling                                  # as ``make figure-scaling``
    python -m experiments.scaling --ranks 4,8,16 --steps 4         # a quick look
    python -m experiments.scaling --algorithm mine.py:Mine --algorithm grsgd

The time per step is measured during training as ``n / (steps per second of all n ranks together)``. The time per step
is the mean time in which every rank takes one step, for synchronous and asynchronous algorithms alike. The time per
step does not say how much a step improves the model. An algorithm that never waits takes steps as fast as it computes,
however slow its messages are. The table therefore also has the time from the last step until all messages have
arrived. A further column of the table has the number of models that a rank sends per step. A rank sends fewer models
per step if its exchanges cannot keep up with its steps. The effect of fewer exchanges on the trained model is visible
only in accuracies, which this experiment does not measure.

The run files of this experiment are stored in results/scaling. A run is not repeated if the same version of the code
has already made it.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from tabulate import tabulate

from experiments.arguments import add_workers
from experiments.figures import save, write_csv
from experiments.runner.kept import KeptRuns
from experiments.runner.parallel import Unfinished
from experiments.runner.run_spec import TIMING_ONLY, Link, RunSpec, load_config
from grsgd.algorithms import ALGORITHMS
from grsgd.errors import ConfigError
from grsgd.runs.measures import seconds_per_step
from grsgd.runs.run_file import Run
from grsgd.runs.series import COLOURS, LINES, MARKERS

PROGRAM = "python -m experiments.scaling"
FOLDER = Path(__file__).parent
NETWORKS = {
    "1 Gbit/s, 50 us": Link("1gbit", nominal=True),
    "25 Gbit/s, 20 us": Link("25gbit", nominal=True, latency="20us"),
}
SPEEDS = {"equal speeds": False, "one rank 4x slower, random delays": True}
COMPUTE_SECONDS = 0.1
"""Seconds that a step computes, about as long as a forward and backward pass on a GPU."""
MAX_RANKS = {"cssgd": 64}
"""Greatest number of ranks, by name of the algorithm.

On more ranks, the messages of the listed algorithms would take long to simulate.
"""
SLOWDOWN = 4.0
"""Factor by which rank 1 is slower in runs with stragglers."""
TAIL = {"probability": 0.1, "seconds": 0.1}
"""Random delays in runs with stragglers: on average, every tenth step of each rank takes 0.1 s longer."""


class ScalingRun(NamedTuple):
    """One run of an algorithm, which is one point of the figure."""

    algorithm: str
    ranks: int
    network: str
    speed: str
    steps: int

    def spec(self) -> RunSpec:
        """Return the specification of this run of an algorithm.

        The configuration is ``NAME.toml`` for the algorithm ``NAME`` if this file exists, and else ``base.toml``. An
        algorithm has a configuration of its own if its default options suit only few ranks.
        """
        own = FOLDER / f"{self.algorithm}.toml"
        config = f"scaling/{own.stem if own.exists() else 'base'}"
        overrides = [f"algorithm.name={json.dumps(self.algorithm)}", f"train.steps={self.steps}"]
        if SPEEDS[self.speed]:
            overrides.append(f"stragglers.slowdown.1={SLOWDOWN}")
            for rank, (key, value) in itertools.product(range(self.ranks), TAIL.items()):
                overrides.append(f"stragglers.tail.{rank}.{key}={value}")
        network, compute = NETWORKS[self.network], f"constant:{COMPUTE_SECONDS}"
        return RunSpec(config, tuple(overrides), self.ranks, TIMING_ONLY, network, compute=compute)

    def check(self):
        """Raise ConfigError if the algorithm does not exist, or cannot run on ``ranks`` ranks."""
        self.spec().load().check_ranks(self.ranks)


class ScalingNumbers(NamedTuple):
    """The numbers of a run that the figure and the table show.

    seconds_per_step: mean time in which every rank takes one step. drain_seconds: time from the last step until all
    messages have arrived. models_sent_per_step: bytes of payload that a rank sends per step, divided by the bytes of
    the model, as the mean over all steps.
    """

    seconds_per_step: float
    drain_seconds: float
    models_sent_per_step: float


def numbers_of(run: Run) -> ScalingNumbers:
    seconds = sum(run.ranks[f"{what}_seconds"] for what in ("compute", "communicate", "wait"))
    models_sent = run.traffic["sent"].sum() / run.attributes["model_bytes"]
    return ScalingNumbers(
        seconds_per_step=seconds_per_step(run),
        # rounding removes floating-point errors, which would be shown as tiny times
        drain_seconds=max(0.0, round(float(run.curve["time"][-1] - seconds.max()), 9)),
        models_sent_per_step=float(models_sent / run.ranks["steps"].sum()),
    )


def select_possible(points: list[ScalingRun]) -> list[ScalingRun]:
    """Return the runs among ``points`` that are possible, and print the reason why each other run is not."""
    left = []
    for point in points:
        try:
            point.check()
            left.append(point)
        except ConfigError as error:
            print(f"left out: {point.algorithm} on {point.ranks} ranks: {error}", file=sys.stderr)
    return left


def draw(results: dict[ScalingRun, ScalingNumbers], out: Path):
    """Draw the seconds per step over the number of ranks, with logarithmic axes.

    The figure has one panel per network and speed of the ranks.
    """
    seconds = {point: result.seconds_per_step for point, result in results.items()}
    names = sorted({point.algorithm for point in seconds})
    ranks = sorted({point.ranks for point in seconds})
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    panels = figure.subplots(len(SPEEDS), len(NETWORKS), sharex=True, sharey=True, squeeze=False)
    for (row, speed), (column, net) in itertools.product(enumerate(SPEEDS), enumerate(NETWORKS)):
        panel = panels[row][column]
        panel.set_title(f"{net}, {speed}", fontsize=10)
        panel.axhline(COMPUTE_SECONDS, color="0.6", linewidth=6, alpha=0.5, zorder=0, label="computing alone")
        for index, name in enumerate(names):
            by_ranks = {
                c.ranks: s for c, s in seconds.items() if (c.algorithm, c.network, c.speed) == (name, net, speed)
            }
            panel.loglog(
                list(by_ranks),
                list(by_ranks.values()),
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
    save(figure, out)


def table(results: dict[ScalingRun, ScalingNumbers]) -> str:
    """Return the table of seconds per step as Markdown.

    The table has a row for each algorithm, network and speed of the ranks, and a column for each number of ranks. The
    last two columns show the numbers of `ScalingNumbers` beyond the time per step, for the greatest number of ranks.
    """
    ranks = sorted({point.ranks for point in results})
    rows = []
    for net, speed, name in itertools.product(NETWORKS, SPEEDS, sorted({point.algorithm for point in results})):
        by_ranks = {c.ranks: r for c, r in results.items() if (c.algorithm, c.network, c.speed) == (name, net, speed)}
        if by_ranks:
            most = by_ranks[max(by_ranks)]
            times = [by_ranks[n].seconds_per_step if n in by_ranks else None for n in ranks]
            rows.append([net, speed, name, *times, most.drain_seconds, most.models_sent_per_step])
    headers = ["network", "speed", "s a step", *ranks, "then drains [s]", "sent a step [M]"]
    return tabulate(rows, headers=headers, tablefmt="pipe", floatfmt=".3g")


def steps_for(ranks: int, steps: int) -> int:
    """Return the number of steps that a rank takes: ``steps``, or half of ``steps`` on more than 64 ranks."""
    return steps if ranks <= 64 else max(1, steps // 2)


def parse_arguments() -> argparse.Namespace:
    """Parse and return the command-line arguments, to which ``points``, the list of runs, is added.

    Exits with a message if the arguments are wrong.
    """
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0])
    parser.add_argument(
        "--algorithm",
        action="append",
        metavar="NAME",
        help="name of an algorithm, or FILE.py:CLASS; may be given several times (default: all registered ones)",
    )
    parser.add_argument(
        "--ranks", default="4,8,16,32,64,128,256", metavar="N,N,...", help="numbers of ranks (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=40, help="steps per rank; half of them on over 64 ranks (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results/figure-scaling.pdf"), help="figure (default: %(default)s)"
    )
    add_workers(parser)
    options = parser.parse_args()
    try:
        ranks = sorted({int(n) for n in options.ranks.split(",")})
    except ValueError:
        ranks = []
    if not ranks or ranks[0] < 2 or options.steps < 1:
        parser.error("--ranks must be numbers of 2 or more, separated by commas; --steps must be 1 or more")
    try:
        options.points = points_of(options.algorithm or sorted(ALGORITHMS), ranks, options.steps)
    except ConfigError as error:
        parser.error(str(error))
    return options


def points_of(algorithms: list[str], ranks: list[int], steps: int) -> list[ScalingRun]:
    """Return the possible runs of ``algorithms``; raise ConfigError if one of the algorithms does not exist."""
    for algorithm in algorithms:
        load_config("scaling/base", (f"algorithm.name={json.dumps(algorithm)}",))
    return select_possible(
        [
            ScalingRun(algorithm, n, net, speed, steps_for(n, steps))
            for algorithm, n, net, speed in itertools.product(algorithms, ranks, NETWORKS, SPEEDS)
            if n <= MAX_RANKS.get(algorithm, n)
        ]
    )


def main() -> int:
    options = parse_arguments()
    try:
        folder = options.out.parent / "scaling"
        runs = KeptRuns(folder, options.workers).make_all(options.points)
    except Unfinished as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    results = {point: numbers_of(run) for point, run in runs.items()}
    draw(results, options.out)
    write_csv(results, options.out.with_suffix(".csv"))
    print(table(results))
    print(f"\n{options.out}, {options.out.with_suffix('.png')}, {options.out.with_suffix('.csv')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
