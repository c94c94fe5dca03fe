"""Are Swing and Bine faster than other all-reduces, and do they send less over long links? In simulated time::

    python -m experiments.swing                       # ``make verdict-swing``; a few minutes of a core
    python -m experiments.swing --network "torus 8x8"

The program simulates all-reduces of arrays of 4 KiB to 64 MiB on tori, dragonflies and trees. Each rank sends one
message at a time, and the ranks are placed on the network in the order of their numbers. On tori, the program also
simulates all-reduces made for a torus, which send in all directions at once. The program prints two tables and
verdicts on the papers' claims, and writes all numbers as CSV. The results have no intervals, because nothing in the
simulation is random.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tqdm import tqdm

from experiments.arguments import add_record, add_workers
from experiments.figures import record, write_csv
from experiments.swing import tables
from experiments.swing.measure import measure, points
from experiments.swing.networks import SETTINGS
from experiments.swing.verdict import verdicts

PROGRAM = "python -m experiments.swing"


def main() -> int:
    options = parse_arguments()
    todo = points(options.network)
    with ProcessPoolExecutor(options.workers) as pool:
        results = dict(zip(todo, tqdm(pool.map(measure, todo), desc="all-reduces", total=len(todo)), strict=True))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(results, options.out)
    print(tables.times(results), tables.traffic(results), *verdicts(results), options.out, sep="\n\n")
    if options.record:
        print(record(options.out))
    return 0


def parse_arguments() -> argparse.Namespace:
    """Parse and return the command-line arguments; exit with a message if they are wrong."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0].rstrip(":"))
    parser.add_argument("--network", choices=SETTINGS, action="append", help="network; all by default")
    parser.add_argument("--out", type=Path, default=Path("results/verdict-swing.csv"), help="(default: %(default)s)")
    add_workers(parser)
    add_record(parser)
    options = parser.parse_args()
    options.network = list(dict.fromkeys(options.network or SETTINGS))
    return options


if __name__ == "__main__":
    sys.exit(main())
