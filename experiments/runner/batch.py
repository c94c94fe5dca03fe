"""Makes several runs in one MPI job.

The start of Python and torch takes longer than many runs, above all on few cores. ``make_runs`` starts ``mpiexec ...
python -m experiments.runner.batch LIST.json``. The started program makes all runs of the list LIST.json, one after the
other. The hosts of a testbed are limited to their emulated fraction of a core only while ranks train or measure. On a
twentieth of a core, to read a data set would take longer than many runs.
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
"""Greatest number of seconds in which ranks become ready to train, and in which a job ends after its last run."""
POLL_SECONDS = 0.1
"""Seconds from one check whether a file exists to the next check."""


Timed = Callable[[], AbstractContextManager]
"""Function that returns a context for the timed part of a run, in which hosts have only their emulated processors."""


class MpiHost(NamedTuple):
    """The functions by which MPI jobs are started on the hosts of a run."""

    mpiexec: Callable[[list], list]
    """Function that turns a list of arguments of ``mpiexec`` into the command that runs them on the hosts of a run."""
    without_cpu_limit: Callable[[], AbstractContextManager] = nullcontext
    """Function that returns a context in which the hosts of a testbed may use all cores of the machine."""


class Training(NamedTuple):
    """A training in the list of a batch job: its configuration, ``key=value`` overrides, and run file ``out``."""

    config: str
    overrides: list[str]
    out: str

    def make(self, mpi, out: Path, timed: Timed):
        """Train on all ranks.

        End the whole job if the training neither reaches its last step nor diverges. Raises SetupError.
        """
        end = run(mpi, load(mpi, self.config, self.overrides), out, timed=timed)
        stopped, remaining = end.reason, end.remaining
        if not is_finished(stopped) or remaining.size < mpi.size:
            if remaining.rank == 0:
                print(f"grsgd: error: {stopped}", file=sys.stderr)
            launch.exit_job(remaining, 1, complete=remaining.size == mpi.size)


class Calibration(NamedTuple):
    """A calibration of a simulated network, as by ``grsgd calibrate``, with ``steps`` training steps.

    share: the fraction of one core that each host has; None if the hosts' cores are not limited.
    """

    config: str
    overrides: list[str]
    out: str
    steps: int = 30
    share: float | None = None

    def make(self, mpi, out: Path, timed: Timed):
        """Measure links and processors on all ranks; write them to the network file ``out``. Raises SetupError."""
        loaded = load(mpi, self.config, self.overrides)
        measured = calibrate.calibrate(mpi, loaded, self.steps, timed, self.share)
        if mpi.rank == 0:
            settings = [argument for override in self.overrides for argument in ("--set", override)]
            command = ["grsgd", "calibrate", self.config, *settings, "--steps", str(self.steps), "--out", self.out]
            write(out, network_file(measured, loaded, shlex.join(command)))


class Computing(NamedTuple):
    """A measurement of the seconds that ``steps`` training steps without messages take on each rank.

    The results are in the JSON file ``out``: the `grsgd.simulator.calibration.calibrate.StepTimes` of each rank.
    """

    config: str
    overrides: list[str]
    out: str
    steps: int

    def make(self, mpi, out: Path, timed: Timed):
        """Measure the computing time of a step on all ranks, and write it to the file ``out``. Raises SetupError."""
        found = calibrate.computing(mpi, load(mpi, self.config, self.overrides), self.steps, timed)
        if mpi.rank == 0:
            out.write_text(json.dumps(found))


class Work(NamedTuple):
    """A measurement of an algorithm's work over ``steps`` steps.

    The work is the part of a step's seconds that exceeds the computation of the gradient. The result is in the JSON
    file ``out``: the seconds of work, or null if the ranks cannot train with the algorithm.
    """

    config: str
    overrides: list[str]
    out: str
    steps: int

    def make(self, mpi, out: Path, timed: Timed):
        """Measure the algorithm's work on all ranks, and write the seconds to the file ``out``. Raises SetupError."""
        found = calibrate.work(mpi, load(mpi, self.config, self.overrides), timed, self.steps)
        if mpi.rank == 0:
            out.write_text(json.dumps(found))


Kind = Training | Calibration | Computing | Work
KINDS = {kind.__name__: kind for kind in (Training, Calibration, Computing, Work)}


