"""Comparison of the verdicts of a recording of a scale with the verdicts of a second recording from another day.

    git clone . ../second && make -C ../second tables        # on another day: new runs, calibrations and learning rates
    python -m experiments.tables.repetition ../second/results

The program compares each case of docs/results/cases.csv with the same case of the second recording, and writes
repetition.csv and repetition.json into docs/results. The page of results says how many verdicts are the same. The
simulator's errors in the second recording are in repetition-errors.csv.
"""

import argparse
import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.papers import ROOT, YEARS, folder
from experiments.runner.outcome import ALIKE, EVIDENCE, OFF, REFUTED, SUPPORTED
from experiments.runner.scale import SCALES, SMOKE
from experiments.tables import checks, downloads
from experiments.tables.scale_result import ScaleResult
from grsgd.files import atomic_write

FOLDER = ROOT / "docs" / "results"
RECORD, TABLE, ERRORS = "repetition.json", "repetition.csv", "repetition-errors.csv"
OF_A_CASE = ("paper", "claim", "target", "condition", "baseline", "unit", "source")
"""Columns that identify a case (one comparison under one condition)."""
RATIO = re.compile(r"(T_?comm / T_?calc) = [^,;]*")
"""Pattern for a measured ratio in a condition, which no second recording repeats exactly."""
NUMBERS = ("estimate", "low", "high")
OF_A_RECORDING = ("verdict", "kind", *NUMBERS)
"""Columns with the results of a case, which both recordings have."""
COLUMNS = (*OF_A_CASE, *OF_A_RECORDING, *(f"{name}_again" for name in OF_A_RECORDING))
ANSWERS = {SUPPORTED: "for", REFUTED: "against", ALIKE: "against"}
"""Results of decided cases: for or against their claims."""


@dataclass(frozen=True)
class Repetition:
    """Comparison of the verdicts of two recordings (sets of all runs) of a scale.

    date, machines, commits: when, where and by which code the second recording was made. cases: number of cases that
    count as evidence in both recordings, and whose numbers differ, so that they were made anew. same: number of cases
    with the same verdict; a refuted case and a case without a difference are both against the claim. once: number of
    cases that are decided in one recording only. reversed: number of cases that are for the claim in one recording and
    against it in the other. missing: number of cases that count as evidence in the first recording, and not in the
    second. off: number of missing cases that do not count in the second recording because of the simulator's error.
    apart: by the paper's folder, the number of cases that count as evidence in the first recording, and whose intervals
    do not overlap.
    """

    scale: str
    date: str
    machines: str
    commits: str
    cases: int
    same: int
    once: int
    reversed: int
    missing: int
    off: int
    apart: dict[str, int]


def compare(first: Iterable[dict[str, str]], second: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Return the cases (comparisons) of the first recording, each as a row with the columns `COLUMNS`.

    The arguments are rows of the tables of cases. The columns of the second recording are empty for a case that it
    lacks. Cases with the same name are compared in their order, if both recordings have the same number of them.
    """
    again = by_name(second)
    rows = []
    for name, cases in by_name(first).items():
        others = again.get(name, [])
        others = others if len(others) == len(cases) else [dict.fromkeys(OF_A_RECORDING, "")] * len(cases)
        for case, other in zip(cases, others, strict=True):
            rows.append({**case, **{f"{column}_again": other[column] for column in OF_A_RECORDING}})
    return rows


def by_name(cases: Iterable[dict[str, str]]) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Return the cases (comparisons) by their names, which lack the measured ratios in conditions."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for case in cases:
        found.setdefault(tuple(RATIO.sub(r"\1", case[column]) for column in OF_A_CASE), []).append(case)
    return found


def counts(rows: Sequence[dict[str, str]]) -> dict[str, int | dict[str, int]]:
    """Return the numbers of cases for the fields of a `Repetition`."""
    there = [row for row in rows if row["kind"] == EVIDENCE]
    both = [row for row in there if row["kind_again"] == EVIDENCE]
    anew = [row for row in both if any(row[name] != row[f"{name}_again"] for name in NUMBERS)]
    pairs = [(ANSWERS.get(row["verdict"]), ANSWERS.get(row["verdict_again"])) for row in anew]
    return {
        "cases": len(pairs),
        "same": sum(one == other for one, other in pairs),
        "once": sum((one is None) != (other is None) for one, other in pairs),
        "reversed": sum({one, other} == {"for", "against"} for one, other in pairs),
        "missing": len(there) - len(both),
        "off": sum(row["kind_again"] == OFF for row in there),
        "apart": dict(Counter(row["paper"] for row in there if are_apart(row))),
    }


def are_apart(row: dict[str, str]) -> bool:
    """Return whether the intervals of a case in both recordings do not overlap; an unknown end counts as overlapping.
    """
    ends = [row[name] for name in ("high", "low_again", "high_again", "low")]
    if "" in ends:
        return False
    high, low_again, high_again, low = map(float, ends)
    return high < low_again or high_again < low


def repetition_of(scale: str, results: Path) -> tuple[Repetition, list[dict[str, str]], str]:
    """Return the comparison of recorded cases with the outcomes in ``results``, its rows, and the simulator's errors.

    The simulator's errors in the outcomes are returned as CSV. Raises ValueError if no case was made anew, and for
    damaged outcomes. Raises OSError if the scale has no recorded cases.
    """
    second = ScaleResult.of(results / scale, list(map(folder, YEARS)))
    with (FOLDER / downloads.CASES).open(newline="", encoding="utf-8") as file:
        first = [case for case in csv.DictReader(file) if case["scale"] == scale]
    rows = compare(first, csv.DictReader(io.StringIO(downloads.cases_csv(second.papers))))
    found = counts(rows)
    if not found["cases"]:
        raise ValueError(f"{results / scale}: no case was made anew: `make tables SCALE={scale}` in a new clone")
    errors = downloads.simulator_csv(second.outcomes.values())
    return Repetition(scale, second.span, second.machines, second.commits, **found), rows, errors


def main(arguments: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("results", type=Path, help="folder of the scales' outcomes in the second recording")
    parser.add_argument(
        "--scale", choices=sorted(SCALES), default=SMOKE.name, help="scale of both recordings (default: %(default)s)"
    )
    given = parser.parse_args(arguments)
    try:
        found, rows, errors = repetition_of(given.scale, given.results)
    except (ValueError, OSError) as error:
        sys.exit(f"experiments.tables.repetition: {error}")
    for name, text in ((TABLE, downloads.as_csv(rows, COLUMNS)), (ERRORS, errors)):
        with atomic_write(FOLDER / name) as partly:
            partly.write_text(text, encoding="utf-8")
    checks.save(found, FOLDER / RECORD)
    print(FOLDER / TABLE, FOLDER / ERRORS, FOLDER / RECORD, found, sep="\n")


if __name__ == "__main__":
    main()
