"""Prints the name of a run file, and checks whether the run need not be repeated.

Sweeps of Slurm jobs call this script before each run. The command ``python slurm/finished.py BEGINNING RANKS
CONFIG.toml [--set key=value ...]`` prints ``BEGINNING-DIGEST.h5``. The digest depends on the configuration, the number
of ranks and the user's own code, so that runs of different settings have different files. The exit code is 0 if the
run need not be repeated.
"""

import argparse
import sys
from contextlib import redirect_stdout

from grsgd import config
from grsgd.config.sources import digest, digests_of
from grsgd.errors import ConfigError
from grsgd.runs.finished import finished_run, is_tested


def finished(path: str, ranks: int, wanted: config.Config) -> bool:
    """Return True if ``path`` has a run of the configuration ``wanted`` on ``ranks`` ranks that completed or diverged.

    If the run uses an algorithm, a model or data from a file of the user, this file must be unchanged.
    """
    run = finished_run(path, ranks=ranks, config=wanted.toml(), **digests_of(wanted))
    return run is not None and is_tested(run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("beginning", metavar="BEGINNING", help="path and beginning of the name of the run file")
    parser.add_argument("ranks", type=int, metavar="RANKS")
    parser.add_argument("config", metavar="CONFIG.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    try:
        with redirect_stdout(sys.stderr):  # a module of the user may print when it is imported
            wanted = config.load(options.config, options.set)
            path = f"{options.beginning}-{digest(wanted, options.ranks)}.h5"
            is_finished = finished(path, options.ranks, wanted)
    except ConfigError:
        print(f"{options.beginning}.h5")
        return 1  # with exit code 1, the sweep begins the run, which reports the error
    print(path)
    return 0 if is_finished else 1


if __name__ == "__main__":
    sys.exit(main())
