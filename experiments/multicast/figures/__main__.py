"""Figures 8 to 15 of the CSSGD paper, measured on a shared medium with IP multicast, beside three ways to count::

    python -m experiments.multicast.figures                       # ``make figures-multicast``; root, forty minutes
    python -m experiments.multicast.figures --figure 12 --rounds 1
    python -m experiments.multicast.figures --dry-run             # how many runs, and for how long

SSGD by unicast and by multicast, CSSGD with every redundancy, grouped schemes and ASGD take steps of as many samples on
hosts that share a medium of 100 Mbit/s. In each round every method has its turn, SSGD by multicast twice, the second
time as a control. What is there already is not made again, so it goes on where it was ended. In the end: for each
figure a picture, in which the measurement stands beside what each way to count packets to several nodes says of the
same runs, and a table; in words which claims of the paper reproduce; and all numbers as CSV.
"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from experiments.arguments import add_record
from experiments.figures import record, write_csv
from experiments.multicast.figures import asgd, page
from experiments.multicast.figures.figures import FIGURES, Shown, wanted
from experiments.multicast.figures.make import Forecast, file_of, kept, make
from experiments.multicast.figures.plan import ALLOWED_NODES, CPU, NODES, Turn, turns
from experiments.multicast.figures.views import found, results
from experiments.runner.parallel import Unfinished
from experiments.runner.progress import duration
from grsgd.comm.driver import available_cores
from grsgd.job.ending import exit_on_signals
from grsgd.runs.run_file import Run, load_run
from grsgd.testbed.hosts import TestbedError

PROGRAM = "python -m experiments.multicast.figures"
ROUNDS = 3


def main() -> int:
    options = parse_arguments()
    todo = list(turns(wanted(options.figure, options.ranks), options.rounds))
    folder = options.out / "runs"
    runs = {turn: run for turn in todo if (run := kept(turn, folder)) is not None}
    missing = [turn for turn in todo if turn not in runs]
    forecast = Forecast()
    minutes = forecast.minutes(missing)
    print(f"{len(todo)} runs, of which {len(runs)} are there; the others take about {minutes:.0f} minutes", flush=True)
    if options.dry_run:
        return 0
    exit_on_signals()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        runs |= complete(missing, folder, forecast)
    except (TestbedError, Unfinished) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    write(options, {turn: runs[turn] for turn in todo})
    return 0


def complete(missing: list[Turn], folder: Path, forecast: Forecast) -> dict[Turn, Run]:
    """Make the runs that are missing, and say for how long. Raises TestbedError and Unfinished."""
    left, made = dict.fromkeys(missing), {}
    layout = "{desc}: {n_fmt} of {total_fmt} |{bar:24}| {elapsed}{postfix}"
    with tqdm(desc="runs", total=len(missing), bar_format=layout, disable=not missing) as bar:
        forecast.begin()
        for turn in make(missing, folder, bar.write):
            made[turn] = load_run(file_of(turn, folder))
            forecast.made(turn)
            del left[turn]
            bar.set_postfix_str(f"about {duration(forecast.minutes(left) / 60)} left; {turn}", refresh=False)
            bar.update()
    return made


def write(options: argparse.Namespace, runs: dict[Turn, Run]):
    """Write pictures, tables and numbers of the figures, and print the page."""
    everything = found(runs)
    write_csv(results(runs), options.out / "measured.csv")
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
    """End the program where the arguments are wrong."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0].rstrip(":"))
    parser.add_argument("--figure", type=int, choices=FIGURES, action="append", help="by default all")
    parser.add_argument("--ranks", type=int, action="append", help=f"nodes; by default {', '.join(map(str, NODES))}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each method (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="only say how many runs there are, and for how long")
    parser.add_argument(
        "--out", type=Path, default=Path("results/figures-multicast"), help="a folder (default: %(default)s)"
    )
    add_record(parser)
    options = parser.parse_args()
    options.figure = sorted(set(options.figure or FIGURES))
    options.ranks = sorted(set(options.ranks or NODES))
    if wrong := [ranks for ranks in options.ranks if ranks not in ALLOWED_NODES]:
        parser.error(f"--ranks {wrong[0]}: must be {min(ALLOWED_NODES)} to {max(ALLOWED_NODES)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be 1 or more")
    if not options.dry_run and (hosts := max(options.ranks) + 1) * CPU > available_cores():
        parser.error(f"--ranks {hosts - 1}: {hosts} hosts of {CPU:g} cores; here are {available_cores()} cores")
    return options


if __name__ == "__main__":
    sys.exit(main())
