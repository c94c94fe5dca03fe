"""Tables of runs as text, Markdown, LaTeX, CSV or JSON, for ``grsgd report``. A table has one row per run or, for a
single run, one row per rank."""

import csv
import io
import json
import os
import textwrap
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from grsgd.errors import RunFileError
from grsgd.runs import columns as available
from grsgd.runs.cables import busiest_cables
from grsgd.runs.columns import (
    AnyColumn,
    Column,
    Key,
    by_importance,
    chosen,
    data_and_model,
    early_ends,
    or_none,
    shown_by_default,
)
from grsgd.runs.measures import PARTS, bytes_sent, final_consensus, is_virtual, median_staleness
from grsgd.runs.numbers import UNKNOWN, human_bytes, known_values, median_and_range, number, significant
from grsgd.runs.run_file import Run
from grsgd.runs.settings import differing
from grsgd.runs.several import by_experiment, load_runs, names, ranks_of, seeds_of
from grsgd.runs.spread import MEDIAN, SPREADS, Spread
from grsgd.runs.table import TextColumn, fitted, latex, markdown, stacked
from grsgd.text import printable

FORMATS = ("text", "md", "csv", "json", "latex")
WIDTH = 120
"""Number of characters per line if the output is no terminal."""


def report(
    paths: Sequence[str | os.PathLike],
    group: bool | str | None = False,
    form: str = "md",
    wanted: Sequence[str] | None = None,
    everything: bool = False,
    width: int = WIDTH,
    skip: Callable[[RunFileError], None] | None = None,
) -> str:
    """Return a table of the runs in the files ``paths``, with one row per run in the given order, and a legend below
    the table.

    If ``group`` is given, runs that differ only in the seed share a row. If ``group`` is "median" or True, a shared row
    shows the median, with the least and greatest value in brackets. If ``group`` is "mean", a shared row shows the mean
    and half of its 95 % interval. ``form`` is one of ``FORMATS``; "text" is for terminals, "csv" and "json" have
    unrounded numbers. ``wanted`` has the names of the columns; by default the columns are chosen by the content of the
    runs. If
    ``everything`` is True and ``form`` is "text", columns that do not fit into ``width`` characters follow in further
    tables. ``skip`` is called with the error of each file that cannot be read.

    If ``paths`` has a single file and ``wanted`` is None, text and Markdown have two more tables: a table of the ranks,
    and a table of the busiest cables of a simulated network. Raises RunFileError for a file that ``load_run`` refuses,
    and UsageError for unknown columns.
    """
    paths, runs = load_runs(paths, skip)
    groups = by_experiment(runs) if group else [[i] for i in range(len(runs))]
    rows = [[runs[i] for i in members] for members in groups]
    firsts = [paths[members[0]] for members in groups]
    labels = names(firsts, [row[0] for row in rows], short=form == "text")
    labels = [", ".join(filter(None, [label, seeds_of(row)])) for label, row in zip(labels, rows, strict=True)]
    spread = SPREADS.get(group, MEDIAN)
    if form in ("csv", "json"):
        records = _records(labels, firsts, rows, chosen(runs, wanted) if wanted else None, group and spread)
        return _csv(records) if form == "csv" else json.dumps(records, indent=1, allow_nan=False, ensure_ascii=False)
    if form == "text":
        return "\n\n".join(_text(labels, rows, wanted, everything, width, spread))
    columns = chosen(runs, wanted) if wanted else shown_by_default(runs)
    table = _text_columns(labels, rows, columns, spread)
    if form == "latex":
        return latex(table)
    parts = [markdown(table), _legend(columns, rows, WIDTH, spread), *_savings(labels, rows)]
    if len(paths) == 1 and not wanted:
        parts.append(f"{labels[0]}:\n\n{markdown(_ranks_columns(runs[0]))}")
        if (cables := busiest_cables(runs[0])) is not None:
            parts.append(f"{cables[0]}\n\n{markdown(cables[1])}")
    return "\n\n".join(parts)


# ---- functions for reports on terminals


