"""Check whether a run need not be repeated; exit code 0 if so. Sweeps call it before they train.

``python slurm/finished.py FILE.h5 RANKS CONFIG.toml [--set key=value ...]``
"""

import argparse
import sys

from grsgd import config
from grsgd.config.sources import digests_of
from grsgd.errors import ConfigError
from grsgd.runs.finished import finished_run, is_tested


def finished(path: str, ranks: int, wanted: config.Config) -> bool:
    """Return whether the file has a run of this configuration on ``ranks`` ranks that completed or diverged.

    A run with an algorithm, a model or data in a file outside this package counts only if that file is unchanged.
    """
    run = finished_run(path, ranks=ranks, config=wanted.toml(), **digests_of(wanted))
    return run is not None and is_tested(run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", metavar="FILE.h5")
    parser.add_argument("ranks", type=int)
    parser.add_argument("config", metavar="CONFIG.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    try:
        wanted = config.load(options.config, options.set)
    except ConfigError:
        return 1  # the run itself will report the error
    return 0 if finished(options.path, options.ranks, wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
