"""Several runs: read from their files, named so that they can be told apart, and grouped by experiment."""

import os
import tomllib
from collections.abc import Callable, Sequence

from grsgd.errors import RunFileError
from grsgd.runs.measures import is_virtual
from grsgd.runs.metric import metric_of
from grsgd.runs.run_file import Run, load_run
from grsgd.text import printable

MAX_LABEL_LETTERS = 200
DIGESTS = tuple(
    f"{what}_sha256"
    for what in ("algorithm", "model_code", "data_code", "task_code", "schedule_code", "optimizer_code")
)
"""Attributes with the digests of files that a run comes from."""


def load_runs(
    paths: Sequence[str | os.PathLike], skip: Callable[[RunFileError], None] | None = None
) -> tuple[list[str | os.PathLike], list[Run]]:
    """Read run files; returns the paths of those that could be read, and their runs.

    ``skip``: gets the error of each of the others. Raises RunFileError where it is not given, and if no file is left.
    """
    if not paths:
        raise RunFileError("no run files given")
    runs, errors = {}, []
    for i, path in enumerate(paths):
        try:
            runs[i] = load_run(path)
        except RunFileError as error:
            errors.append(error)
            if not skip:
                raise
    last = None if runs else errors.pop()
    for error in errors:
        skip(error)
    if last:
        raise last
    return [paths[i] for i in runs], list(runs.values())


def names(paths: Sequence[str | os.PathLike], runs: Sequence[Run], short: bool = False) -> list[str]:
    """Names of the runs: label, ranks and clock, then the seed or the file where these are alike.

    ``short``: without the ranks and the clock where all runs have the same.
    """
    same_ranks = short and len({run.attributes["ranks"] for run in runs}) == 1
    same_clock = short and len({is_virtual(run) for run in runs}) == 1
    first = [_name(run, not same_ranks, not same_clock) for run in runs]
    seeds = [run.attributes["seed"] for run in runs]
    experiment = {i: number for number, members in enumerate(by_experiment(runs)) for i in members}
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    result = []
    for path, run, name in zip(paths, runs, first, strict=True):
        alike = [i for i, other in enumerate(first) if other == name]
        if len(alike) == 1:
            result.append(name)
        elif len({experiment[i] for i in alike}) == 1 and len({seeds[i] for i in alike}) == len(alike):
            result.append(f"{name}, seed {run.attributes['seed']}")
        else:
            result.append(printable(f"{name}, {os.path.relpath(path, folder)}"))
    return result


def _name(run: Run, with_ranks: bool, with_clock: bool) -> str:
    name = printable(run.attributes["label"], MAX_LABEL_LETTERS)
    if with_ranks:
        name += f", {ranks_of(run)}"
    return f"{name}, simulated" if with_clock and is_virtual(run) else name


def ranks_of(run: Run) -> str:
    """Return "1 rank", "4 ranks"."""
    ranks = run.attributes["ranks"]
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def by_experiment(runs: Sequence[Run]) -> list[list[int]]:
    """Indices of the runs, those together that differ in nothing but the seed; in the order of the first of each."""
    groups: dict[tuple, list[int]] = {}
    for i, run in enumerate(runs):
        names = ("algorithm", *DIGESTS, "ranks", "dataset", "model", "clock")
        known = tuple(run.attributes.get(name) for name in names)
        groups.setdefault((*known, metric_of(run), _config_without_seed(run)), []).append(i)
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