def in_words(one: Kind) -> str:
    """Return a name for a run or measurement in messages: the name of the run file, or the kind of the measurement.

    The result file of a measurement may be temporary, so that its name means nothing to a user.
    """
    is_run = isinstance(one, Training)
    return Path(one.out).name if is_run else f"{type(one).__name__.lower()} of {Path(one.config).stem}"


def load(mpi, path: str, overrides: list[str]) -> config.Config:
    """Load the configuration file ``path`` on all ranks; raise SetupError on all ranks if it is wrong."""
    with launch.collective_setup(mpi):
        return config.load(Path(path), overrides)


def make_runs(mpi_host: MpiHost, ranks: int, runs: list[Kind], run_timeout: float) -> Iterator[Kind]:
    """Make all runs of a list in one MPI job of ``ranks`` ranks; yield each run when its run file is complete.

    Parameters ---------- run_timeout Greatest number of seconds for one run.

    Raises ------ Unfinished If the MPI job fails or one of its runs takes longer than ``run_timeout``.
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
            with mpi_host.without_cpu_limit(), suppress(subprocess.TimeoutExpired):  # all run files are complete now
                job.wait(MAX_START_SECONDS)


def write_line(line: str):
    """Write a line to stderr above the terminal's progress bar."""
    tqdm.write(line, file=sys.stderr)


def make_each(
    mpi_host: MpiHost,
    ranks: int,
    runs: Iterable[Kind],
    run_timeout: float,
    announce: Callable[[str], None] = write_line,
) -> Iterator[tuple[Kind, str | None]]:
    """Make all runs of a list like `make_runs`; yield each run when it is done, with its error message or None.

    A run that fails ends the MPI job. After the first failure of a run, ``announce`` is called, and a new job begins
    with this run, because launchers sometimes fail by chance. If a run fails twice, it is yielded with its error
    message, and a new job begins with the next run.
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
    """Wait until the process ``job`` has made ``file``.

    Raises Unfinished if the process ends before, or if the file does not exist after ``seconds`` seconds.

    name: name of the run, for messages.
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
    """Start an MPI job; return a context that yields the process of the job.

    The job ends at the end of the context, and is killed if this process dies.
    """
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
    """Return the path of the file which exists while all ranks are ready to train.

    The ranks begin to train when the process that started the job has removed the file.
    """
    return list_file.with_name("ready")


def timed_file(list_file: Path) -> Path:
    """Return the path of the file which exists when all ranks have trained.

    The work of the ranks after the training is not timed.
    """
    return list_file.with_name("timed")


def partial_file(out: str) -> Path:
    """Return the path of the incomplete run file, which is renamed to ``out`` when its accuracies have been added."""
    return Path(out).with_suffix(f".part{Path(out).suffix}")


def failure_reason(output: str) -> str:
    """Return why an MPI job failed: grsgd's error line in its output, or the output's last 3000 characters."""
    lines = [line for line in output.splitlines() if line.startswith("grsgd: ") and not line.endswith("failed:")]
    return lines[0] if lines else output[-3000:].strip() or "it printed nothing"


def main() -> int:
    """Make the runs in the list file; every rank of the MPI job executes this function."""
    mpi, list_file = launch.world(), Path(sys.argv[1])
    launch.abort_on_error(mpi)
    data.keep_loaded()
    warm_up()
    try:
        runs = json.loads(list_file.read_text()) if mpi.rank == 0 else None
        for kind, *fields in mpi.bcast(runs):  # rank 0 reads the list file, which may be on its host's disk only
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
    """Take one training step before anything is timed, because the first step imports many modules of torch."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.nn.functional.cross_entropy(model(torch.zeros(1, 1)), torch.zeros(1, dtype=torch.int64)).backward()
    optimizer.step()


@contextmanager
def being_timed(mpi, list_file: Path) -> Iterator[None]:
    """Return a context for the timed part of a run.

    The hosts are limited to their emulated processors until the context ends.
    """
    launch.barrier(mpi)
    if mpi.rank == 0:
        ready_file(list_file).touch()
        wait_until_gone(ready_file(list_file))
    launch.barrier(mpi)
    yield
    if mpi.rank == 0:  # rank 0 is the last rank, because trainings and measurements end with a barrier
        timed_file(list_file).touch()


def wait_until_gone(file: Path):
    """Wait until ``file`` has been removed; raise SetupError after `MAX_START_SECONDS`."""
    deadline = time.monotonic() + MAX_START_SECONDS
    while file.exists():
        if time.monotonic() > deadline:
            raise SetupError("the process that started the job has not let the runs begin")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
