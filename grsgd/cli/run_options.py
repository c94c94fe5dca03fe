"""Command-line options of ``grsgd run``, as argparse reads them."""

import argparse

from grsgd.job.start import LAUNCHERS
from grsgd.machine.binding import WAYS


def add(sub: argparse.ArgumentParser):
    """Add the options of ``grsgd run`` to its parser."""
    sub.usage = (
        "grsgd run [-h] [-n RANKS] [--hosts HOSTS] [--restarts N] [--spares K] [--launcher LAUNCHER] [-v] [--dry-run] "
        "(CONFIG.toml | SCRIPT.py | -m MODULE) ..."
    )
    sub.add_argument(
        "-n", "-np", dest="ranks", type=int, metavar="RANKS", help="number of ranks (default: Slurm's number of tasks)"
    )
    sub.add_argument(
        "--spares",
        type=int,
        metavar="K",
        help="go on when processes die (grsgd.surviving in a script); the last K of the RANKS processes wait, and take "
        "the ranks of processes that die; K may be 0",
    )
    sub.add_argument(
        "--hosts",
        metavar="a:4,b:4",
        help="hosts with their numbers of ranks; hosts that the RANKS do not need are spare (default: Slurm's nodes)",
    )
    sub.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="start the job again on the hosts that answer, from its checkpoints, after the loss of a host, at most N "
        "times (default: 0)",
    )
    sub.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="auto",
        help="program that starts the ranks (default: mpiexec; in a Slurm allocation srun, if it works)",
    )
    sub.add_argument(
        "--bind",
        choices=WAYS,
        help="whether ranks bind themselves to cores of their own (default: auto, in an allocation of Slurm)",
    )
    sub.add_argument(
        "-v", "--verbose", action="store_true", help="also print the environment variables of the launcher's command"
    )
    sub.add_argument(
        "--dry-run", action="store_true", help="only print the launcher's command with its environment variables"
    )
    sub.add_argument(
        "target",
        metavar="CONFIG.toml|SCRIPT.py",
        help="configuration to train, script or folder of a script, -m MODULE, or python with its arguments",
    )
    arguments = sub.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="options of grsgd train, or of the script"
    )
    arguments.required = False
