"""A second recording of a scale, made on another day: which of its verdicts are those of the first one.

    git clone . ../second && cd ../second && make setup
    make tables                                      # on another day: all runs anew, with their own calibrations
    cd -; python -m experiments.tables.repetition ../second/results

The program compares the cases of both recordings, and writes repetition.csv and repetition.json into docs/results. The
page of results says how many verdicts are the same.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.papers import ROOT, YEARS, folder
from experiments.runner.outcome import EVIDENCE
from experiments.runner.scale import SMOKE
from experiments.tables import downloads
from experiments.tables.answers import DECIDED
from experiments.tables.scale_result import ScaleResult
from grsgd.files import atomic_write

FOLDER = ROOT / "docs" / "results"
RECORD, TABLE = "repetition.json", "repetition.csv"
OF_A_CASE = ("paper", "claim", "target", "condition", "baseline", "ours", "unit", "source")
"""Columns that name a case; cases with equal names are told apart by their order."""
NUMBERS = ("estimate", "low", "high")
COLUMNS = (*OF_A_CASE, "kind", "verdict", *NUMBERS, "again", *(f"{name}_again" for name in NUMBERS))


@dataclass(frozen=True)
class Repetition:
    """Comparison of the verdicts of two recordings of a scale.

    date, machine, commits: of the second recording. cases: number of cases in both recordings that count as evidence
    in the first one. same: number of cases with the same verdict. once: number of cases that are decided in one
    recording only. reversed: number of cases with two different decisions.
    """

    scale: str
    date: str
    machine: str
    commits: str
    cases: int
    same: int
    once: int
    reversed: int


def compare(first: Iterable[dict[str, str]], second: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Return the cases of both recordings, each as a row with the columns `COLUMNS`, from rows of tables of cases."""
    again = dict(named(second))
    rows = []
    for name, case in named(first):
        if name in again:
            other = {f"{key}_again": again[name][key] for key in NUMBERS}
            rows.append({**case, **other, "again": again[name]["verdict"]})
    return rows


def named(cases: Iterable[dict[str, str]]) -> Iterable[tuple[tuple[str, ...], dict[str, str]]]:
    """Yield the name of each case, and the case."""
    seen: dict[tuple[str, ...], int] = {}
    for case in cases:
        name = tuple(case[column] for column in OF_A_CASE)
        seen[name] = seen.get(name, 0) + 1
        yield (*name, str(seen[name])), case


def counts(rows: Sequence[dict[str, str]]) -> dict[str, int]:
    """Return the numbers of cases of a `Repetition`."""
    pairs = [(row["verdict"], row["again"]) for row in rows if row["kind"] == EVIDENCE]
    decided = [(one in DECIDED) + (other in DECIDED) for one, other in pairs]
    same = [one == other for one, other in pairs]
    return {
        "cases": len(pairs),
        "same": sum(same),
        "once": decided.count(1),
        "reversed": sum(number == 2 and not is_same for number, is_same in zip(decided, same, strict=True)),
    }


def load(path: Path) -> Repetition | None:
    """Return the comparison in a file; None if it does not exist. Raises ValueError for a damaged file."""
    if not path.exists():
        return None
    try:
        return Repetition(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged, make it again: {error}") from None


def main(arguments: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("results", type=Path, help="folder of the scales' outcomes in the second recording")
    parser.add_argument("--scale", default=SMOKE.name, help="scale of both recordings (default: %(default)s)")
    given = parser.parse_args(arguments)
    second = ScaleResult.of(given.results / given.scale, list(map(folder, YEARS)))
    if not second.outcomes:
        sys.exit(f"{given.results / given.scale}: no outcomes: `make tables SCALE={given.scale}` makes some")
    with (FOLDER / downloads.CASES).open(newline="", encoding="utf-8") as file:
        first = [case for case in csv.DictReader(file) if case["scale"] == given.scale]
    rows = compare(first, csv.DictReader(downloads.cases_csv(second.papers).splitlines()))
    found = Repetition(given.scale, second.span, second.told("machine"), second.commits, **counts(rows))
    for name, content in (
        (TABLE, downloads.as_csv(rows, COLUMNS)),
        (RECORD, json.dumps(asdict(found), indent=1) + "\n"),
    ):
        with atomic_write(FOLDER / name) as partly:
            partly.write_text(content, encoding="utf-8")
        print(FOLDER / name)
    print(found)


if __name__ == "__main__":
    main()
