"""Numbers behind the page, as tables that a browser saves: the page holds them, so that it needs no file beside it."""

import base64
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.runner.outcome import BreakEven, Case, Figure, Outcome
from experiments.tables.claims import PaperResult

CASE_COLUMNS = ("scale", "paper", "claim", "target", *Case.__dataclass_fields__)


def cases_csv(results: Iterable[PaperResult]) -> str:
    """Return all cases of all claims, in ``CASE_COLUMNS``."""
    rows = [
        {**vars(case), "scale": outcome.scale, "paper": paper.id, "claim": result.claim["id"], "target": outcome.target}
        for paper in results
        for result in paper.claims
        for outcome, finding in result.found
        for case in finding.cases
    ]
    return as_csv(rows, CASE_COLUMNS)


def seeds_csv(outcomes: Iterable[Outcome]) -> str:
    """Return every run that outcomes rest on, each once at its scale, with its numbers and its commit."""
    found = {}
    for outcome in outcomes:
        for run in outcome.runs:
            file = Path(run.get("file", "")).name
            found[outcome.scale, file, run["command"]] = {"scale": outcome.scale, **run, "file": file}
    rows = [{key: value for key, value in row.items() if key != "command"} for row in found.values()]
    return as_csv(rows, list(dict.fromkeys(key for row in rows for key in row)))


def runs_csv(outcome: Outcome) -> str:
    """Return the runs of an outcome, with the numbers of each."""
    return as_csv(outcome.runs, list(dict.fromkeys(key for run in outcome.runs for key in run)))


def simulator_csv(outcomes: Iterable[Outcome]) -> str:
    """Return how far simulated times are from measured ones of the same trainings, as shares."""
    rows = [
        {"scale": outcome.scale, "target": outcome.target, "algorithm": name, "error": error}
        for outcome in outcomes
        for name, error in outcome.simulator_errors
    ]
    return as_csv(rows, ("scale", "target", "algorithm", "error"))


def break_evens_csv(found: Iterable[BreakEven]) -> str:
    """Return from which ratios of communication to computation on methods save time."""
    return as_csv([vars(one) for one in found], list(BreakEven.__dataclass_fields__))


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
