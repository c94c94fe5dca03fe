"""Compares the verdicts of two recordings of a scale (size of the experiments), which were made on two days.

    git clone . ../second && make -C ../second tables        # on another day: new runs, calibrations and learning rates
    python -m experiments.tables.repetition ../second/results

The program compares each case (comparison) in docs/results/cases.csv with the case of the same name in the second
recording. The program writes repetition.csv and repetition.json into docs/results. The results page quotes how many
verdicts are equal in the two recordings. The file repetition-errors.csv has the simulator's errors in the second
recording.
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
"""Columns of the table of cases that identify a case (one comparison under one condition)."""
RATIO = re.compile(r"(T_?comm / T_?calc) = [^,;]*")
"""Pattern for a measured ratio in the condition of a case; a second recording measures a slightly different ratio."""
NUMBERS = ("estimate", "low", "high")
OF_A_RECORDING = ("verdict", "kind", *NUMBERS)
"""Columns of the table of cases with the results of a case, which each recording has."""
COLUMNS = (*OF_A_CASE, *OF_A_RECORDING, *(f"{name}_again" for name in OF_A_RECORDING))
ANSWERS = {SUPPORTED: "for", REFUTED: "against", ALIKE: "against"}
"""Decided verdicts on a case, each with "for" or "against" the claim."""


@dataclass(frozen=True)
class Repetition:
    """The result of the comparison of two recordings (sets of all runs) of a scale.

    date, machines, commits: when, where and by which code the second recording was made. cases: number of cases that
    count as evidence in both recordings, and whose numbers differ, so that the cases were made anew. same: number of
    ``cases`` with equal verdicts; the verdicts "refuted" and "no difference" are both against the claim. once: number
    of ``cases`` that are decided in one recording only. reversed: number of ``cases`` that are for the claim in one
    recording and against it in the other. missing: number of cases that count as evidence in the first
    recording, but not in the second. off: number of missing cases that do not count in the second recording because of
    the simulator's error. apart: by the paper's folder, number of cases that count as evidence in the first recording,
    and whose intervals in the two recordings do not overlap.
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
    """Return the cases of the first recording, each as a row with the columns `COLUMNS`.

    ``first`` and ``second`` are the rows of the tables of cases of the two recordings. If the second recording lacks a
    case, the row has empty columns for the second recording. Cases with equal names are compared in their order if
    each recording has the same number of them.
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
    """Return the cases by name.

    The name of a case has the case's condition without measured ratios.
    """
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for case in cases:
        found.setdefault(tuple(RATIO.sub(r"\1", case[column]) for column in OF_A_CASE), []).append(case)
    return found


def counts(rows: Sequence[dict[str, str]]) -> dict[str, int | dict[str, int]]:
    """Return the numbers of cases for the fields of a `Repetition`, by the name of the field."""
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
    """Return True if the intervals of a case in the two recordings do not overlap.

    If an end of an interval is unknown, False is returned.
    """
    ends = [row[name] for name in ("high", "low_again", "high_again", "low")]
    if "" in ends:
        return False
    high, low_again, high_again, low = map(float, ends)
    return high < low_again or high_again < low


def repetition_of(scale: str, results: Path) -> tuple[Repetition, list[dict[str, str]], str]:
    """Return the comparison of the recorded cases with the outcomes in ``results``, and its rows.

    The third returned value has the simulator's errors in the outcomes, as CSV text. Raises ValueError if none of the
    cases was made anew, or if an outcome is damaged. Raises OSError if the scale has no recorded cases.
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
