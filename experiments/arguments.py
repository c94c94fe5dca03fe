"""Arguments that several experiments take."""

import argparse

from grsgd.comm.driver import available_cores


def add_workers(parser: argparse.ArgumentParser):
    """Add ``--workers``, by default as many as this process may use cores."""
    parser.add_argument(
        "--workers", type=positive, default=available_cores(), help="simulations at once (default: %(default)s)"
    )


def add_record(parser: argparse.ArgumentParser):
    """Add ``--record``."""
    parser.add_argument("--record", action="store_true", help="keep the numbers beside the pages that quote them")


def positive(text: str) -> int:
    """Return the whole number, 1 or more, in a text; raises ArgumentTypeError if it is none."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, 1 or more")
    return int(text)
