"""Whether a run need not be made any more; exit code 0 if so. Sweeps ask before they train.

``python slurm/finished.py FILE.h5 RANKS CONFIG.toml [--set key=value ...]``
"""

import argparse
import sys

from grsgd import config
from grsgd.results import RunFileError, load_run


def finished(path: str, ranks: int, wanted: config.Config) -> bool:
    """Whether the file has a run of this configuration on so many ranks that trained to its end."""
    try:
        attributes = load_run(path).attributes
    except RunFileError:
        return False
    return (
        attributes["stopped"] in config.ENDS
        and attributes.get("ranks") == ranks
        and attributes.get("config") == wanted.toml()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", metavar="FILE.h5")
    parser.add_argument("ranks", type=int)
    parser.add_argument("config", metavar="CONFIG.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    try:
        wanted = config.load(options.config, options.set)
    except config.ConfigError:
        return 1  # the run itself will say what is wrong
    return 0 if finished(options.path, options.ranks, wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
