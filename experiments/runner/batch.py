"""Several runs in one MPI job: starting Python and torch takes longer than many a run, and most of all on few cores.

``make`` starts ``mpiexec ... python -m experiments.runner.batch LIST.json``, which makes one run after the other. Hosts
have the processors that are to be emulated only while ranks train or measure: on a twentieth of a core, reading a data
set takes longer than many a run.
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
from grsgd.simulate.calibration import calibrate
from grsgd.simulate.calibration.network_file import network_file, write

MAX_START_SECONDS = 300
"""Seconds that a job may take until all of its ranks are there and have their data, and to end."""
POLL_SECONDS = 0.1


Timed = Callable[[], AbstractContextManager]
"""Makes the context in which a run is to know the limits of its hosts."""


class MpiHost(NamedTuple):
    """Where MPI jobs run."""

    mpiexec: Callable[[list], list]
    """Makes the command to run of the arguments of ``mpiexec``."""
    without_cpu_limit: Callable[[], AbstractContextManager] = nullcontext
    """Makes a context in which programs may compute faster than otherwise."""


class Training(NamedTuple):
    """One run: its configuration, ``key=value``s that replace some of it, and its run file."""

    config: str
    overrides: list[str]
    out: str

    def make(self, mpi, out: Path, timed: Timed):
        """Train, on all ranks; where the run neither reaches its end nor diverges, the job ends with it.

        Raises SetupError.
        """
        end = run(mpi, load(mpi, self.config, self.overrides), out, timed=timed)
        stopped, remaining = end.reason, end.remaining
        if not is_finished(stopped) or remaining.size < mpi.size:
            if remaining.rank == 0:
                print(f"grsgd: error: {stopped}", file=sys.stderr)
            launch.exit_job(remaining, 1, complete=remaining.size == mpi.size)


class Calibration(NamedTuple):
    """A calibration, as by ``grsgd calibrate``, with so many steps of training. share: of a core that each host has."""

    config: str
    overrides: list[str]
    out: str
    steps: int = 30
    share: float | None = None

    def make(self, mpi, out: Path, timed: Timed):
        """Measure, on all ranks. Raises SetupError."""
        loaded = load(mpi, self.config, self.overrides)
        measured = calibrate.calibrate(mpi, loaded, self.steps, timed, self.share)
        if mpi.rank == 0:
            settings = [argument for override in self.overrides for argument in ("--set", override)]
            command = ["grsgd", "calibrate", self.config, *settings, "--steps", str(self.steps), "--out", self.out]
            write(out, network_file(measured, loaded, shlex.join(command)))


class Computing(NamedTuple):
    """A measurement of the time of a step alone, of so many steps. The file is JSON: the
    `grsgd.simulate.calibration.calibrate.StepTimes`, by rank."""

    config: str
    overrides: list[str]
    out: str
    steps: int

    def make(self, mpi, out: Path, timed: Timed):
        """Measure, on all ranks. Raises SetupError."""
        found = calibrate.computing(mpi, load(mpi, self.config, self.overrides), self.steps, timed)
        if mpi.rank == 0:
            out.write_text(json.dumps(found))


class Work(NamedTuple):
    """A measurement of an algorithm's work over ``steps`` steps: seconds of a step beyond those of its gradient alone.
    The file is JSON: seconds, or null."""

    config: str
    overrides: list[str]
    out: str
    steps: int

    def make(self, mpi, out: Path, timed: Timed):
        """Measure, on all ranks. Raises SetupError."""
        found = calibrate.work(mpi, load(mpi, self.config, self.overrides), timed, self.steps)
        if mpi.rank == 0:
            out.write_text(json.dumps(found))


Kind = Training | Calibration | Computing | Work
KINDS = {kind.__name__: kind for kind in (Training, Calibration, Computing, Work)}


def in_words(one: Kind) -> str:
    """Return a run's name for messages: that of its file, which of a measurement may be a temporary one."""
    is_run = isinstance(one, Training)
    return Path(one.out).name if is_run else f"{type(one).__name__.lower()} of {Path(one.config).stem}"


