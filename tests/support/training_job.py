"""Jobs of ``grsgd train`` on several ranks, to which tests send signals, and in which tests cause failures."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support import launcher

RANKS = 3
LAUNCHERS = {"openmpi": ("openmpi", []), "ulfm": ("openmpi", ["--with-ft", "ulfm"]), "mpich": ("mpich", [])}
"""Ways to start a job, by name: the MPI library, and options of the library's launcher."""
START_SECONDS = 90
CRASH = "ompi_errhandler_proc_failed_internal"
"""Function of Open MPI that sometimes ends ranks with a segmentation fault after the death of another rank."""
PROGRAM = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv.pop())
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
(folder / "rank.part").with_suffix(f".{rank}.part").write_text(str(os.getpid()))
(folder / "rank.part").with_suffix(f".{rank}.part").rename(folder / f"{rank}.pid")
from grsgd import cli
from grsgd.training.trainer import Trainer
step = Trainer.step
def stepped(trainer, number):
    (folder / f"{rank}.begun").touch()
    if trainer.snapshots.moments:
        (folder / f"{rank}.measured").touch()
    if (folder / f"{rank}.raise").exists():
        raise RuntimeError("boom")
    yield from step(trainer, number)
Trainer.step = stepped
sys.exit(cli.main(sys.argv[1:]))
"""
"""A program for each rank that writes files with its process id, when training begins, and when it has a snapshot. The
program raises an error when a test creates the file ``RANK.raise``."""


class TrainingJob:
    """A job that trains in ``folder`` with ``config``, the text of a configuration file.

    ``start``: a key of ``LAUNCHERS``, or a testbed with one rank per host. ``program``: the program of each rank, whose
    last argument is the folder. ``arguments``: further arguments of `grsgd train`.
    """

    def __init__(self, start, folder: Path, config: str, program=PROGRAM, ranks=RANKS, environment=None, arguments=()):
        self.ranks = ranks
        self.folder, self.out, self.printed = folder, folder / "run.h5", folder / "printed.txt"
        (folder / "run.toml").write_text(config)
        arguments = ["-c", program, "train", folder / "run.toml", "--out", self.out, *arguments, folder]
        with self.printed.open("w") as printed:
            if isinstance(start, str):
                library, options = LAUNCHERS[start]
                self.process = launcher.start(library, ranks, arguments, environment, options=options, stdout=printed)
            else:
                self.process = launcher.start_on(start, ranks, arguments, stdout=printed)

    def wait_for(self, *names):
        """Wait until the files called ``names`` exist in the job's folder."""
        deadline = time.monotonic() + START_SECONDS
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < deadline and self.process.poll() is None, f"no {names}: {self.output()}"
            time.sleep(0.05)

    def wait_until_it_trains(self, ranks=RANKS):
        self.wait_for(*(f"{rank}.begun" for rank in range(ranks)))

    def wait_for_snapshots(self, ranks=RANKS):
        self.wait_for(*(f"{rank}.measured" for rank in range(ranks)))

    def pid(self, rank) -> int:
        self.wait_for(f"{rank}.pid")
        return int((self.folder / f"{rank}.pid").read_text())

    def signal(self, rank, number):
        os.kill(self.pid(rank), number)

    def signal_launcher(self, number):
        os.kill(self.process.pid, number)

    def fail(self, rank):
        """Raise an exception on rank ``rank`` in its next step."""
        (self.folder / f"{rank}.raise").touch()

    def finish(self, bound) -> tuple[int, str]:
        """Return the exit code and the output of the job. Fail the test if the job has not ended within ``bound``
        seconds."""
        try:
            code = self.process.wait(bound)
        except subprocess.TimeoutExpired:
            pytest.fail(f"no end within {bound:g} s; output:\n{self.output()[-5000:]}")
        output = self.output()
        if "Segmentation fault" in output and CRASH in output:
            pytest.xfail(f"Open MPI crashed in {CRASH}, its own handler of failures (docs/how-to/failures.md)")
        return code, output

    def output(self) -> str:
        return self.printed.read_text(errors="replace")

    def clean_up(self):
        """Kill the processes that this job has left, and no other processes."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for file in self.folder.glob("*.pid"):
            with suppress(OSError, ValueError):
                pid = int(file.read_text())
                if str(self.folder) in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def training_jobs(folder: Path) -> Iterator:
    """Yield a function that starts a `TrainingJob` in ``folder`` with the function's arguments. At the end, kill the
    jobs' processes."""
    jobs = []

    def begin(start, config, **options) -> TrainingJob:
        jobs.append(TrainingJob(start, folder, config, **options))
        return jobs[-1]

    try:
        yield begin
    finally:
        for job in jobs:
            job.clean_up()


def reasons(output: str) -> list[str]:
    """Return the lines of ``output`` in which grsgd has named a failed rank and its error."""
    return re.findall(r"^grsgd: rank .*", output, re.MULTILINE)
