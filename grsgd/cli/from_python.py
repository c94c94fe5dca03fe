"""Functions `grsgd.train` and `grsgd.simulate`, which make one run from Python, for example in a notebook.

Each of the two functions runs a command of ``grsgd`` in a separate process. The process that calls `grsgd.train` starts
no MPI, and goes on if the run fails.
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
"""Exit code of a ``grsgd`` command with wrong options or a wrong configuration."""
ENDED = re.compile(
    r"^-{40,}\n(?:MPI_ABORT was invoked|prterun has exited due to process rank|prterun detected that one or more"
    r" processes exited)(?:(?!-{40,}$).*\n)*?-{40,}$\n?",
    re.MULTILINE,
)
"""Paragraph, between two lines of dashes, in which Open MPI's launcher says that the job has ended."""
ERROR = re.compile(r"^grsgd[\w -]*: error: (.*)", re.MULTILINE)
"""Pattern of the line in which a command of ``grsgd`` reports wrong options or a wrong configuration."""
LINES = 20
"""Number of the last output lines of a failed command that the message of `RunFailed` contains."""


class RunFailed(RuntimeError):
    """Error of a run that has not reached its regular end.

    ``run`` is the content of the run file, with ``run.attributes["ended"]`` and ``["reason"]``; None without a run
    file. ``code`` is the exit code of the ``grsgd`` command.
    """

    def __init__(self, message: str, run: Run | None, code: int):
        super().__init__(message)
        self.run, self.code = run, code


def train(config: str | PathLike | Mapping, ranks: int = 1, *, out: str | PathLike | None = None, **options) -> Run:
    """Train on ``ranks`` new MPI ranks of this machine, as ``grsgd run -n RANKS CONFIG`` does, and return the run.

    Parameters
    ----------
    config
        Path of a TOML file, or the content of a configuration, such as ``{"algorithm": {"name": "dpsgd"}, "data":
        {...}}``.
    ranks
        Number of ranks.
    out
        Path of the run file. If ``out`` is None, the run file has a new name in the folder ``results``.
    options
        Options of ``grsgd train`` as keyword arguments: ``save="model.pt"``, ``checkpoint="kept"``. ``changes`` is a
        mapping such as ``{"optimizer.lr": 0.05}``, whose values replace values of ``config`` (``--set``).

    Raises
    ------
    ConfigError
        If the configuration or an option is refused.
    RunFailed
        If the run has diverged, has failed, or was stopped early.
    """
    return _make(["run", "-n", str(ranks)], config, [], out, options)


def simulate(config: str | PathLike | Mapping, ranks: int = 4, *, out: str | PathLike | None = None, **options) -> Run:
    """Train on ``ranks`` ranks in simulated time, as ``grsgd simulate CONFIG`` does, and return the run.

    ``config``, ``out`` and the errors have the same meaning as in `train`. ``options`` are the options of ``grsgd
    simulate`` as keyword arguments, such as ``network="switch,1gbit,50us"`` or ``timing_only=True``, and ``changes``.
    """
    return _make(["simulate"], config, ["--ranks", str(ranks)], out, options)


def _make(command: list[str], config, before: list[str], out, options: dict) -> Run:
    """Run the ``grsgd`` command ``command`` with a configuration and options, and return the `Run` in the run file that
    the command has written."""
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
    """Return the output of a job without the paragraphs of Open MPI's launcher that only say that the job has ended.

    Paragraphs that name a cause remain, such as a signal that has killed a rank.
    """
    return ENDED.sub("", output).replace("\0", "").strip()


def words_of(options: Mapping) -> list[str]:
    """Return the keyword arguments ``options`` as words of a command line. Raises ConfigError for a value that TOML
    cannot express."""
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
    """Yield (dotted key, value) of each value in the nested mappings ``values``."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def toml_of(value) -> str:
    """Return ``value`` as TOML text. Raises ConfigError for a value that TOML cannot express."""
    try:
        return tomli_w.dumps({"value": value}).partition("=")[2].strip().replace("\n", " ")
    except TypeError as error:
        raise ConfigError(f"changes: {value!r}: {error}") from None


def _run(arguments: list[str]) -> tuple[int, str]:
    """Run ``grsgd`` with ``arguments`` in a separate process. Return the exit code and the output of the separate
    process. Pass Ctrl-C on to the separate process."""
    process = subprocess.Popen(
        [*module("grsgd"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=with_parent(),
        start_new_session=True,  # without a session of its own, the command would get Ctrl-C on a terminal twice
    )
    try:
        output, _ = process.communicate()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    return process.returncode, output
