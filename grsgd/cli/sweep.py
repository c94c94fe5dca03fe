"""``grsgd sweep``: runs a configuration with all combinations of the values of some keys, one after the other. Runs
whose files exist are not repeated."""

import itertools
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from grsgd.cli.child import INTERRUPTED, in_a_process
from grsgd.config import Config
from grsgd.config.sources import digest
from grsgd.errors import UsageError
from grsgd.runs.finished import finished_run

MAX_LETTERS = 120
"""Largest number of letters in a file name before the digest."""
OWN = ("--out", "--ranks", "-n")
"""Options of a single run that the sweep sets itself, so that users cannot give them."""

Runner = Callable[[list[str]], int]


def sweep(options: Namespace, load: Callable[[list[str]], Config], run: Runner | None = None) -> int:
    """Make the missing runs; return the exit code of the last run that failed, or 0.

    All configurations are read before the first run. If a run fails, the sweep prints its name and goes on with the
    next run; the same command later repeats only the failed run. An interrupted run ends the sweep; the same command
    continues it.

    ``options`` are the options of ``grsgd sweep``. ``load`` returns the configuration for the arguments of a run.
    ``run`` runs ``grsgd`` with arguments, and returns its exit code; by default in a new process. Raises UsageError.
    """
    if wrong := next((word for word in options.arguments if word.partition("=")[0] in OWN), None):
        raise UsageError(f"{wrong}: not after the configuration: a sweep itself names the files; -n stands before it")
    folder, code, runs = Path(options.out), 0, {}
    for changed in combinations(options.vary):
        arguments = arguments_of(options, changed)
        out = folder / f"{name(changed)}-{digest(load(arguments), options.ranks, *where(options))}.h5"
        runs[out] = ", ".join(changed), [*arguments, "--out", str(out)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}") from error
    for number, (out, (words, arguments)) in enumerate(runs.items(), 1):
        is_there = finished_run(out) is not None
        print(f"{number} of {len(runs)}: {words}: {out}{' exists' * is_there}", file=sys.stderr, flush=True)
        if not is_there and (failed := (run or in_a_process)(arguments)):
            code = failed
            print(f"grsgd sweep: {words}: exit code {failed}", file=sys.stderr, flush=True)
            if failed == INTERRUPTED:
                break
    return code


def combinations(varied: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Return the ``KEY=VALUE`` settings of each run, from ``KEY=A,B,...`` texts; the last key varies fastest.

    Raises UsageError.
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
    """Return the values that commas separate; commas within quotes and brackets do not separate."""
    found = re.findall(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,])+""", values)
    return [value.strip() for value in found] or [""]


def arguments_of(options: Namespace, changed: Sequence[str]) -> list[str]:
    """Return the arguments of ``grsgd`` for one run, without its ``--out``."""
    sets = [word for change in changed for word in ("--set", change)]
    if options.simulate:
        return ["simulate", options.config, *options.arguments, "--ranks", str(options.ranks), *sets]
    return ["run", "-n", str(options.ranks), options.config, *options.arguments, *sets]


def where(options: Namespace) -> list[str]:
    """Return the texts that decide the results of a run in addition to its configuration.

    The texts are: whether runs are simulated, their other options, and the content of files that options name, such as
    network files.
    """
    files = [Path(word.rpartition("=")[2]) for word in options.arguments]
    contents = [file.read_text(errors="replace") for file in files if file.suffix == ".toml" and file.is_file()]
    return [f"simulate: {options.simulate}", *options.arguments, *contents]


def name(changed: Sequence[str]) -> str:
    """Return the beginning of the file name of a run with the settings ``changed``."""
    return re.sub(r"[^\w.=+-]+", "_", "-".join(changed))[:MAX_LETTERS]
