"""Command-line options of ``grsgd sweep``, as argparse reads them."""

import argparse


def add(sub: argparse.ArgumentParser):
    """Add the options of ``grsgd sweep`` to its parser."""
    sub.usage = "grsgd sweep [-h] -n RANKS --vary KEY=A,B ... [--jobs N] [--simulate] [--out FOLDER] CONFIG.toml ..."
    sub.add_argument("-n", dest="ranks", type=int, required=True, metavar="RANKS", help="number of ranks of every run")
    sub.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="KEY=A,B",
        help="values of a key, such as optimizer.lr=0.05,0.1; may be repeated: all combinations are run",
    )
    sub.add_argument(
        "--simulate", action="store_true", help="simulate the runs, as grsgd simulate does, in place of real training"
    )
    sub.add_argument(
        "--jobs",
        default="1",
        metavar="N",
        help="runs at a time, limited by the cores: a core per rank, or per simulation; or auto (default: %(default)s)",
    )
    of_files = "folder of the run files, the table and the plot (default: %(default)s)"
    sub.add_argument("--out", default="results/sweep", metavar="FOLDER", help=of_files)
    sub.add_argument("config", metavar="CONFIG.toml", help="configuration of the runs")
    sub.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="options of grsgd train, or of grsgd simulate"
    )
