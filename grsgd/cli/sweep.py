"""Command ``grsgd sweep``, which runs a configuration with all combinations of the values of some keys. Runs of the
sweep that are finished already are not repeated."""

import itertools
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from grsgd.cli.child import INTERRUPTED, Started, side_by_side, start
from grsgd.cli.sweep_result import show
from grsgd.config import Config
from grsgd.config.sources import digest
from grsgd.control_groups import cpu_quota
from grsgd.errors import UsageError
from grsgd.runs.finished import finished_run, is_tested

MAX_LETTERS = 120
"""Largest number of characters that precede the digest in the name of a sweep's run file."""
OWN = ("--out", "--ranks", "-n")
"""Options of a single run that the sweep itself sets, so that users cannot give these options."""
ONE_FILE = ("--save", "--save-best", "--csv", "--tensorboard", "--timeline", "--trace", "--checkpoint", "--resume")
"""Options of a single run that name one file or folder, which the runs of a sweep would overwrite."""
AUTO = "auto"
"""Value of ``--jobs`` with which the number of cores determines how many runs are made at a time."""

Starter = Callable[[list[str], Path | None], Started]
"""Type of a function that starts ``grsgd`` in a new process. A `Starter` takes the list of the arguments of ``grsgd``,
and a file for the output (None for the terminal)."""


class SweepRun(NamedTuple):
    """One run of a sweep: the varied keys and values as text, the path of the run file, and the arguments of ``grsgd``
    that make this run."""

    words: str
    out: Path
    arguments: list[str]

    @property
    def log(self) -> Path:
        """Path of the file with the output of this run's process, if several runs are made at a time."""
        return self.out.with_suffix(".log")

    @property
    def is_finished(self) -> bool:
        """Whether the run need not be made, because its run file has a run that diverged, or that completed and was
        tested."""
        run = finished_run(self.out)
        return run is not None and is_tested(run)


