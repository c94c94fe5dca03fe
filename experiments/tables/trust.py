"""Reasons to trust the page beside its intervals, tried anew and written to trust.json in docs/results.

They are how often a verdict is wrong where there is nothing, and whether recorded runs in simulated time come out the
same when they are made again, to twelve digits::

    python -m experiments.tables.trust [--runs 10] [--draws 2000] [--seed 1]

It takes the runs from results/SCALE, where ``make tables-recorded`` has put them.
"""

import argparse
import json
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.papers import ROOT
from experiments.runner.outcome import Outcome
from experiments.runner.run_spec import SIMULATED, TIMING_ONLY
from experiments.tables import nulls
from experiments.tables.report import read_outcomes
from grsgd.files import atomic_write
from grsgd.runs.run_file import Run, load_run
from grsgd.training.description import commit

RECORD = ROOT / "docs" / "results" / "trust.json"
DIGITS = 12
"""Of numbers that are to be the same: the last digit of a sum depends on the order of its parts."""
TIMEOUT = 1800
"""Seconds of a run that is made again."""


@dataclass(frozen=True)
class Trust:
    """The trials of one day, at one commit.

    wrong_supported, wrong_refuted: the greatest rates of wrong verdicts of all nulls, in per cent of findings, of which
    each null has ``draws``.
    made: how many runs were made again; equal: how many of them came out the same.
    """

    date: str
    commit: str
    draws: int
    wrong_supported: float
    wrong_refuted: float
    made: int
    equal: int


def load(path: Path) -> Trust | None:
    """Return what was tried; None if nothing was. Raises ValueError for a file that is damaged."""
    if not path.exists():
        return None
    try:
        return Trust(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged, make it again: {error}") from None


def is_same(one: Run, other: Run) -> bool:
    """Return whether two runs have the same curve, times, counts and traffic, to ``DIGITS`` digits."""
    pairs = [(getattr(one, part), getattr(other, part)) for part in ("curve", "ranks", "traffic", "staleness")]
    return all(a.keys() == b.keys() and all(are_same(a[key], b[key]) for key in a) for a, b in pairs)


def are_same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=10.0**-DIGITS, atol=0, equal_nan=a.dtype.kind == "f")


def simulated_runs(outcomes: Iterable[Outcome]) -> list[dict[str, str]]:
    """Return the runs in simulated time of outcomes, each once, by their files."""
    found = {
        run["file"]: run
        for outcome in outcomes
        for run in outcome.runs
        if run["source"] in (SIMULATED, TIMING_ONLY) and Path(run["file"]).exists()
    }
    return [found[file] for file in sorted(found)]


def comes_out_the_same(run: dict[str, str], folder: Path) -> bool:
    """Return whether a run that is made again, in a folder, is the one that is there."""
    again = folder / "again.h5"
    words = [sys.executable, "-m", *shlex.split(run["command"]), "--out", str(again)]
    subprocess.run(words, check=True, timeout=TIMEOUT, stdout=subprocess.DEVNULL)
    return is_same(load_run(run["file"]), load_run(again))


def try_anew(outcomes: Iterable[Outcome], runs: int, draws: int, seed: int) -> Trust:
    """Return what comes of each null and of recorded runs.

    runs: how many runs of the outcomes are drawn and made again. draws: how many findings of each null are drawn.
    """
    there = simulated_runs(outcomes)
    drawn = random.Random(seed).sample(there, min(runs, len(there)))
    with tempfile.TemporaryDirectory() as folder:
        same = [comes_out_the_same(run, Path(folder)) for run in drawn]
    for run in (run for run, is_equal in zip(drawn, same, strict=True) if not is_equal):
        print(f"not the same: {run['command']}", file=sys.stderr)
    *_, supported, refuted = zip(*nulls.table(draws, seed), strict=True)
    day = time.strftime("%Y-%m-%d")
    return Trust(day, str(commit()), draws, max(supported), max(refuted), len(drawn), sum(same))


def main(arguments: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="number of runs at each scale that are made again")
    parser.add_argument("--draws", type=int, default=2000, help="number of findings of each null")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the scales' outcomes")
    given = parser.parse_args(arguments)
    outcomes = [outcome for folder in sorted(given.results.iterdir()) for outcome in read_outcomes(folder)[0].values()]
    found = try_anew(outcomes, given.runs, given.draws, given.seed)
    with atomic_write(RECORD) as partly:
        partly.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    print(RECORD)


if __name__ == "__main__":
    main()
