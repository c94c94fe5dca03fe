"""The atlas: methods that exchange less often, over links of 10 Mbit/s to 1 Gbit/s, with and without a straggler::

    python -m experiments.atlas --dry-run              # how many runs, and for how long
    sudo .venv/bin/python -m experiments.atlas         # what ``make figure-atlas`` does; hours
    python -m experiments.atlas --simulated            # without root: in simulated time alone

The language model and a CNN are trained on four hosts, by every method that exchanges every so many steps; 234 runs in
simulated time and 70 on the testbed, whose interfaces count the bytes as well. What is there already is not made again,
so it goes on where it was ended. In the end: a figure, a table, all figures as CSV, and what they say of the formula by
which such figures are drawn in the literature.
"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from experiments.arguments import add_record, add_workers
from experiments.atlas import draw, make
from experiments.atlas.points import TASKS, Point, measured_points, simulated_points
from experiments.figures import record, write_csv
from experiments.runner.parallel import Unfinished
from grsgd.errors import UsageError
from grsgd.runs.run_file import load_run
from grsgd.testbed.hosts import TestbedError

PROGRAM = "python -m experiments.atlas"


def main() -> int:
    options = parse_arguments()
    folder = options.out.parent / "atlas"
    folder.mkdir(parents=True, exist_ok=True)
    points = [point for point in options.points if make.kept(point, folder) is None]
    print(
        f"{len(options.points)} runs, of which {len(options.points) - len(points)} are there; the others take about "
        f"{make.hours(points, options.workers):.1f} hours",
        flush=True,
    )
    if options.dry_run:
        return 0
    try:
        with tqdm(total=len(points), desc="runs", disable=not points) as bar:
            simulated, measured = ([p for p in points if p.measured is on_testbed] for on_testbed in (False, True))
            for _ in make.measured(measured, folder, bar.write):
                bar.update()
            for _ in make.simulated(simulated, folder, options.workers):
                bar.update()
    except (TestbedError, Unfinished) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    runs = {point: load_run(make.file_of(point, folder)) for point in options.points if make.kept(point, folder)}
    results = {point: draw.Result.of(point, run, folder) for point, run in runs.items()}
    draw.draw(results, options.out)
    write_csv(results, options.out.with_suffix(".csv"))
    print(draw.table(results), *draw.verdicts(results), sep="\n\n")
    print(f"\n{', '.join(str(options.out.with_suffix(suffix)) for suffix in ('.pdf', '.png', '.svg', '.csv'))}")
    if options.record:
        print(record(options.out.with_suffix(".csv")))
    return 0 if len(results) == len(options.points) else 1


def parse_arguments() -> argparse.Namespace:
    """Also sets ``points``; ends the program where the arguments are wrong."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0])
    parser.add_argument("--simulated", action="store_true", help="leave out what needs root and a testbed")
    parser.add_argument("--task", choices=TASKS, action="append", help="by default both")
    parser.add_argument("--method", action="append", metavar="NAME", help="by default all")
    parser.add_argument("--rate", action="append", metavar="RATE", help="of links; by default all")
    parser.add_argument("--dry-run", action="store_true", help="only say how many runs there are, and for how long")
    parser.add_argument("--out", type=Path, default=Path("results/figure-atlas.pdf"), help="(default: %(default)s)")
    add_workers(parser)
    add_record(parser)
    options = parser.parse_args()

    def wanted(point: Point) -> bool:
        return (
            point.task in (options.task or TASKS)
            and (options.method is None or point.method in options.method)
            and (options.rate is None or point.rate in options.rate)
        )

    options.points = [p for p in (*measured_points(), *simulated_points()) if wanted(p)]
    if options.simulated:
        options.points = [point for point in options.points if not point.measured]
    try:
        make.hours(options.points[:1], 1)  # the data are there
    except UsageError as error:
        parser.error(str(error))
    if not options.points:
        parser.error("there is no such point")
    return options


if __name__ == "__main__":
    sys.exit(main())
