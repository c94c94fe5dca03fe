"""Measurement of the time and bytes that one packet for several receivers saves: CSSGD by IP multicast on a testbed::

    python -m experiments.multicast                       # ``make verdict-multicast``; root, half an hour
    python -m experiments.multicast --ranks 4 --rounds 3

Hosts on a shared medium of 100 Mbit/s train a model of 3.2 MB, with little computing per step. The reference is a ring
all-reduce. A repetition of the ring all-reduce with other data is a control. Compared with the reference are CSSGD
with IP multicast, CSSGD with datagrams lost on purpose, the grouped schemes of CSSGD, and SSGD. CSSGD with the
broadcasts of MPI, which send a copy to each receiver, is a second control. In each round every method runs once.

A run whose run file exists is not repeated. The program prints one table per number of ranks, and verdicts, and writes
a CSV file. A table has the median over the rounds and its 95 % interval. With fewer than five rounds, a table has the
range of the values in place of the interval.
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
"""Least number of ranks that the command-line option ``--ranks`` allows."""
RUN_SECONDS = Seconds(10.0, 10.0)
"""Approximate seconds of a run, for its training and for everything else."""
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
    """Parse and return the command-line arguments; exit with a message if they are wrong."""
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
