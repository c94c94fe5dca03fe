"""Checks for GTL, the library with which Cray MPICH reads and writes GPU memory. If a job asks for messages in GPU
memory but GTL is missing, Cray MPICH aborts the job."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

GTL = re.compile(r"libmpi_gtl_\w+\.so")
"""Regular expression for the beginning of the names of GTL's files."""
WANTED = "MPICH_GPU_SUPPORT_ENABLED"
"""Environment variable that asks Cray MPICH for messages in GPU memory."""
FAULT = f"{WANTED}=1, but GTL is not linked, so Cray MPICH would abort the job"
REMEDY = (
    "set LD_PRELOAD to the GTL library (`ls $CRAY_MPICH_DIR/../../../gtl/lib/`: libmpi_gtl_cuda.so), or set "
    f"{WANTED}=0; mpi4py's wheels are not linked with GTL"
)


def is_cray(library: str) -> bool:
    """Return whether ``library``, the name that an MPI library reports for itself, is a name of Cray MPICH."""
    return "CRAY MPICH" in library


def wants_gpu(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``environment`` asks Cray MPICH for messages in GPU memory."""
    return environment.get(WANTED, "0").strip() not in ("", "0")


def loaded(pattern: re.Pattern = GTL, maps: Path = Path("/proc/self/maps")) -> tuple[str, ...]:
    """Return the paths of the files loaded in this process whose names begin with ``pattern``, without repetition."""
    try:
        paths = [line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if line.count("/")]
    except (OSError, IndexError):
        return ()
    return tuple(dict.fromkeys(path for path in paths if pattern.match(os.path.basename(path))))


def abort_reason(library: str, environment: Mapping[str, str] = os.environ, files: tuple[str, ...] | None = None):
    """Return a text with the reason why MPI_Init of Cray MPICH would abort the job, and with the remedy. Return None if
    MPI_Init of Cray MPICH would not abort the job.

    ``files`` are the paths of GTL's files that are loaded; by default they are looked up in this process.
    """
    if not is_cray(library) or not wants_gpu(environment) or (loaded() if files is None else files):
        return None
    return f"{FAULT}: {REMEDY}"


def without_gpu_memory(library: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a text with the reason why Cray MPICH, after MPI_Init, cannot send messages from GPU memory, and with the
    remedy. Return None if Cray MPICH can send messages from GPU memory."""
    if wants_gpu(environment):
        return None
    return f"{library}: {WANTED}=1 is not set, with which GTL must be linked, too: {REMEDY.partition(', or')[0]}"
