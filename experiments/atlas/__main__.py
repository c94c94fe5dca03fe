"""The atlas: methods that exchange less often, over links of 10 Mbit/s to 1 Gbit/s, with and without a straggler::

    python -m experiments.atlas --dry-run              # the number of runs, and their duration
    sudo .venv/bin/python -m experiments.atlas         # as ``make figure-atlas``; hours
    python -m experiments.atlas --simulated            # only in simulated time, without root

The language model and a CNN are trained on four hosts, with every method that can exchange models every few steps.
The atlas has 234 runs in simulated time, and 70 runs on the testbed, whose network interfaces also count bytes. A run
whose run file exists is not repeated, so an interrupted experiment continues where it stopped. The program writes a
figure, a table, all numbers as CSV, and a comparison with the formula by which papers compute the time of a step.
"""

import argparse
import sys
from pathlib import Path

from experiments.arguments import add_record, add_workers, parse_once
from experiments.atlas import analytic, draw, points
from experiments.atlas.points import TASKS, AtlasRun, measured_points, simulated_points
from experiments.atlas.seconds import expect_seconds
from experiments.figures import record, write_csv
from experiments.runner.hosts import EmulatedHosts
from experiments.runner.kept import KeptRuns
from grsgd.errors import UsageError
from grsgd.testbed.hosts import TestbedError

PROGRAM = "python -m experiments.atlas"
TIMEOUT = 900
"""Greatest number of seconds that a run on the testbed may take."""


def main() -> int:
    options = parse_arguments()
    expected = {point.spec(): expect_seconds(point) for point in options.points}
    folder = options.out.parent / "atlas"
    kept = KeptRuns(folder, options.workers, lambda spec, cpu: expected[spec], hosts(), TIMEOUT)
    print(kept.forecast(options.points, kept.load(options.points)), flush=True)
    if options.dry_run:
        return 0
    try:
        failures = kept.make(options.points)
    except TestbedError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    for failure in failures:
        print(f"left out: {failure}", file=sys.stderr)
    results = {point: draw.AtlasNumbers.of(run) for point, run in kept.load(options.points).items()}
    draw.draw(results, options.out)
    write_csv(results, options.out.with_suffix(".csv"))
    print(draw.table(results), *draw.verdicts(results), sep="\n\n")
    print(f"\n{', '.join(str(options.out.with_suffix(suffix)) for suffix in ('.pdf', '.png', '.svg', '.csv'))}")
    if options.record:
        print(record(options.out.with_suffix(".csv")))
    return 0 if len(results) == len(options.points) else 1


def hosts() -> EmulatedHosts:
    """Return the emulated hosts of the testbed on which runs are measured."""
    return EmulatedHosts(points.HOSTS, points.CPU)


def parse_arguments() -> argparse.Namespace:
    """Parse and return the command-line arguments, to which ``points``, the list of the chosen runs, is added.

    Exits with a message if the arguments are wrong.
    """
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0])
    parser.add_argument("--simulated", action="store_true", help="leave out the runs that need root and a testbed")
    parser.add_argument("--task", choices=TASKS, action="append", help="task of the runs; both by default")
    parser.add_argument("--method", action="append", metavar="NAME", help="method of the runs; all by default")
    parser.add_argument("--rate", action="append", metavar="RATE", help="rate of the links; all by default")
    parser.add_argument("--dry-run", action="store_true", help="only print the number of runs and their duration")
    parser.add_argument("--out", type=Path, default=Path("results/figure-atlas.pdf"), help="(default: %(default)s)")
    add_workers(parser)
    add_record(parser)
    options = parse_once(parser)

    def wanted(point: AtlasRun) -> bool:
        return (
            point.task in (options.task or TASKS)
            and (options.method is None or point.method in options.method)
            and (options.rate is None or point.rate in options.rate)
        )

    options.points = [p for p in (*measured_points(), *simulated_points()) if wanted(p)]
    if options.simulated:
        options.points = [point for point in options.points if not point.measured]
    try:
        for task in {point.task for point in options.points}:  # model_bytes() raises an error if data are missing
            analytic.model_bytes(task)
    except UsageError as error:
        parser.error(str(error))
    if not options.points:
        parser.error("no run has this task, method and rate")
    return options


if __name__ == "__main__":
    sys.exit(main())
