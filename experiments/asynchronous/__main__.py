"""Do we need asynchronous SGD? m-synchronous SGD against asynchronous methods, in simulated time::

    python -m experiments.asynchronous --dry-run       # the number of runs, and their duration
    python -m experiments.asynchronous                 # ``make verdict-asynchronous``; a quarter of an hour of a core

In every run, a parameter server has 8 workers. A distribution of times says how long each worker computes a gradient:
equally long, randomly long, or longer for some workers than for others. The learning rate of each method is tuned on
each distribution of times, with seeds that are used only for tuning. After tuning, all methods are compared in runs
with seeds that were not used for tuning. The fastest synchronous and the fastest asynchronous method are compared once
more, with further seeds.

A run whose run file exists is not repeated, so an interrupted experiment continues where it stopped. The program
writes a figure, two tables, all numbers as CSV, and a verdict on the claim that m-synchronous SGD is optimal up to a
logarithmic factor.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from experiments.arguments import add_record, add_workers
from experiments.asynchronous import draw
from experiments.asynchronous.plan import list_missing, number_of_runs
from experiments.asynchronous.points import DISTRIBUTIONS, StrategyRun
from experiments.asynchronous.result import StrategyNumbers
from experiments.asynchronous.verdict import verdicts
from experiments.figures import record, save, write_csv
from experiments.runner.costs import Seconds
from experiments.runner.kept import KeptRuns
from experiments.runner.parallel import Unfinished
from experiments.tables.draw import as_svg
from grsgd.runs.run_file import Run

PROGRAM = "python -m experiments.asynchronous"
RUN_SECONDS = 1.2
"""Approximate seconds of one simulation on one core, as the mean over all simulations."""


def main() -> int:
    options = parse_arguments()
    folder = options.out.parent / "asynchronous"
    kept = KeptRuns(folder, options.workers, lambda spec, cpu: Seconds(RUN_SECONDS, 0.0))
    results = find_results(kept, options.distribution)
    missing = max(0, number_of_runs(len(options.distribution)) - len(results))
    print(
        f"{len(results)} runs exist; about {missing} more, and a few more if the best learning rate is at an end of "
        f"the grid, take about {hours_of(kept, missing) * 60:.0f} minutes\n",
        flush=True,
    )
    if options.dry_run:
        return 0
    try:
        make_results(kept, options.distribution, results)
    except Unfinished as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    figure = draw.draw(results)
    save(figure, options.out)
    options.out.with_suffix(".svg").write_text(as_svg(figure), encoding="utf-8")
    write_csv(results, options.out.with_suffix(".csv"))
    print(draw.overview(results), draw.table(results), *verdicts(results), sep="\n\n")
    print(f"\n{', '.join(str(options.out.with_suffix(suffix)) for suffix in ('.pdf', '.png', '.svg', '.csv'))}")
    if options.record:
        print(record(options.out.with_suffix(".csv")))
    return 0


def find_results(kept: KeptRuns, distributions: Iterable[str]) -> dict[StrategyRun, StrategyNumbers]:
    """Return the results of the existing runs, without runs that the plan no longer contains.

    The results of some runs determine which other runs the plan contains.
    """
    results: dict[StrategyRun, StrategyNumbers] = {}
    while found := kept.load(list_missing(distributions, results)):
        results |= numbers_of(found)
    return results


def make_results(kept: KeptRuns, distributions: Iterable[str], results: dict[StrategyRun, StrategyNumbers]):
    """Make the runs that do not exist yet, round by round, and add their results to ``results``. Raises Unfinished."""
    while missing := list_missing(distributions, results):
        results |= numbers_of(kept.make_all(missing))


def numbers_of(runs: dict[StrategyRun, Run]) -> dict[StrategyRun, StrategyNumbers]:
    """Return for each run the numbers by which it is compared with other runs (`StrategyNumbers`)."""
    return {planned: StrategyNumbers.of(planned, run) for planned, run in runs.items()}


def hours_of(kept: KeptRuns, count: int) -> float:
    """Return the approximate hours that ``count`` runs take."""
    any_run = next(iter(list_missing(DISTRIBUTIONS, {})))
    return kept.hours(Counter({any_run.spec(): count}))


def parse_arguments() -> argparse.Namespace:
    """Parse and return the command-line arguments; exit with a message if they are wrong."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0].rstrip(":"))
    parser.add_argument("--distribution", choices=DISTRIBUTIONS, action="append", help="times; all by default")
    parser.add_argument("--dry-run", action="store_true", help="only print the number of runs and their duration")
    parser.add_argument(
        "--out", type=Path, default=Path("results/verdict-asynchronous.pdf"), help="figure (default: %(default)s)"
    )
    add_workers(parser)
    add_record(parser)
    options = parser.parse_args()
    options.distribution = list(dict.fromkeys(options.distribution or DISTRIBUTIONS))
    return options


if __name__ == "__main__":
    sys.exit(main())
