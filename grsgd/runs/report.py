"""Runs as plain-text tables: one row a run, or one row a rank."""

import math
import os
import tomllib
from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from grsgd.errors import RunFileError
from grsgd.runs.ending import Ended
from grsgd.runs.measures import (
    best_accuracy,
    bytes_sent,
    bytes_sent_once,
    epochs,
    final_consensus,
    is_virtual,
    known_values,
    median_staleness,
    samples_per_second,
    target_accuracy,
    time_split,
    time_to_target,
    waiting_share,
)
from grsgd.runs.run_file import Run, load_run
from grsgd.text import printable

UNKNOWN = "—"

MAX_LABEL_LETTERS = 200


class Measure(NamedTuple):
    """A number of a run, NaN where not known, and how to print it."""

    title: str
    of: Callable[[Run], float]
    text: Callable[[float], str]


def report(paths: Sequence[str | os.PathLike], group: bool = False) -> str:
    """A table of the runs in the files ``paths``, one row a run in the order given, with a legend below.

    ``group``: runs that differ in nothing but the seed share a row: median, and least and greatest value in brackets.
    For a single file, the table of its ranks follows. Raises RunFileError for a file that ``load_run`` refuses.
    """
    if not paths:
        raise RunFileError("no run files given")
    runs = [load_run(path) for path in paths]
    groups = by_experiment(runs) if group else [[i] for i in range(len(runs))]
    firsts = [members[0] for members in groups]
    labels = names([paths[i] for i in firsts], [runs[i] for i in firsts])
    rows = [[runs[i] for i in members] for members in groups]
    parts = [_runs_table(labels, rows), _legend(rows), *_savings(labels, rows)]
    if len(paths) == 1:
        parts.append(_ranks_table(labels[0], runs[0]))
    return "\n\n".join(parts)


# ---- names and groups of runs


def names(paths: Sequence[str | os.PathLike], runs: Sequence[Run]) -> list[str]:
    """Short names of the runs, algorithm and ranks, then the seed or the file where these are alike."""
    short, seeds = [_name(run) for run in runs], [run.attributes["seed"] for run in runs]
    experiment = {i: number for number, members in enumerate(by_experiment(runs)) for i in members}
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    result = []
    for path, run, name in zip(paths, runs, short, strict=True):
        alike = [i for i, other in enumerate(short) if other == name]
        if len(alike) == 1:
            result.append(name)
        elif len({experiment[i] for i in alike}) == 1 and len({seeds[i] for i in alike}) == len(alike):
            result.append(f"{name}, seed {run.attributes['seed']}")
        else:
            result.append(printable(f"{name}, {os.path.relpath(path, folder)}"))
    return result


def _name(run: Run) -> str:
    ranks = run.attributes["ranks"]
    name = printable(run.attributes["label"], MAX_LABEL_LETTERS)
    name += f", {ranks} rank{'s' if ranks > 1 else ''}"
    return f"{name}, virtual time" if is_virtual(run) else name


def by_experiment(runs: Sequence[Run]) -> list[list[int]]:
    """Indices of the runs, those together that differ in nothing but the seed; in the order of the first of each."""
    groups: dict[tuple, list[int]] = {}
    for i, run in enumerate(runs):
        names = ("algorithm", "algorithm_sha256", "ranks", "dataset", "model", "clock")
        known = tuple(run.attributes.get(name) for name in names)
        groups.setdefault((*known, _config_without_seed(run)), []).append(i)
    return list(groups.values())


def _config_without_seed(run: Run) -> str:
    try:
        config = _without_seed(_config(run))
        return repr(config) if config else run.attributes["config"]
    except RecursionError:  # tables in tables in tables
        return run.attributes["config"]


def _config(run: Run) -> dict:
    """The configuration of the run; empty if the text is none."""
    try:
        return tomllib.loads(run.attributes["config"])
    except (ValueError, RecursionError):  # the first also for whole numbers of thousands of digits
        return {}


def _without_seed(table: dict) -> dict:
    return {
        key: _without_seed(value) if isinstance(value, dict) else value
        for key, value in sorted(table.items())
        if key != "seed"
    }


# ---- numbers as text


def _number(value: float) -> str:
    return f"{value:.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _accuracy(value: float) -> str:
    return f"{100 * value:.2f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _significant(value: float) -> str:
    return f"{value:.3g}"


def human_bytes(value: float) -> str:
    """A number of bytes in the binary unit that suits it: 1536 -> "1.50 KiB"."""
    unit, size = byte_unit(value)
    return f"{value / size:.{2 if size > 1 else 0}f} {unit}"


