"""Numbers behind the page, as tables that a browser saves: the page holds them, so that it needs no file beside it."""

import base64
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.tables.claims import PaperResult
from experiments.tables.outcome import Case, Figure, Outcome

CASE_COLUMNS = ("paper", "claim", "target", *Case.__dataclass_fields__)


def cases_csv(results: Iterable[PaperResult]) -> str:
    """Return all cases of all claims, in ``CASE_COLUMNS``."""
    rows = [
        {**vars(case), "paper": paper.id, "claim": result.claim["id"], "target": outcome.target}
        for paper in results
        for result in paper.claims
        for outcome, finding in result.found
        for case in finding.cases
    ]
    return as_csv(rows, CASE_COLUMNS)


def runs_csv(outcome: Outcome) -> str:
    """Return the runs of an outcome, with the numbers of each."""
    return as_csv(outcome.runs, list(dict.fromkeys(key for run in outcome.runs for key in run)))


def as_csv(rows: Sequence[Mapping], columns: Sequence[str]) -> str:
    """Return the rows as text; what a row does not have is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_link(text: str, kind: str = "text/csv") -> str:
    """Return an address that holds the whole text, so that the page needs no file beside it."""
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def figure_data(folder: Path, figure: Figure) -> str:
    """Return the numbers of a figure, as CSV; empty if there are none beside it."""
    path = (folder / figure.svg).with_suffix(".csv")
    return path.read_text(encoding="utf-8") if path.exists() else ""


def seeds_of(folder: Path, figure: Figure) -> str:
    """Return how many seeds what the figure shows has; empty if no seed has a part in it."""
    seeds = {}
    for row in csv.DictReader(io.StringIO(figure_data(folder, figure))):
        if row["seed"]:
            seeds.setdefault((row["panel"], row["series"]), set()).add(row["seed"])
    numbers = sorted(map(len, seeds.values()))
    if not numbers:
        return ""
    least, most = numbers[0], numbers[-1]
    return f"{most} seed{'s' * (most != 1)}" if least == most else f"{least} to {most} seeds"
