"""Figures 8 to 15 of the CSSGD paper, measured on a shared medium with IP multicast, and counted in three ways::

    python -m experiments.multicast.figures                       # ``make figures-multicast``; root, forty minutes
    python -m experiments.multicast.figures --figure 12 --rounds 1
    python -m experiments.multicast.figures --dry-run             # the number of runs, and their duration

Hosts on a shared medium of 100 Mbit/s run SSGD by unicast and by multicast, CSSGD with every redundancy, the grouped
schemes of CSSGD, and ASGD. All methods use the same number of samples per step. In each round every method runs once;
SSGD by multicast runs twice, the second time as a control. A run whose run file exists is not repeated, so an
interrupted experiment continues where it stopped.

The program makes a picture and a table for each figure of the paper. The picture and the table show the measured
values. The picture and the table also show, for the same runs, the values that follow from three ways to count a
packet to several nodes. The program also writes a page that states which claims of the paper reproduce, and a CSV file
with all numbers.
"""

import argparse
import sys
from itertools import groupby
from pathlib import Path

from experiments.arguments import add_record, parse_once
from experiments.figures import record, write_csv
from experiments.multicast.figures import asgd, page
from experiments.multicast.figures.figures import FIGURES, Shown, wanted
from experiments.multicast.figures.plan import ALLOWED_NODES, CPU, NODES, Turn, turns
from experiments.multicast.figures.seconds import expect_seconds
from experiments.multicast.figures.views import group_runs, list_numbers
from experiments.multicast.measure import TIMEOUT, SharedMedium
from experiments.runner.costs import kind
from experiments.runner.kept import KeptRuns
from experiments.runner.parallel import Unfinished
from grsgd.comm.driver import available_cores
from grsgd.job.ending import exit_on_signals
from grsgd.runs.run_file import Run
from grsgd.testbed.hosts import TestbedError

PROGRAM = "python -m experiments.multicast.figures"
ROUNDS = 3
"""Number of rounds if the option ``--rounds`` is not given."""


def main() -> int:
    options = parse_arguments()
    todo = list(turns(wanted(options.figure, options.ranks), options.rounds))
    expected = {kind(turn.spec()): expect_seconds(turn) for turn in todo}
    kept = KeptRuns(
        options.out,
        expect=lambda spec, cpu: expected[kind(spec)],
        on=SharedMedium(CPU),
        run_timeout=TIMEOUT,
        in_order=True,
    )
    print(kept.forecast(todo, kept.load(todo)), flush=True)
    if options.dry_run:
        return 0
    exit_on_signals()
    try:
        runs = make_rounds(kept, todo)
    except (TestbedError, Unfinished) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    write(options, runs)
    return 0


def make_rounds(kept: KeptRuns, todo: list[Turn]) -> dict[Turn, Run]:
    """Make the missing runs, round by round, and return all runs of ``todo``. Raises TestbedError and Unfinished."""
    runs: dict[Turn, Run] = {}
    for number, turns_of_round in groupby(todo, key=lambda turn: turn.round):
        runs |= kept.make_all(turns_of_round, f"round {number + 1}")
    return runs


def write(options: argparse.Namespace, runs: dict[Turn, Run]):
    """Write the pictures, tables and numbers of the figures to files, and print the results page."""
    everything = group_runs(runs)
    write_csv(list_numbers(runs), options.out / "measured.csv")
    factors = {task: asgd.factors(task, options.ranks) for task in {FIGURES[k].task for k in options.figure if k > 13}}
    shown: dict[int, Shown] = {}
    for number in options.figure:
        figure = FIGURES[number]
        shown[number] = figure.show(figure.task, everything, options.ranks, factors.get(figure.task, {}))
        page.draw_figure(number, shown[number], options.out)
    text = "\n\n".join(page.page(shown, everything, options.ranks, options.rounds))
    (options.out / "page.md").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\n{options.out}")
    if options.record:
        print(record(options.out / "measured.csv", name="figures-multicast.csv"))


def parse_arguments() -> argparse.Namespace:
    """Parse and return the command-line arguments; exit with a message if they are wrong."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0].rstrip(":"))
    parser.add_argument("--figure", type=int, choices=FIGURES, action="append", help="figure; all by default")
    parser.add_argument("--ranks", type=int, action="append", help=f"nodes; by default {', '.join(map(str, NODES))}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each method (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="only print the number of runs and their duration")
    parser.add_argument(
        "--out", type=Path, default=Path("results/figures-multicast"), help="a folder (default: %(default)s)"
    )
    add_record(parser)
    options = parse_once(parser)
    options.figure = sorted(set(options.figure or FIGURES))
    options.ranks = sorted(set(options.ranks or NODES))
    if wrong := [ranks for ranks in options.ranks if ranks not in ALLOWED_NODES]:
        parser.error(f"--ranks {wrong[0]}: must be {min(ALLOWED_NODES)} to {max(ALLOWED_NODES)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be 1 or more")
    if not options.dry_run and (hosts := max(options.ranks) + 1) * CPU > available_cores():
        parser.error(f"--ranks {hosts - 1}: needs {hosts} hosts of {CPU:g} cores; here are {available_cores()} cores")
    return options


if __name__ == "__main__":
    sys.exit(main())
