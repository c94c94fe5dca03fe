"""Command-line arguments that several experiments have."""

import argparse

from grsgd.comm.driver import available_cores


def add_workers(parser: argparse.ArgumentParser):
    """Add ``--workers``, by default the number of cores that this process may use."""
    parser.add_argument(
        "--workers", type=positive, default=available_cores(), help="simulations at once (default: %(default)s)"
    )


def add_record(parser: argparse.ArgumentParser):
    """Add ``--record``."""
    parser.add_argument("--record", action="store_true", help="keep the numbers next to the pages that quote them")


def positive(text: str) -> int:
    """Return the whole number in a text; raise ArgumentTypeError unless it is 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, 1 or more")
    return int(text)
