"""Several runs in one MPI job, because starting Python and torch takes longer than many runs, above all on few cores.

``make_runs`` starts ``mpiexec ... python -m experiments.runner.batch LIST.json``, which makes one run after the other.
Hosts of a testbed have the limited processors that they emulate only while ranks train or measure. On a twentieth of a
core, reading a data set would take longer than many runs.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from experiments.runner.parallel import Unfinished, is_finished
from grsgd import config, data
from grsgd.errors import SetupError
from grsgd.job import launch
from grsgd.job.ending import with_parent
from grsgd.job.run import run
from grsgd.mpi_environment import job_environment
from grsgd.simulator.calibration import calibrate
from grsgd.simulator.calibration.network_file import network_file, write

MAX_START_SECONDS = 300
"""Greatest number of seconds until the ranks of a job have read their data, and of seconds for the end of the job."""
POLL_SECONDS = 0.1
"""Seconds between two checks whether a file exists."""


Timed = Callable[[], AbstractContextManager]
"""Function that returns a context in which hosts have their limited processors, for the timed part of a run."""


class MpiHost(NamedTuple):
    """The means of running MPI jobs on the hosts of a run."""

    mpiexec: Callable[[list], list]
    """Function from a list of arguments of ``mpiexec`` to the command to run."""
    without_cpu_limit: Callable[[], AbstractContextManager] = nullcontext
    """Function that returns a context in which hosts have no limit of cores."""


class Training(NamedTuple):
    """A training in a batch: its configuration file, ``key=value`` overrides, and its run file ``out``."""

    config: str
    overrides: list[str]
    out: str

    def make(self, mpi, out: Path, timed: Timed):
        """Train on all ranks; end the whole job if the training neither reaches its end nor diverges.

        Raises SetupError.
        """
        end = run(mpi, load(mpi, self.config, self.overrides), out, timed=timed)
        stopped, remaining = end.reason, end.remaining
        if not is_finished(stopped) or remaining.size < mpi.size:
            if remaining.rank == 0:
                print(f"grsgd: error: {stopped}", file=sys.stderr)
            launch.exit_job(remaining, 1, complete=remaining.size == mpi.size)


class Calibration(NamedTuple):
    """A calibration, as by ``grsgd calibrate``, with ``steps`` training steps.

    share: the part of one core that each host has; None if hosts are not limited.
    """

    config: str
    overrides: list[str]
    out: str
    steps: int = 30
    share: float | None = None

    def make(self, mpi, out: Path, timed: Timed):
        """Measure links and processors on all ranks, and write the network file ``out``. Raises SetupError."""
        loaded = load(mpi, self.config, self.overrides)
        measured = calibrate.calibrate(mpi, loaded, self.steps, timed, self.share)
        if mpi.rank == 0:
            settings = [argument for override in self.overrides for argument in ("--set", override)]
            command = ["grsgd", "calibrate", self.config, *settings, "--steps", str(self.steps), "--out", self.out]
            write(out, network_file(measured, loaded, shlex.join(command)))


class Computing(NamedTuple):
    """A measurement of the computing time of a step, without messages, over ``steps`` steps.

    The result is the JSON file ``out``: the `grsgd.simulator.calibration.calibrate.StepTimes` of each rank.
    """

    config: str
    overrides: list[str]
    out: str
    steps: int

    def make(self, mpi, out: Path, timed: Timed):
        """Measure the computing time on all ranks, and write it to ``out``. Raises SetupError."""
        found = calibrate.computing(mpi, load(mpi, self.config, self.overrides), self.steps, timed)
        if mpi.rank == 0:
            out.write_text(json.dumps(found))


class Work(NamedTuple):
    """A measurement of an algorithm's work over ``steps`` steps: the seconds of a step in excess of its gradient alone.

    The result is the JSON file ``out``: the seconds, or null if the ranks cannot train with the algorithm.
    """

    config: str
    overrides: list[str]
    out: str
    steps: int

    def make(self, mpi, out: Path, timed: Timed):
        """Measure the work on all ranks, and write the seconds to ``out``. Raises SetupError."""
        found = calibrate.work(mpi, load(mpi, self.config, self.overrides), timed, self.steps)
        if mpi.rank == 0:
            out.write_text(json.dumps(found))


Kind = Training | Calibration | Computing | Work
KINDS = {kind.__name__: kind for kind in (Training, Calibration, Computing, Work)}


def in_words(one: Kind) -> str:
    """Return the name of a run or measurement for messages: the name of a run's file, or the kind of a measurement.

    The file of a measurement may be temporary, so its name means nothing to a user.
    """
    is_run = isinstance(one, Training)
    return Path(one.out).name if is_run else f"{type(one).__name__.lower()} of {Path(one.config).stem}"


def load(mpi, path: str, overrides: list[str]) -> config.Config:
    """Load a configuration on all ranks; raise SetupError on all ranks if the configuration is wrong."""
    with launch.collective_setup(mpi):
        return config.load(Path(path), overrides)


def make_runs(mpi_host: MpiHost, ranks: int, runs: list[Kind], run_timeout: float) -> Iterator[Kind]:
    """Make all runs in one job of ``ranks`` ranks; yield each run when its file is complete.

    Parameters
    ----------
    run_timeout
        Seconds that one run may take.

    Raises
    ------
    Unfinished
        If the job fails or a run takes too long.
    """
    for one in runs:
        Path(one.out).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        list_file, output = Path(folder) / "runs.json", Path(folder) / "output"
        list_file.write_text(json.dumps([(type(one).__name__, *one) for one in runs]))
        command = mpi_host.mpiexec(["-n", ranks, sys.executable, "-m", "experiments.runner.batch", list_file])
        with output.open("w") as file, started(command, file, [partial_file(one.out) for one in runs]) as job:
            ready, timed = ready_file(list_file), timed_file(list_file)
            for one in runs:
                with mpi_host.without_cpu_limit():
                    wait_for(ready, job, output, MAX_START_SECONDS, in_words(one))
                ready.unlink()
                wait_for(timed, job, output, run_timeout, in_words(one))
                with mpi_host.without_cpu_limit():
                    timed.unlink()
                    wait_for(Path(one.out), job, output, run_timeout, in_words(one))
                yield one
            with mpi_host.without_cpu_limit(), suppress(subprocess.TimeoutExpired):  # all run files are complete
                job.wait(MAX_START_SECONDS)


def write_line(line: str):
    """Write a line to the terminal, above a progress bar."""
    tqdm.write(line, file=sys.stderr)


def make_each(
    mpi_host: MpiHost,
    ranks: int,
    runs: Iterable[Kind],
    run_timeout: float,
    announce: Callable[[str], None] = write_line,
) -> Iterator[tuple[Kind, str | None]]:
    """Make all runs like `make_runs`; yield each run when it is done, with its error message or None.

    A run that fails ends its job. A new job then begins with the failed run, because launchers sometimes fail by
    themselves, and ``announce`` is called. A run that fails twice is yielded with its error message, and a new job
    begins with the next run.
    """
    left, failed = list(runs), None
    while left:
        try:
            for _ in make_runs(mpi_host, ranks, list(left), run_timeout):
                yield left.pop(0), None
        except Unfinished as error:
            if failed == left[0]:
                yield left.pop(0), str(error)
            else:
                failed = left[0]
                announce(f"{error}; once more")


def wait_for(file: Path, job: subprocess.Popen, output: Path, seconds: float, name: str):
    """Wait until ``job`` has made ``file``; raise Unfinished if the job ends before, or after ``seconds`` seconds.

    name: name of the run for messages.
    """
    deadline = time.monotonic() + seconds
    while not file.exists():
        if job.poll() is not None and not file.exists():
            raise Unfinished(f"{name}: {failure_reason(output.read_text(errors='replace'))}")
        if time.monotonic() > deadline:
            raise Unfinished(f"{name}: no end within {seconds:g} s")
        time.sleep(POLL_SECONDS)


@contextmanager
def started(command: list, output, leftovers: list[Path]) -> Iterator[subprocess.Popen]:
    """Return a context with a started job, which ends with the context, and is killed if this process dies."""
    job = subprocess.Popen(
        [str(argument) for argument in command],
        env=job_environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        text=True,
        preexec_fn=with_parent(),
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            job.terminate()
            with suppress(subprocess.TimeoutExpired):
                job.wait(10)
            job.kill()
            job.wait(MAX_START_SECONDS)
        for path in leftovers:
            path.unlink(missing_ok=True)


def ready_file(list_file: Path) -> Path:
    """Return the file that exists when all ranks are ready to train; the ranks begin when the file has been removed."""
    return list_file.with_name("ready")


def timed_file(list_file: Path) -> Path:
    """Return the file that exists when all ranks have trained; the work of the ranks after training is not timed."""
    return list_file.with_name("timed")


def partial_file(out: str) -> Path:
    """Return the temporary path of the run file ``out``, which gets its name ``out`` when its accuracies are known."""
    return Path(out).with_suffix(f".part{Path(out).suffix}")


def failure_reason(output: str) -> str:
    """Return why a job failed: the error line of grsgd in its output, or the last 3000 characters of the output."""
    lines = [line for line in output.splitlines() if line.startswith("grsgd: ") and not line.endswith("failed:")]
    return lines[0] if lines else output[-3000:].strip() or "it printed nothing"


def main() -> int:
    """Make the runs in the list file, on every rank of this job."""
    mpi, list_file = launch.world(), Path(sys.argv[1])
    launch.abort_on_error(mpi)
    data.keep_loaded()
    warm_up()
    try:
        runs = json.loads(list_file.read_text()) if mpi.rank == 0 else None
        for kind, *fields in mpi.bcast(runs):  # the list file may be only on the disk of rank 0's host
            one = KINDS[kind](*fields)
            one.make(mpi, partial_file(one.out), partial(being_timed, mpi, list_file))
            launch.barrier(mpi)
            if mpi.rank == 0:
                os.replace(partial_file(one.out), one.out)
    except SetupError as error:
        if mpi.rank == 0:
            print(f"grsgd: error: {error}", file=sys.stderr)
        return 2
    return 0


def warm_up():
    """Take one training step before the timed part, because torch imports many of its modules only in a first step."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.nn.functional.cross_entropy(model(torch.zeros(1, 1)), torch.zeros(1, dtype=torch.int64)).backward()
    optimizer.step()


@contextmanager
def being_timed(mpi, list_file: Path) -> Iterator[None]:
    """Return a context in which hosts have the limited processors that they emulate."""
    launch.barrier(mpi)
    if mpi.rank == 0:
        ready_file(list_file).touch()
        wait_until_gone(ready_file(list_file))
    launch.barrier(mpi)
    yield
    if mpi.rank == 0:  # all other ranks have finished, because trainings and measurements end with a barrier
        timed_file(list_file).touch()


def wait_until_gone(file: Path):
    """Wait until a file has been removed; raise SetupError if that takes too long."""
    deadline = time.monotonic() + MAX_START_SECONDS
    while file.exists():
        if time.monotonic() > deadline:
            raise SetupError("the process that started the job has not let the runs begin")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
