"""How many small faults the unit tests find: ``python -m tests.mutants [--number 300] [--seed 0]``.

Each mutant is the code with one change, drawn at random or written down by hand (`changes.py`). In a process forked for
it, only those tests are run that reach the changed lines, quickest first, until one fails: then the mutant is killed.
The list of those that survive says where a test is missing. Exit code 0 if 90 % of those drawn are killed, and 95 % of
the dangerous ones. A first run records for minutes which tests reach which lines.

``--again`` takes those as killed that were so in earlier runs, if the file that they are in is the same and the test
that killed them still there: for after new tests, or an interrupted run.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from functools import partial

from tests.mutants import changes
from tests.mutants.changes import Mutant
from tests.mutants.reach import CACHE, Reach
from tests.mutants.trial import import_packages, in_children, killer

LEAST = {"random": 0.90, "dangerous": 0.95}
"""The share of the mutants that must be killed."""


class Campaign:
    """Every mutant's outcome: what killed it, or None."""

    def __init__(self, kinds: dict[str, list[Mutant]], reach: Reach, again: bool):
        self.kinds, self.reach = kinds, reach
        self.mutants = {mutant.name: mutant for mutants in kinds.values() for mutant in mutants}
        self.outcomes: dict[str, str | None] = {}
        self.file = CACHE / "killed.json"
        self.killed: dict[str, str] = json.loads(self.file.read_text()) if self.file.exists() else {}
        """Of all runs, by the mutant's text: what killed it."""
        for name, mutant in self.mutants.items() if again else ():
            test = self.killed.get(key_of(mutant))
            if test is not None and ("::" not in test or test in reach.seconds):
                self.outcomes[name] = test

    def run(self, processes: int, most_seconds: float, show: bool):
        began = time.perf_counter()
        works = {}
        for name, mutant in self.mutants.items():
            if name not in self.outcomes:
                tests = self.reach.tests(mutant, most_seconds)
                if tests:
                    works[name] = partial(killer, mutant, tests)
                else:
                    self.outcomes[name] = None

        def done(name, result, output):
            self.outcomes[name] = result
            if show:
                print(output)
            if result is None:
                self.killed.pop(key_of(self.mutants[name]), None)
            else:
                self.killed[key_of(self.mutants[name])] = result
            self.file.write_text(json.dumps(self.killed, indent=0))
            minutes = (time.perf_counter() - began) / 60
            survivors = sum(test is None for test in self.outcomes.values())
            say(f"{len(self.outcomes)} of {len(self.mutants)} mutants, {survivors} survive, {minutes:.1f} minutes")

        in_children(works.items(), processes, done)

    def report(self, reasons: dict[str, str]) -> bool:
        """Print what was found; returns whether enough were killed."""
        survivors = [mutant for name, mutant in self.mutants.items() if self.outcomes[name] is None]
        same = [mutant for mutant in survivors if mutant.name in reasons]
        alive = {mutant.name for mutant in survivors if mutant.name not in reasons}
        counted = {kind: [m for m in mutants if m not in same] for kind, mutants in self.kinds.items()}
        everything = Counter(mutant.path for mutants in counted.values() for mutant in mutants)
        left = Counter(self.mutants[name].path for name in alive)
        print(f"\n{'file':40} killed")
        for path, number in sorted(everything.items()):
            print(f"{path:40} {number - left[path]:3} of {number:3}")
        if same:
            print("\nequivalent:")
            for mutant in same:
                print(f"{mutant}: {reasons[mutant.name]}")
        if alive:
            print("\nsurvivors:")
            for name in sorted(alive):
                print(f"{self.mutants[name]}  [{name}]")
        print()
        enough = True
        for kind, mutants in counted.items():
            if mutants:
                killed = sum(mutant.name not in alive for mutant in mutants)
                enough &= killed >= LEAST[kind] * len(mutants)
                share = killed / len(mutants)
                print(f"{kind}: {killed} of {len(mutants)} killed, {share:.1%} ({LEAST[kind]:.0%} wanted)")
        return enough


def key_of(mutant: Mutant) -> str:
    return f"{mutant.name} {hashlib.sha256(mutant.text.encode()).hexdigest()[:16]}"


def say(line: str):
    """A line of progress, which the next one overwrites on a terminal."""
    print(f"{line:70}", end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=300, help="how many are drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", nargs="+", metavar="FILE", help="change these files only")
    parser.add_argument("--name", nargs="+", help="only the mutants of these names; shows what their tests print")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0, help="of tests for a mutant, at most")
    parser.add_argument("--again", action="store_true", help="mutants killed in earlier runs count as killed")
    options = parser.parse_args()
    code = changes.files()
    paths = options.files or code
    unknown = sorted(set(paths) - set(code))
    if unknown:
        parser.error(f"not among the files that are changed: {', '.join(unknown)}")
    kinds = {
        "random": changes.drawn(paths, options.number, options.seed),
        "dangerous": changes.dangerous(paths),
    }
    reasons = changes.equivalent()
    if options.name:
        for name in options.name:
            if not any(mutant.name == name for mutants in kinds.values() for mutant in mutants):
                path = name.partition(":")[0]
                kinds["random"] += [m for m in (changes.all_of(path) if path in code else ()) if m.name == name]
        kinds = {kind: [m for m in mutants if m.name in options.name] for kind, mutants in kinds.items()}
        if sum(map(len, kinds.values())) != len(set(options.name)):
            parser.error("there is no mutant of that name")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or what runs would go on
    os.environ["OMP_NUM_THREADS"] = "1"
    import_packages()
    reach = Reach(code, options.processes, say)
    for test in reach.failed:
        print(f"fails without a mutant, and is left out: {test}")
    campaign = Campaign(kinds, reach, options.again)
    campaign.run(options.processes, options.seconds, bool(options.name))
    return 0 if campaign.report(reasons) else 1


if __name__ == "__main__":
    sys.exit(main())