def sweep(options: Namespace, load: Callable[[list[str]], Config], starter: Starter = start) -> int:
    """Make the runs of a sweep that are not finished, print a table, and draw a plot of all finished runs. Return 0 if
    all runs are finished, else the exit code of the last run that failed.

    The configurations of all runs are read before the first run begins. If a run fails, the sweep prints the run's name
    and goes on with the next run. The same ``grsgd sweep`` command, given again, makes only the runs that are not
    finished. An interrupted run ends the sweep. A run that diverges counts as finished.

    ``options`` are the options of ``grsgd sweep``. ``load`` is a function that returns the configuration for the
    arguments of a run. Raises UsageError for wrong options.
    """
    if wrong := next((word for word in options.arguments if word.partition("=")[0] in OWN), None):
        raise UsageError(f"{wrong}: not after the configuration: a sweep names its run files, and -n stands before it")
    if wrong := next((word for word in options.arguments if word.partition("=")[0] in ONE_FILE), None):
        raise UsageError(f"{wrong}: names one file or folder, which the runs of a sweep would overwrite")
    jobs = jobs_of(options)
    runs = list(runs_of(options, load))
    try:
        Path(options.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {options.out}: {error.strerror}") from error
    failed = make_missing(runs, jobs, starter)
    show([run.out for run in runs if run.is_finished], Path(options.out))
    return end(runs, failed)


def runs_of(options: Namespace, load: Callable[[list[str]], Config]) -> Iterator[SweepRun]:
    """Yield the runs of a sweep, one per combination of values. Raises UsageError for wrong options."""
    for changed in combinations(options.vary):
        arguments = arguments_of(options, changed)
        out = Path(options.out) / f"{name(changed)}-{digest(load(arguments), options.ranks, *where(options))}.h5"
        yield SweepRun(", ".join(changed), out, [*arguments, "--out", str(out)])


def make_missing(runs: Sequence[SweepRun], jobs: int, starter: Starter) -> dict[Path, int]:
    """Make the runs of a sweep that are not finished; ``jobs`` runs are made at a time. Return a dictionary from the
    run file of each failed run to its exit code."""
    numbers = {run.out: number for number, run in enumerate(runs, 1)}

    def missing() -> Iterator[SweepRun]:
        for run in runs:
            is_finished = run.is_finished
            end = " exists" if is_finished else f" begins, output in {run.log}" if jobs > 1 else ""
            say(f"{numbers[run.out]} of {len(runs)}: {run.words}: {run.out}{end}")
            if not is_finished:
                yield run

    def begin(run: SweepRun) -> Started:
        return starter(run.arguments, run.log if jobs > 1 else None)

    failed = {}
    for run, code in side_by_side(missing(), begin, jobs):
        if code and not run.is_finished:
            failed[run.out] = code
            say(f"grsgd sweep: {run.words}: exit code {code}{last_line(run.log) if jobs > 1 else ''}")
        elif jobs > 1 and run.is_finished:
            say(f"{numbers[run.out]} of {len(runs)}: {run.words}: finished")
    return failed


def end(runs: Sequence[SweepRun], failed: dict[Path, int]) -> int:
    """Print the number of finished runs of a sweep, and the keys and values of each run that is not finished. Return
    the exit code of the sweep."""
    unfinished = [run for run in runs if not run.is_finished]
    if unfinished:
        say(f"grsgd sweep: {len(runs) - len(unfinished)} of {len(runs)} runs are finished; the same command goes on")
    for run in unfinished:
        code = failed.get(run.out)
        say(f"  {run.words}: {'not made' if code is None else f'exit code {code}'}")
    codes = list(failed.values())
    return INTERRUPTED if INTERRUPTED in codes else codes[-1] if codes else int(bool(unfinished))


def last_line(log: Path) -> str:
    """Return the last line of a run's output in the file ``log``, for the line that names a failed run."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last}" if last else ""


def say(line: str):
    print(line, file=sys.stderr, flush=True)


def jobs_of(options: Namespace) -> int:
    """Return the number of runs that are made at a time: the value of ``--jobs``, limited by the cores of this process.

    A run in real time needs a core per rank, and a run in simulated time needs one core. Raises UsageError if
    ``--jobs`` is no whole number above 0.
    """
    most = max(cores() // (1 if options.simulate else options.ranks), 1)
    if options.jobs == AUTO:
        return most
    if not options.jobs.isdecimal() or int(options.jobs) < 1:
        raise UsageError(f"--jobs {options.jobs}: must be a whole number above 0, or {AUTO}")
    jobs = int(options.jobs)
    if jobs > most:
        say(f"grsgd sweep: {most} of {jobs} runs at a time, because there are {cores()} cores")
    return min(jobs, most)


def cores() -> int:
    """Return the number of cores that this process and its child processes may use, at least 1."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return max(min(here, int(quota.cores)) if quota is not None else here, 1)


def combinations(varied: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Return an iterator over the runs of a sweep: a tuple of ``KEY=VALUE`` settings per run. ``varied`` has the texts
    ``KEY=A,B,...``. From run to run, the value of the last key in ``varied`` changes fastest. Raises UsageError for a
    text that has not the form ``KEY=A,B,...``.
    """
    axes = []
    for one in varied:
        key, equals, values = one.partition("=")
        words = split(values)
        if not equals or not key.strip() or not all(words):
            raise UsageError(f"--vary {one}: expected KEY=VALUE,VALUE,... such as seed=0,1,2")
        axes.append([f"{key.strip()}={word}" for word in words])
    return itertools.product(*axes)


def split(values: str) -> list[str]:
    """Return the list of values in the text ``values``, which are separated by commas. Commas within quotes and
    brackets do not separate values."""
    found = re.findall(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,])+""", values)
    return [value.strip() for value in found] or [""]


def arguments_of(options: Namespace, changed: Sequence[str]) -> list[str]:
    """Return the arguments of ``grsgd`` for the run with the settings ``changed``, without the option ``--out``."""
    sets = [word for change in changed for word in ("--set", change)]
    if options.simulate:
        return ["simulate", options.config, *options.arguments, "--ranks", str(options.ranks), *sets]
    return ["run", "-n", str(options.ranks), options.config, *options.arguments, *sets]


def where(options: Namespace) -> list[str]:
    """Return texts on the inputs that decide the results of a run in addition to its configuration.

    One of the texts says whether the runs are simulated. Further texts are the options of ``grsgd train`` or ``grsgd
    simulate``, and the content of files that these options name, such as network files.
    """
    files = [Path(word.rpartition("=")[2]) for word in options.arguments]
    contents = [file.read_text(errors="replace") for file in files if file.suffix == ".toml" and file.is_file()]
    return [f"simulate: {options.simulate}", *options.arguments, *contents]


def name(changed: Sequence[str]) -> str:
    """Return the text, made from the settings ``changed``, with which the name of a run file begins."""
    return re.sub(r"[^\w.=+-]+", "_", "-".join(changed))[:MAX_LETTERS]
