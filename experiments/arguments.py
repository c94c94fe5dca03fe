"""Command-line arguments that the programs of several experiments share."""

import argparse
import sys

from grsgd.comm.driver import available_cores
from grsgd.errors import SetupError
from grsgd.job.foreign_launchers import check_alone


def parse_once(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse and return the command-line arguments of a program that itself starts ranks.

    End the process if a launcher such as mpiexec has started several processes of the program.
    """
    options = parser.parse_args()
    try:
        check_alone(parser.prog)
    except SetupError as error:
        if error.is_printed:
            print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    return options


def add_workers(parser: argparse.ArgumentParser):
    """Add ``--workers``, by default the number of cores that this process may use."""
    parser.add_argument(
        "--workers", type=positive, default=available_cores(), help="simulations at once (default: %(default)s)"
    )


def add_record(parser: argparse.ArgumentParser):
    """Add the option ``--record`` to a parser."""
    parser.add_argument("--record", action="store_true", help="keep the numbers next to the pages that quote them")


def positive(text: str) -> int:
    """Return the whole number in ``text``; raise ArgumentTypeError unless it is 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, 1 or more")
    return int(text)
