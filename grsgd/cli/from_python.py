"""Functions `grsgd.train` and `grsgd.simulate`, which make one run from Python, such as in a notebook or a study.

The run is a command of ``grsgd`` in a process of its own, so this process starts no MPI, and survives any end of it.
"""

import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path

import tomli_w

from grsgd.cli.arguments import default_out
from grsgd.errors import ConfigError, RunFileError
from grsgd.job.ending import with_parent
from grsgd.mpi_environment import module
from grsgd.runs.run_file import Run, load_run

USAGE = 2
"""Exit code of a command that has refused its options or its configuration."""
DASHES = re.compile("-{40,}")
"""Line before and after a message of Open MPI's launcher."""
ERROR = re.compile(r"^grsgd[\w -]*: error: (.*)", re.MULTILINE)
"""Line with which a command refuses its options or its configuration."""
LINES = 20
"""Number of the last lines of output that an error shows."""


class RunFailed(RuntimeError):
    """Error of a run that has not come to its regular end.

    ``run`` is what its run file holds, with ``run.attributes["ended"]`` and ``["reason"]``; None without a run file.
    ``code`` is the exit code of the command.
    """

    def __init__(self, message: str, run: Run | None, code: int):
        super().__init__(message)
        self.run, self.code = run, code


def train(config: str | PathLike | Mapping, ranks: int = 1, *, out: str | PathLike | None = None, **options) -> Run:
    """Train on ``ranks`` new MPI ranks of this machine, and return the run: ``grsgd run -n RANKS CONFIG`` from Python.

    Parameters
    ----------
    config
        Path of a TOML file, or the content of one, such as ``{"algorithm": {"name": "dpsgd"}, "data": {...}}``.
    ranks
        Number of ranks.
    out
        Run file; a new name in the folder ``results`` if None.
    options
        Options of ``grsgd train`` by their names: ``save="model.pt"``, ``checkpoint="kept"``. ``changes`` is a mapping
        of keys to values, such as ``{"optimizer.lr": 0.05}``, which replace the values of ``config`` (``--set``).

    Raises
    ------
    ConfigError
        If the configuration or an option is refused.
    RunFailed
        If the run has diverged, or was ended before its end.
    """
    return _make(["run", "-n", str(ranks)], config, [], out, options)


def simulate(config: str | PathLike | Mapping, ranks: int = 4, *, out: str | PathLike | None = None, **options) -> Run:
    """Train on ``ranks`` ranks in simulated time, and return the run: ``grsgd simulate CONFIG`` from Python.

    ``config``, ``out`` and the errors have the same meaning as in `train`. ``options`` are the options of ``grsgd
    simulate`` by their names, such as ``network="switch,1gbit,50us"`` or ``timing_only=True``, and ``changes``.
    """
    return _make(["simulate"], config, ["--ranks", str(ranks)], out, options)


def _make(command: list[str], config, before: list[str], out, options: dict) -> Run:
    """Run ``command`` with a configuration and options, and return the run in its file."""
    out = Path(out or default_out("run"))
    existing = out.stat().st_mtime_ns if out.exists() else None
    with tempfile.TemporaryDirectory(prefix="grsgd-") as folder:
        if isinstance(config, Mapping):
            path = Path(folder, "config.toml")
            path.write_text(tomli_w.dumps(config))
        else:
            path = Path(config)
        code, output = _run([*command, str(path), *before, "--out", str(out), *words_of(options)])
    output = without_launcher(output)
    if isinstance(config, Mapping):
        output = output.replace(str(path), "config")
    if code == USAGE:
        raise ConfigError((ERROR.findall(output) or [output])[-1])
    run = None
    if out.exists() and out.stat().st_mtime_ns != existing:
        try:
            run = load_run(out)
        except RunFileError as error:
            output += f"\n{error}"
    if code or run is None:
        reason = f": {run.attributes['reason']}" if run else ""
        last = "\n".join(output.splitlines()[-LINES:])
        raise RunFailed(f"{' '.join(command)} has ended with exit code {code}{reason}\n{last}", run, code)
    return run


def without_launcher(output: str) -> str:
    """Return the output of a job without the paragraphs between lines of dashes, in which Open MPI's launcher names the
    end of the job."""
    lines, is_hidden = [], False
    for line in output.strip().splitlines():
        if DASHES.fullmatch(line):
            is_hidden = not is_hidden
        elif not is_hidden:
            lines.append(line)
    return "\n".join(lines).strip()


def words_of(options: Mapping) -> list[str]:
    """Return options of Python as words of a command line; raises ConfigError for a value that TOML cannot hold."""
    words = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if name == "changes":
            words += [word for key, new in flat(value) for word in ("--set", f"{key}={toml_of(new)}")]
        elif value is True:
            words.append(option)
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words


def flat(values: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested mappings, each with its dotted key."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def toml_of(value) -> str:
    """Return a value as TOML writes it; raises ConfigError."""
    try:
        return tomli_w.dumps({"value": value}).partition("=")[2].strip().replace("\n", " ")
    except TypeError as error:
        raise ConfigError(f"changes: {value!r}: {error}") from None


def _run(arguments: list[str]) -> tuple[int, str]:
    """Run ``grsgd`` with ``arguments``; return the exit code and the output. Ctrl-C reaches the command."""
    process = subprocess.Popen(
        [*module("grsgd"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=with_parent(),
        start_new_session=True,  # or Ctrl-C on a terminal would reach the command twice
    )
    try:
        output, _ = process.communicate()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    return process.returncode, output
