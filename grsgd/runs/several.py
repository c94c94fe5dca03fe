"""Functions that read several run files, give each run a different name, and group runs that differ only in the
seed."""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence

from grsgd.errors import RunFileError
from grsgd.runs.measures import is_virtual
from grsgd.runs.metric import metric_of
from grsgd.runs.run_file import Run, load_run
from grsgd.runs.settings import WHERE, distinguishing, in_words, settings
from grsgd.text import printable

MAX_LABEL_LETTERS = 200
DIGESTS = tuple(
    f"{what}_sha256"
    for what in ("algorithm", "model_code", "data_code", "task_code", "schedule_code", "optimizer_code")
)
"""Names of the attributes of a run file with the digests of the user's own code that the run used."""


def load_runs(
    paths: Sequence[str | os.PathLike], skip: Callable[[RunFileError], None] | None = None
) -> tuple[list[str | os.PathLike], list[Run]]:
    """Read the run files ``paths``. Return the paths of the readable files, and the runs in these files.

    A file with the same content as an earlier file is left out, because a copy is not another run; a line on stderr
    says so.

    ``skip`` is called with the error of each file that cannot be read. Without ``skip`` the error, a RunFileError, is
    raised. If no file can be read, the last error is raised even with ``skip``.
    """
    if not paths:
        raise RunFileError("no run files given")
    runs, errors, contents = {}, [], {}
    for i, path in enumerate(paths):
        try:
            run = load_run(path)
            first = contents.setdefault(_digest(path), i)
            if first == i:
                runs[i] = run
            else:
                copy, original = (printable(os.fspath(each)) for each in (path, paths[first]))
                print(f"grsgd: {copy}: has the same content as {original}, and is left out", file=sys.stderr)
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


def _digest(path: str | os.PathLike) -> bytes:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise RunFileError(f"{os.fspath(path)}: {error.strerror or error}") from error


def names(paths: Sequence[str | os.PathLike], runs: Sequence[Run], short: bool = False) -> list[str]:
    """Return a name for each run: label, number of ranks and clock. Equal names are extended by the keys in which the
    runs' configurations differ. Names that are still equal are extended by the seed or the path of the run file.

    With ``short`` the number of ranks is left out if it is equal for all runs. With ``short`` the clock is left out if
    it is equal for all runs.
    """
    same_ranks = short and len({run.attributes["ranks"] for run in runs}) == 1
    same_clock = short and len({_clock(run) for run in runs}) == 1
    first = [_name(run, not same_ranks, not same_clock) for run in runs]
    for alike in _alike(first):
        keys = distinguishing([runs[i] for i in alike])
        for i in alike:
            first[i] = ", ".join(filter(None, [first[i], in_words(runs[i], keys)]))
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


def _alike(names: Sequence[str]) -> list[list[int]]:
    """Return one list per different name in ``names``: the positions at which this name stands."""
    places: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        places.setdefault(name, []).append(i)
    return list(places.values())


def _name(run: Run, with_ranks: bool, with_clock: bool) -> str:
    name = printable(run.attributes["label"], MAX_LABEL_LETTERS)
    if with_ranks:
        name += f", {ranks_of(run)}"
    return ", ".join(filter(None, [name, _clock(run) if with_clock else ""]))


def _clock(run: Run) -> str:
    """Return "simulated" for a run in simulated time, or "simulated, times alone" if only times were computed; "" for a
    run in real time."""
    is_timed_alone = run.attributes.get("timing_only")
    return "simulated" + ", times alone" * bool(is_timed_alone) if is_virtual(run) else ""


def seeds_of(runs: Sequence[Run]) -> str:
    """Return a text such as "3 seeds", or "4 runs of 3 seeds" if some of ``runs`` have the same seed. Return "" for a
    single run."""
    seeds = len({run.attributes["seed"] for run in runs})
    if len(runs) == 1:
        return ""
    words = f"{seeds} seed{'s' * (seeds != 1)}"
    return words if seeds == len(runs) else f"{len(runs)} runs of {words}"


def ranks_of(run: Run) -> str:
    """Return the number of ranks of a run as text, such as "1 rank" or "4 ranks"."""
    ranks = run.attributes["ranks"]
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def by_experiment(runs: Sequence[Run]) -> list[list[int]]:
    """Return groups of runs that differ only in the seed. A group is a list of positions in ``runs``; groups are in the
    order of their first runs."""
    groups: dict[tuple, list[int]] = {}
    for i, run in enumerate(runs):
        names = ("algorithm", *DIGESTS, "ranks", "dataset", "model", "clock", "timing_only")
        known = tuple(run.attributes.get(name) for name in names)
        groups.setdefault((*known, metric_of(run), _settings(run)), []).append(i)
    return list(groups.values())


def _settings(run: Run) -> str:
    known = settings(run)
    return repr(sorted(known.items())) if known.keys() - set(WHERE) else f"{run.attributes['config']} {known}"
