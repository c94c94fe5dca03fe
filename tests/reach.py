"""Print the unit tests that reach a file, or a line of it: ``python -m tests.reach FILE[:LINE]``.

The tests are read from records, one of each file of tests, which ``--record`` or ``make mutants`` makes in minutes.
"""

import argparse
import os
import sys
from pathlib import Path

from tests.mutants.changes import ROOT, files
from tests.mutants.reach import Reach
from tests.mutants.trial import import_packages


def tests_that_reach(reach: Reach, path: str, line: int | None = None) -> list[str]:
    """Return the tests that reach any line of the file ``path``, or the line with the number ``line``."""
    lines = reach.lines[path]
    return sorted(set().union(*lines.values()) if line is None else lines.get(line, ()))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reach", description=__doc__.partition(":")[0])
    parser.add_argument("place", metavar="FILE[:LINE]", help="such as grsgd/comm/mailbox.py:40")
    parser.add_argument("--record", action="store_true", help="record first what each unit test reaches; minutes")
    options = parser.parse_args(arguments)
    name, _, number = options.place.partition(":")
    path = os.path.relpath(Path(name).resolve(), ROOT)
    code = files()
    if path not in code:
        parser.error(f"{path}: not among the files whose lines are recorded (FOLDERS in tests/mutants/changes.py)")
    if number and not number.isdecimal():
        parser.error(f"{options.place}: {number!r} is not the number of a line")
    if options.record:
        import_packages()
    reach = Reach(code, processes=2, say=lambda words: print(words, file=sys.stderr), anew=options.record)
    if not reach.seconds:
        parser.error("no records of what tests reach: --record makes them, in minutes")
    if reach.outdated:
        old = f"{len(reach.outdated)} of {len(reach.texts)} files of tests"
        print(f"{old} are not recorded with the code as it is: --record records them, in minutes", file=sys.stderr)
    found = tests_that_reach(reach, path, int(number) if number else None)
    print(*found or [f"no unit test reaches {options.place} in a function"], sep="\n")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