def _text(
    labels: list[str],
    rows: list[list[Run]],
    wanted: Sequence[str] | None,
    everything: bool,
    width: int,
    spread: Spread,
) -> list[str]:
    """Return the parts of a report for a terminal (paragraphs and tables), with lines of at most ``width``
    characters."""
    runs = [run for row in rows for run in row]
    columns = chosen(runs, wanted) if wanted else _for_terminal(runs)
    known = columns if wanted else [column for column in columns if _tells(column, columns, runs)]
    table, left_out = _laid_out(
        _text_columns(labels, rows, known, spread), width, by_importance(columns), everything or bool(wanted)
    )
    shown = [column for column in known if column.name not in left_out]
    parts = [_wrapped(_common(runs), width), table]
    parts += [_wrapped(line, width) for line in _early_lines(labels, rows)]
    notes = [_legend(shown, rows, width, spread)]
    if left_out:
        names = ", ".join(left_out)
        notes.append(_wrapped(f"No room for {names}: --all shows all columns, --columns A,B,C selects some.", width))
    if unknown := [column.name for column in columns if column not in known]:
        notes.append(_wrapped(f"Not measured: {', '.join(unknown)}.", width))
    parts += ["\n".join(notes), *(_wrapped(line, width) for line in _savings(labels, rows))]
    if len(runs) == 1 and not wanted:
        ranks, narrow = _ranks_columns(runs[0]), "rank compute communicate wait steps sent received".split()
        table, left_out = _laid_out(ranks, width, [*narrow, *(column.name for column in ranks)], everything)
        parts.append(table)
        if left_out:
            parts.append(_wrapped(f"No room for {', '.join(left_out)}: --all shows them.", width))
        if (cables := busiest_cables(runs[0])) is not None:
            table, _ = _laid_out(cables[1], width, [column.name for column in cables[1]], everything)
            parts.append(f"{_wrapped(cables[0], width)}\n{table}")
    return parts


def _tells(column: AnyColumn, columns: Sequence[AnyColumn], runs: list[Run]) -> bool:
    """Return whether ``column`` has known values for ``runs``. For the column of the time to the target, return True if
    models were tested, because an empty column shows that no run reached the target."""
    if column.name == "to_target":
        return any(other.name.startswith("best") and other.is_known(runs) for other in columns)
    return column.is_known(runs)


def _laid_out(
    table: list[TextColumn], width: int, by_importance: Sequence[str], everything: bool
) -> tuple[str, list[str]]:
    return (stacked(table, width), []) if everything else fitted(table, width, by_importance)


def _for_terminal(runs: list[Run]) -> list[AnyColumn]:
    """Return the columns of a table for a terminal. Values that are equal for all runs have no column, because they are
    printed above the table. Reasons of early ends are printed below the table."""
    columns = available.all_columns(runs)
    shown = [column for column in shown_by_default(runs) if column.name != "reason"]
    if len({data_and_model(run) for run in runs}) == 1:
        shown = shown[1:]
    return [columns["ended"], *shown] if columns["reason"].is_known(runs) else shown


def _common(runs: list[Run]) -> str:
    """Return one line with the facts (data set, ranks, batch size, seed, clock) that are equal for all runs."""
    facts = (data_and_model, ranks_of, _batch, lambda run: f"seed {run.attributes['seed']}", _clock)
    found = [{fact(run) for run in runs} for fact in facts]
    return ", ".join(one.pop() for one in found if len(one) == 1 and not one & {"", UNKNOWN})


def _batch(run: Run) -> str:
    batch = run.attributes.get("batch_size")
    return f"{batch} samples per rank and step" if batch else ""


def _clock(run: Run) -> str:
    if not is_virtual(run):
        return "measured"
    how = [run.attributes[name] for name in ("network", "compute") if run.attributes.get(name)]
    return f"simulated ({'; '.join(how)})" if how else "simulated"


def _early_lines(labels: list[str], rows: list[list[Run]]) -> list[str]:
    ends = [early_ends(row) for row in rows]
    return [f"{label} stopped early: {end}" for label, end in zip(labels, ends, strict=True) if end]


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(printable(text), width)


# ---- functions for the table of runs


def _text_columns(
    labels: list[str], rows: list[list[Run]], columns: Sequence[AnyColumn], spread: Spread
) -> list[TextColumn]:
    cells = [
        TextColumn(column.name, column.title, [column.cell(row, spread) for row in rows], isinstance(column, Column))
        for column in columns
    ]
    return [TextColumn("run", "algorithm", labels, is_number=False), *cells]


def _legend(columns: Sequence[AnyColumn], rows: list[list[Run]], width: int, spread: Spread) -> str:
    """Return a text with the meaning of each column. Titles are given without units, unless two columns differ only in
    the unit."""
    stems = [column.title.split(" [")[0] for column in columns]
    titles = [column.title if stems.count(stem) > 1 else stem for column, stem in zip(columns, stems, strict=True)]
    meanings = [f"{title}: {column.meaning}" for title, column in zip(titles, columns, strict=True) if column.meaning]
    text = "; ".join(meanings) + "." if meanings else ""
    if any(len(row) > 1 for row in rows):
        text += f" Several seeds: {spread.note}; n of m: known for n of m runs."
    if any(is_virtual(run) for row in rows for run in row):
        text += " Simulated: all times and rates are in simulated seconds"
        text += ", but simulating is real." if "simulating" in stems else "."
    return textwrap.fill(text.strip(), width)


