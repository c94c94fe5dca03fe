"""Measurement of the time and bytes that one packet for several receivers saves: CSSGD by IP multicast on a testbed::

    python -m experiments.multicast                       # ``make verdict-multicast``; root, half an hour
    python -m experiments.multicast --ranks 4 --rounds 3

Hosts on a shared medium of 100 Mbit/s train a model of 3.2 MB with little computing. The reference is a ring
all-reduce, and the same all-reduce, once more, is a control. The compared methods are CSSGD with IP multicast, CSSGD
with datagrams lost on purpose, the grouped schemes, and SSGD. CSSGD with MPI's broadcasts is another control. In each
round every method runs once.

Runs that exist are not repeated. The results are one table per number of ranks, verdicts, and a CSV file. A table has
the median of the rounds and its 95 % interval. With fewer than five rounds, the range replaces the interval.
"""

import argparse
import sys
from pathlib import Path

from experiments.arguments import add_record, parse_once
from experiments.figures import record, write_csv
from experiments.multicast.measure import TIMEOUT, SharedMedium, numbers_of, plan_runs
from experiments.multicast.verdict import table, verdicts
from experiments.runner.costs import Seconds
from experiments.runner.kept import KeptRuns
from experiments.runner.parallel import Unfinished
from grsgd.testbed.hosts import TestbedError

PROGRAM = "python -m experiments.multicast"
MIN_RANKS = 4
"""Least number of ranks that the option ``--ranks`` allows."""
RUN_SECONDS = Seconds(10.0, 10.0)
"""Approximate seconds of a run: of its training, and of all other work."""
OUT = Path("results/verdict-multicast.csv")


def main() -> int:
    options = parse_arguments()
    kept = KeptRuns(
        options.out.parent / "multicast",
        expect=lambda spec, cpu: RUN_SECONDS,
        on=SharedMedium(),
        run_timeout=TIMEOUT,
        in_order=True,
    )
    results = {}
    try:
        for ranks in options.ranks:
            runs = kept.make_all(plan_runs(ranks, options.rounds), f"{ranks} ranks")
            results |= {planned: numbers_of(run, planned.method) for planned, run in runs.items()}
    except (TestbedError, Unfinished) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    write_csv(results, options.out)
    for ranks in options.ranks:
        print(f"\n{ranks} ranks, {options.rounds} rounds", table(results, ranks), *verdicts(results, ranks), sep="\n\n")
    print(f"\n{options.out}")
    if options.record:
        print(record(options.out))
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the command's arguments; exit with a message if they are wrong."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0].rstrip(":"))
    parser.add_argument("--ranks", type=int, action="append", help="number of hosts, even; by default 4, and then 6")
    parser.add_argument("--rounds", type=int, default=5, help="number of runs of each method (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="(default: %(default)s)")
    add_record(parser)
    options = parse_once(parser)
    options.ranks = list(dict.fromkeys(options.ranks or (4, 6)))
    if wrong := [ranks for ranks in options.ranks if ranks < MIN_RANKS or ranks % 2]:
        parser.error(f"--ranks {wrong[0]}: must be even, {MIN_RANKS} or more")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
