"""The numbers behind the results page as CSV texts, which the page itself contains as links that a browser can save."""

import base64
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.runner.outcome import BreakEven, Case, Figure, Outcome
from experiments.tables.claims import PaperResult

CASES = "cases.csv"
"""Name of the CSV file with all comparisons (cases), in the folder of the papers' pages."""
CASE_COLUMNS = ("scale", "paper", "claim", "target", *Case.__dataclass_fields__)
"""Columns of the CSV table of all comparisons (cases)."""


def cases_csv(results: Iterable[PaperResult]) -> str:
    """Return all comparisons (cases) on all claims as CSV text, with the columns ``CASE_COLUMNS``."""
    rows = [
        {**vars(case), "scale": outcome.scale, "paper": paper.id, "claim": result.claim["id"], "target": outcome.target}
        for paper in results
        for result in paper.claims
        for outcome, finding in result.found
        for case in finding.cases
    ]
    return as_csv(rows, CASE_COLUMNS)


def seeds_csv(outcomes: Iterable[Outcome]) -> str:
    """Return all runs on which outcomes rest as CSV text, once per scale, with the runs' numbers and commits."""
    found = {}
    for outcome in outcomes:
        for run in outcome.runs:
            file = Path(run.get("file", "")).name
            found[outcome.scale, file, run["command"]] = {"scale": outcome.scale, **run, "file": file}
    rows = [{key: value for key, value in row.items() if key != "command"} for row in found.values()]
    return as_csv(rows, list(dict.fromkeys(key for row in rows for key in row)))


def runs_csv(outcome: Outcome) -> str:
    """Return the runs on which an outcome rests as CSV text, with the numbers of each run."""
    return as_csv(outcome.runs, list(dict.fromkeys(key for run in outcome.runs for key in run)))


def simulator_csv(outcomes: Iterable[Outcome]) -> str:
    """Return the relative differences of simulated from measured times of equal trainings, as CSV text."""
    rows = [
        {"scale": outcome.scale, "target": outcome.target, "algorithm": name, "error": error}
        for outcome in outcomes
        for name, error in outcome.simulator_errors
    ]
    return as_csv(rows, ("scale", "target", "algorithm", "error"))


def break_evens_csv(found: Iterable[BreakEven]) -> str:
    """Return, as CSV text, the ratios of communication to computing time from which on methods save time."""
    return as_csv([vars(one) for one in found], list(BreakEven.__dataclass_fields__))


def as_csv(rows: Sequence[Mapping], columns: Sequence[str]) -> str:
    """Return ``rows`` as CSV text; if a row lacks a column, the cell is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_link(text: str, kind: str = "text/csv") -> str:
    """Return a ``data:`` link that contains the whole text, so that the page needs no further file."""
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def figure_data(folder: Path, figure: Figure) -> str:
    """Return the numbers of a figure as CSV text; "" if the figure has no CSV file."""
    path = (folder / figure.svg).with_suffix(".csv")
    return path.read_text(encoding="utf-8") if path.exists() else ""


def seeds_of(folder: Path, figure: Figure) -> str:
    """Return the number of seeds behind a figure as text; "" if the figure's numbers do not depend on seeds."""
    seeds = {}
    for row in csv.DictReader(io.StringIO(figure_data(folder, figure))):
        if row["seed"]:
            seeds.setdefault((row["panel"], row["series"]), set()).add(row["seed"])
    numbers = sorted(map(len, seeds.values()))
    if not numbers:
        return ""
    least, most = numbers[0], numbers[-1]
    return f"{most} seed{'s' * (most != 1)}" if least == most else f"{least} to {most} seeds"