def byte_unit(value: float) -> tuple[str, int]:
    """The binary unit that suits a number of bytes, and its size in bytes: 1536 -> ("KiB", 1024)."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    power = min(int(math.log2(value) // 10), len(units) - 1) if value >= 1 else 0
    return units[power], 1024**power


def median_and_range(values: list[float], text: Callable[[float], str]) -> str:
    """One value, or the median and range of several; those not known are left out but counted."""
    known = known_values(values)
    if not known:
        return UNKNOWN
    shown = [text(value) for value in (float(np.median(known)), min(known), max(known))]
    result = shown[0] if len(set(shown)) == 1 else f"{shown[0]} ({shown[1]}–{shown[2]})"
    return result if len(known) == len(values) else f"{result}, {len(known)} of {len(values)}"


# ---- the table of runs


def _runs_table(labels: list[str], rows: list[list[Run]]) -> str:
    measures = _measures([run for row in rows for run in row])
    header = ["algorithm", "data/model", *(measure.title for measure in measures)]
    table = [
        [label, _data_and_model(row[0]), *(median_and_range([m.of(run) for run in row], m.text) for m in measures)]
        for label, row in zip(labels, rows, strict=True)
    ]
    ends = [_early_ends(row) for row in rows]
    if any(ends):
        header.append("stopped early")
        table = [[*line, end] for line, end in zip(table, ends, strict=True)]
    return _table(header, table, texts={"algorithm", "data/model", "stopped early"})


def _measures(runs: list[Run]) -> list[Measure]:
    """The columns: the choice depends on what all the runs have."""
    targets = {target_accuracy(run) for run in runs}
    to_target = f"to {100 * min(targets):g} % [s]" if len(targets) == 1 and known_values(targets) else "to target [s]"
    trained = (
        Measure("samples", lambda run: float(run.ranks["samples"].sum()), _whole)
        if any(math.isnan(epochs(run)) for run in runs)
        else Measure("epochs", epochs, _number)
    )
    differ = any(bytes_sent(run) != bytes_sent_once(run) for run in runs)
    once = [Measure("sent once", bytes_sent_once, human_bytes)] if differ else []
    return [
        trained,
        Measure("final [%]", lambda run: run.attributes["final_test_accuracy"], _accuracy),
        Measure("best [%]", best_accuracy, _accuracy),
        Measure(to_target, time_to_target, _number),
        Measure("wall [s]", lambda run: run.attributes["wall_seconds"], _number),
        Measure("samples/s", samples_per_second, _number),
        Measure("sent", bytes_sent, human_bytes),
        *once,
        Measure("wait [s]", lambda run: time_split(run)["wait"], _number),
        Measure("wait [%]", waiting_share, _share),
        Measure("consensus", final_consensus, _significant),
    ]


def _data_and_model(run: Run) -> str:
    return "/".join(str(run.attributes.get(name, UNKNOWN)) for name in ("dataset", "model"))


def _early_ends(runs: list[Run]) -> str:
    ends = Counter(run.attributes["reason"] for run in runs if run.attributes["ended"] != Ended.COMPLETED)
    return "; ".join(end if len(runs) == 1 else f"{end} ({count} of {len(runs)})" for end, count in ends.items())


def _legend(rows: list[list[Run]]) -> str:
    runs = [run for row in rows for run in row]
    lines = [
        "final, best: test accuracy of the averaged model; to target: its first snapshot at or above the target; "
        "wall: whole run; samples/s: up to the last snapshot;",
        "sent: payload of all ranks (once: a multicast counted once); wait: mean over the ranks, and its share of "
        "compute + communicate + wait; consensus: distance of the replicas from their average at the end.",
    ]
    if any(len(row) > 1 for row in rows):
        lines.append("Several seeds: median (least–greatest); n of m: known for n of m seeds.")
    if any(is_virtual(run) for run in runs):
        lines.append("Virtual time: all times and rates but wall are in simulated seconds.")
    return "\n".join(lines)


def _savings(labels: list[str], rows: list[list[Run]]) -> list[str]:
    """Say what adaptive communication saves against each row of the same algorithm without it, and its price."""
    lines = []
    for label, runs in zip(labels, rows, strict=True):
        for other_label, others in zip(labels, rows, strict=True):
            if not (_is_adaptive(runs[0]) and not _is_adaptive(others[0]) and _setting(runs[0]) == _setting(others[0])):
                continue
            if not _median(others, _sent_per_sample):
                continue
            saving = 1 - _median(runs, _sent_per_sample) / _median(others, _sent_per_sample)
            lines.append(
                f"{label}, adaptive, sent {saving:.1%} less a sample than {printable(other_label)}, and ended with a "
                f"consensus distance of {_significant(_median(runs, final_consensus))} instead of "
                f"{_significant(_median(others, final_consensus))}."
            )
    return ["\n".join(lines)] if lines else []


def _is_adaptive(run: Run) -> bool:
    return bool(run.attributes.get("depends_on_values"))


def _setting(run: Run) -> tuple:
    """Return what runs must share for their bytes to be compared."""
    names = ("algorithm", "ranks", "dataset", "model", "batch_size", "clock", "network", "compute", "comparison")
    return tuple(run.attributes.get(name) for name in (*names, "replication"))


def _sent_per_sample(run: Run) -> float:
    return bytes_sent(run) / max(int(run.ranks["samples"].sum()), 1)


def _median(runs: list[Run], value: Callable[[Run], float]) -> float:
    return float(np.median([value(run) for run in runs]))


# ---- the table of ranks


def _ranks_table(label: str, run: Run) -> str:
    split = [run.ranks[f"{name}_seconds"] for name in ("compute", "communicate", "wait")]
    sent, messages = run.traffic["sent"], run.traffic["messages"]
    header = ["rank", "steps", "samples", "compute [s]", "communicate [s]", "wait [s]"]
    header += ["sent", "received", "messages sent", "median staleness"]
    rows = [
        [
            str(rank),
            str(run.ranks["steps"][rank]),
            str(run.ranks["samples"][rank]),
            *(_number(seconds[rank]) for seconds in split),
            human_bytes(sent[rank].sum()),
            human_bytes(sent[:, rank].sum()),
            str(messages[rank].sum()),
            median_and_range([median_staleness(run.staleness["value"], run.staleness["count"][rank])], _significant),
        ]
        for rank in range(run.attributes["ranks"])
    ]
    return f"{label}:\n\n{_table(header, rows)}"


def _table(header: list[str], rows: list[list[str]], texts: Container[str] = ()) -> str:
    """A table that is plain to read as it is and a table in Markdown too; columns not in ``texts`` are numbers."""
    align = ["left" if title in texts else "right" for title in header]
    cells = [[printable(cell).replace("|", "\\|") for cell in row] for row in rows]
    return tabulate(cells, header, tablefmt="pipe", colalign=align, disable_numparse=True)
