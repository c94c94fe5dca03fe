"""The command-line options of ``python -m experiments.tables``."""

import argparse
from pathlib import Path

from experiments.arguments import add_workers, parse_once
from experiments.runner.scale import IMAGENET, SCALES
from experiments.tables.targets import chosen

PROGRAM = "python -m experiments.tables"


def parse_arguments(description: str) -> argparse.Namespace:
    """Parse and return the command-line arguments, to which ``targets``, the list of chosen targets, is added.

    Exits with a message if the arguments are wrong.
    """
    parser = argparse.ArgumentParser(prog=PROGRAM, description=description)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a table, a figure, or a paper for all its tables (default: all)"
    )
    parser.add_argument(
        "--scale", choices=sorted(SCALES), default="smoke", help="sizes of the trainings (default: %(default)s)"
    )
    parser.add_argument(
        "--imagenet", type=Path, metavar="FOLDER", help="train on the ImageNet in this folder; sets --scale imagenet"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a value in every training"
    )
    add_workers(parser)
    parser.add_argument(
        "--hours",
        type=float,
        metavar="H",
        help="begin no run that would end after this time by its estimate; the same command continues later",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="make nothing; print the duration of the runs")
    what.add_argument("--fresh", action="store_true", help="remove all runs of the scale first")
    what.add_argument("--record", action="store_true", help="only pack the existing runs into docs/results")
    what.add_argument("--recorded", action="store_true", help="train nothing: show the runs in docs/results")
    what.add_argument("--report", action="store_true", help="only write the report, from the existing results")
    what.add_argument(
        "--results-page", action="store_true", help="only write docs/results.md, from the existing results"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder for runs and reports (default: %(default)s)"
    )
    options = parse_once(parser)
    if options.imagenet:
        options.scale = IMAGENET.name
    try:
        options.targets = [] if options.report or options.results_page else chosen(options.names)
    except ValueError as error:
        parser.error(str(error))
    if own := [setting for setting in options.set if setting.partition("=")[0].strip() in ("seed", "optimizer.lr")]:
        parser.error(f"--set {own[0]}: each target sets its own seeds and learning rates")
    if (options.fresh or options.record) and options.names:
        parser.error(f"{'--fresh removes' if options.fresh else '--record packs'} all runs of the scale: give no names")
    if options.record and options.set:
        parser.error("--record packs only runs without --set: leave --set out")
    return options
