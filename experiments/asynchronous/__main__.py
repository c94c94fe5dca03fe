"""Do we need asynchronous SGD? m-synchronous SGD against asynchronous methods, in simulated time::

    python -m experiments.asynchronous --dry-run       # how many runs, and for how long
    python -m experiments.asynchronous                 # ``make verdict-asynchronous``; a quarter of an hour of a core

A server's 8 workers take equal times for a gradient, random ones, or such as differ from worker to worker. Each method
is tuned on each of these distributions, by seeds used for nothing else, and then compared by others; the fastest of
each side, the synchronous and the asynchronous one, are held against each other with yet others. What is there already
is not made again, so it goes on where it was ended. In the end: a figure, two tables, all figures as CSV, and what they
say of the claim that m-synchronous SGD is optimal up to a logarithm.
"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from experiments.arguments import add_record, add_workers
from experiments.asynchronous import draw, make
from experiments.asynchronous.plan import number_of_runs
from experiments.asynchronous.points import DISTRIBUTIONS
from experiments.asynchronous.verdict import verdicts
from experiments.figures import record, save, write_csv
from experiments.tables.draw import as_svg
from grsgd.errors import UsageError

PROGRAM = "python -m experiments.asynchronous"


def main() -> int:
    options = parse_arguments()
    folder = options.out.parent / "asynchronous"
    folder.mkdir(parents=True, exist_ok=True)
    results = make.there(options.distribution, folder)
    missing = max(0, number_of_runs(len(options.distribution)) - len(results))
    print(
        f"{len(results)} runs are there; about {missing} more, some more still where the best learning rate is at an "
        f"end of the grid, take about {make.hours(missing, options.workers) * 60:.0f} minutes\n",
        flush=True,
    )
    if options.dry_run:
        return 0
    try:
        with tqdm(total=missing, desc="runs", disable=not missing) as bar:
            make.complete(results, options.distribution, folder, options.workers, bar.update)
    except UsageError as error:  # the data are not there
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    figure = draw.draw(results)
    save(figure, options.out)
    options.out.with_suffix(".svg").write_text(as_svg(figure), encoding="utf-8")
    write_csv(results, options.out.with_suffix(".csv"))
    print(draw.overview(results), draw.table(results), *verdicts(results), sep="\n\n")
    print(f"\n{', '.join(str(options.out.with_suffix(suffix)) for suffix in ('.pdf', '.png', '.svg', '.csv'))}")
    if options.record:
        print(record(options.out.with_suffix(".csv")))
    return 0


def parse_arguments() -> argparse.Namespace:
    """End the program where the arguments are wrong, or the data are not there."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0].rstrip(":"))
    parser.add_argument("--distribution", choices=DISTRIBUTIONS, action="append", help="by default all")
    parser.add_argument("--dry-run", action="store_true", help="only say how many runs there are, and for how long")
    parser.add_argument(
        "--out", type=Path, default=Path("results/verdict-asynchronous.pdf"), help="(default: %(default)s)"
    )
    add_workers(parser)
    add_record(parser)
    options = parser.parse_args()
    options.distribution = list(dict.fromkeys(options.distribution or DISTRIBUTIONS))
    return options


if __name__ == "__main__":
    sys.exit(main())
