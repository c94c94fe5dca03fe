"""The options of ``python -m experiments.tables``."""

import argparse
from pathlib import Path

from experiments.arguments import add_workers
from experiments.runner.scale import IMAGENET, SCALES
from experiments.tables.targets import chosen

PROGRAM = "python -m experiments.tables"


def parse_arguments(description: str) -> argparse.Namespace:
    """Also sets ``targets``; ends the program where the arguments are wrong."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=description)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a table or figure, or a paper, for all of its (default: all)"
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
        help="begin no run that by its estimate would end after this time; the same command goes on",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="make nothing; say how long the runs would take")
    what.add_argument("--fresh", action="store_true", help="remove all runs of the scale first")
    what.add_argument("--record", action="store_true", help="only pack the runs that are there into docs/results")
    what.add_argument("--recorded", action="store_true", help="train nothing: show the runs in docs/results")
    what.add_argument("--report", action="store_true", help="only write the report, from the results that are there")
    what.add_argument(
        "--results-page", action="store_true", help="only write docs/results.md, from the results that are there"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder for runs and reports (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.imagenet:
        options.scale = IMAGENET.name
    try:
        options.targets = [] if options.report or options.results_page else chosen(options.names)
    except ValueError as error:
        parser.error(str(error))
    if own := [setting for setting in options.set if setting.partition("=")[0].strip() in ("seed", "optimizer.lr")]:
        parser.error(f"--set {own[0]}: seeds and learning rates are the targets' own")
    if (options.fresh or options.record) and options.names:
        parser.error(f"{'--fresh removes' if options.fresh else '--record packs'} all runs of the scale: give no names")
    if options.record and options.set:
        parser.error("--record packs what the targets themselves ask for: no --set")
    return options