def _savings(labels: list[str], rows: list[list[Run]]) -> list[str]:
    """Return lines on the bytes that adaptive communication saves, and on the final consensus distance of runs with
    adaptive communication. Each table row with adaptive communication is compared with each row that has equal settings
    but no adaptive communication."""
    lines = []
    for label, runs in zip(labels, rows, strict=True):
        for other_label, others in zip(labels, rows, strict=True):
            if not (_is_adaptive(runs[0]) and not _is_adaptive(others[0]) and _setting(runs[0]) == _setting(others[0])):
                continue
            if not _median(others, _sent_per_sample):
                continue
            saving = 1 - _median(runs, _sent_per_sample) / _median(others, _sent_per_sample)
            lines.append(
                f"{label}, adaptive, sent {saving:.1%} less per sample than {printable(other_label)}, and ended with a "
                f"consensus distance of {significant(_median(runs, final_consensus))} instead of "
                f"{significant(_median(others, final_consensus))}."
            )
    return lines


def _is_adaptive(run: Run) -> bool:
    return bool(run.attributes.get("depends_on_values"))


def _setting(run: Run) -> tuple:
    """Return the attributes of ``run`` that two runs must share before their bytes can be compared."""
    names = ("algorithm", "ranks", "dataset", "model", "batch_size", "clock", "network", "compute", "comparison")
    return tuple(run.attributes.get(name) for name in (*names, "replication"))


def _sent_per_sample(run: Run) -> float:
    return bytes_sent(run) / max(int(run.ranks["samples"].sum()), 1)


def _median(runs: list[Run], value: Callable[[Run], float]) -> float:
    return float(np.median([value(run) for run in runs]))


# ---- functions for CSV and JSON, which programs read

FACTS = (
    *("algorithm", "label", "ranks", "seed", "clock", "dataset", "model", "batch_size"),
    *("target_accuracy", "metric", "target"),
)
"""Attributes of the run file that each row of CSV and JSON contains."""


def _records(
    labels: list[str],
    paths: Sequence[str | os.PathLike],
    rows: list[list[Run]],
    wanted: list[AnyColumn] | None,
    spread: Spread | Literal[False],
) -> list[dict]:
    """Return a list with a dictionary per table row, for CSV and JSON. All dictionaries have equal keys. Numbers are
    not rounded, and unknown numbers are None. ``spread`` is the object that summarises the runs which share a row.
    ``spread`` is False if each row is one run."""
    runs = [run for row in rows for run in row]
    columns = [column for column in available.all_columns(runs).values() if column.name != "data"]
    keys = [Key(key) for key in differing([row[0] for row in rows])]
    columns = wanted or [*keys, *columns]
    return [
        {"run": label} | ({} if wanted else _facts(path, row, bool(spread))) | _numbers(row, columns, spread)
        for label, path, row in zip(labels, paths, rows, strict=True)
    ]


def _facts(path: str | os.PathLike, runs: list[Run], group: bool) -> dict:
    facts = {name: or_none(runs[0].attributes.get(name)) for name in FACTS}
    if group:
        seeds = {run.attributes["seed"] for run in runs}
        return facts | {"seed": facts["seed"] if len(seeds) == 1 else None, "seeds": len(seeds), "runs": len(runs)}
    return {"file": os.fspath(path)} | facts


def _numbers(runs: list[Run], columns: Sequence[AnyColumn], spread: Spread | Literal[False]) -> dict:
    numbers = {}
    for column in columns:
        data = column.data(runs, spread or MEDIAN)
        if not spread:
            numbers[column.data_name] = data[""]
            continue
        numbers |= {column.data_name + end: value for end, value in data.items()}
        if isinstance(column, Column):
            numbers[f"{column.data_name}_known"] = len(known_values([column.of(run) for run in runs]))
    return numbers


def _csv(records: list[dict]) -> str:
    lines = io.StringIO()
    writer = csv.DictWriter(lines, records[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return lines.getvalue().rstrip("\n")


# ---- functions for the table of ranks


def _ranks_columns(run: Run) -> list[TextColumn]:
    sent, messages, staleness = run.traffic["sent"], run.traffic["messages"], run.staleness
    ranks = range(run.attributes["ranks"])
    ages = [median_staleness(staleness["value"], staleness["count"][rank]) for rank in ranks]
    columns = {
        "rank": map(str, ranks),
        "steps": map(str, run.ranks["steps"]),
        "samples": map(str, run.ranks["samples"]),
        **{f"{name} [s]": map(number, run.ranks[f"{name}_seconds"]) for name in PARTS},
        "sent": map(human_bytes, sent.sum(1)),
        "received": map(human_bytes, sent.sum(0)),
        "messages sent": map(str, messages.sum(1)),
        "median staleness": (median_and_range([age], significant) for age in ages),
    }
    return [TextColumn(title.split(" [")[0], title, list(cells)) for title, cells in columns.items()]