def load(mpi, path: str, overrides: list[str]) -> config.Config:
    """Load a configuration on all ranks; raises SetupError on all of them."""
    with launch.collective_setup(mpi):
        return config.load(Path(path), overrides)


def make_runs(mpi_host: MpiHost, ranks: int, runs: list[Kind], run_timeout: float) -> Iterator[Kind]:
    """Make all runs in one job of so many ranks; yield each when its file is there, and whole.

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
            with mpi_host.without_cpu_limit(), suppress(subprocess.TimeoutExpired):  # all files are there
                job.wait(MAX_START_SECONDS)


def write_line(line: str):
    """Write a line to the terminal, above a bar of progress."""
    tqdm.write(line, file=sys.stderr)


def make_each(
    mpi_host: MpiHost,
    ranks: int,
    runs: Iterable[Kind],
    run_timeout: float,
    announce: Callable[[str], None] = write_line,
) -> Iterator[tuple[Kind, str | None]]:
    """Make all runs as `make_runs` does; yields each when it is done, with what went wrong, or None.

    A run that fails ends its job. Another job begins with the same run, which is announced, because launchers now and
    then fail by themselves. A run that fails twice is yielded with the reason, and another job begins with the next.
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
    """Wait until a job has made a file; raises Unfinished if it ends without, or takes longer. name: of the run."""
    deadline = time.monotonic() + seconds
    while not file.exists():
        if job.poll() is not None and not file.exists():
            raise Unfinished(f"{name}: {failure_reason(output.read_text(errors='replace'))}")
        if time.monotonic() > deadline:
            raise Unfinished(f"{name}: no end within {seconds:g} s")
        time.sleep(POLL_SECONDS)


@contextmanager
def started(command: list, output, leftovers: list[Path]) -> Iterator[subprocess.Popen]:
    """Start a job that ends when the block is left, at the latest, and is killed with this process."""
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
    """Return the file that says that all ranks are ready to train; they begin when it is gone."""
    return list_file.with_name("ready")


def timed_file(list_file: Path) -> Path:
    """Return the file that says that all ranks have trained, and that what follows is not timed."""
    return list_file.with_name("timed")


def partial_file(out: str) -> Path:
    """Return where a run is written first: its file is there before its accuracies are."""
    return Path(out).with_suffix(f".part{Path(out).suffix}")


def failure_reason(output: str) -> str:
    """Return why a job failed: what grsgd says in one line, or else the end of its output."""
    lines = [line for line in output.splitlines() if line.startswith("grsgd: ") and not line.endswith("failed:")]
    return lines[0] if lines else output[-3000:].strip() or "it printed nothing"


def main() -> int:
    """Make the runs of the list, on every rank."""
    mpi, list_file = launch.world(), Path(sys.argv[1])
    launch.abort_on_error(mpi)
    data.keep_loaded()
    warm_up()
    try:
        runs = json.loads(list_file.read_text()) if mpi.rank == 0 else None
        for kind, *fields in mpi.bcast(runs):  # the list may lie on a disk of rank 0's host alone
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
    """Take a first step: torch imports much of itself only then."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.nn.functional.cross_entropy(model(torch.zeros(1, 1)), torch.zeros(1, dtype=torch.int64)).backward()
    optimizer.step()


@contextmanager
def being_timed(mpi, list_file: Path) -> Iterator[None]:
    """While inside, hosts have the processors that are to be emulated."""
    launch.barrier(mpi)
    if mpi.rank == 0:
        ready_file(list_file).touch()
        wait_until_gone(ready_file(list_file))
    launch.barrier(mpi)
    yield
    if mpi.rank == 0:  # all others have measured: training, and measuring, end with a barrier
        timed_file(list_file).touch()


def wait_until_gone(file: Path):
    """Wait; raises SetupError if that takes too long."""
    deadline = time.monotonic() + MAX_START_SECONDS
    while file.exists():
        if time.monotonic() > deadline:
            raise SetupError("the process that started the job has not let the runs begin")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
