"""Checks on which the results page relies, in addition to intervals.

The results of the checks are in docs/results/trust.json. One check is the rate of wrong verdicts if there is no
effect. The other check repeats recorded simulated runs, and compares the results to twelve digits::

    python -m experiments.tables.trust [--runs 10] [--draws 2000] [--seed 1]

The repeated runs are taken from results/SCALE, into which ``make tables-recorded`` has copied them.
"""

import argparse
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.papers import ROOT
from experiments.runner.outcome import Outcome
from experiments.runner.run_spec import SIMULATED, TIMING_ONLY
from experiments.tables import checks, nulls
from experiments.tables.report import read_outcomes
from grsgd.runs.run_file import Run, load_run
from grsgd.training.description import commit

RECORD = ROOT / "docs" / "results" / "trust.json"
"""JSON file with the results of the last checks."""
DIGITS = 12
"""Number of digits that must be equal in a repeated run.

More than ``DIGITS`` digits cannot be compared, because the last digits of a sum depend on the order of its summands.
"""
TIMEOUT = 1800
"""Greatest number of seconds that a repeated run may take."""


@dataclass(frozen=True)
class Trust:
    """The results of the checks that were made on one day, at one commit.

    wrong_supported, wrong_refuted: the greatest rates of wrong verdicts over all nulls (`nulls.greatest`), in per cent
    of ``draws`` findings per null. made: number of repeated runs. equal: number of repeated runs with equal results.
    """

    date: str
    commit: str
    draws: int
    wrong_supported: float
    wrong_refuted: float
    made: int
    equal: int


def is_same(one: Run, other: Run) -> bool:
    """Return True if two runs have the same curve, times, counts and traffic, up to ``DIGITS`` digits."""
    pairs = [(getattr(one, part), getattr(other, part)) for part in ("curve", "ranks", "traffic", "staleness")]
    return all(a.keys() == b.keys() and all(are_same(a[key], b[key]) for key in a) for a, b in pairs)


def are_same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=10.0**-DIGITS, atol=0, equal_nan=a.dtype.kind == "f")


def simulated_runs(outcomes: Iterable[Outcome]) -> list[dict[str, str]]:
    """Return the simulated runs of outcomes whose run files exist, without repetitions, in the order of their files."""
    found = {
        run["file"]: run
        for outcome in outcomes
        for run in outcome.runs
        if run["source"] in (SIMULATED, TIMING_ONLY) and Path(run["file"]).exists()
    }
    return [found[file] for file in sorted(found)]


def comes_out_the_same(run: dict[str, str], folder: Path) -> bool:
    """Return True if a recorded run gives the same result when it is made again in ``folder``."""
    again = folder / "again.h5"
    words = [sys.executable, "-m", *shlex.split(run["command"]), "--out", str(again)]
    subprocess.run(words, check=True, timeout=TIMEOUT, stdout=subprocess.DEVNULL)
    return is_same(load_run(run["file"]), load_run(again))


def try_anew(outcomes: Iterable[Outcome], runs: int, draws: int, seed: int) -> Trust:
    """Return the greatest rates of wrong verdicts over all nulls, and the results of repeated runs.

    runs: number of recorded runs that are drawn and repeated. draws: number of findings that are drawn for each null.
    """
    there = simulated_runs(outcomes)
    drawn = random.Random(seed).sample(there, min(runs, len(there)))
    with tempfile.TemporaryDirectory() as folder:
        same = [comes_out_the_same(run, Path(folder)) for run in drawn]
    for run in (run for run, is_equal in zip(drawn, same, strict=True) if not is_equal):
        print(f"differs when repeated: {run['command']}", file=sys.stderr)
    wrong = nulls.greatest(draws, seed)
    day = time.strftime("%Y-%m-%d")
    return Trust(day, str(commit()), draws, round(wrong.above, 2), round(wrong.below, 2), len(drawn), sum(same))


def main(arguments: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="number of runs at each scale that are repeated")
    parser.add_argument("--draws", type=int, default=2000, help="number of findings of each null")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random draws")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the scales' outcomes")
    given = parser.parse_args(arguments)
    outcomes = [outcome for folder in sorted(given.results.iterdir()) for outcome in read_outcomes(folder)[0].values()]
    found = try_anew(outcomes, given.runs, given.draws, given.seed)
    checks.save(found, RECORD)
    print(RECORD)


if __name__ == "__main__":
    main()
