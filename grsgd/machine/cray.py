"""Checks for GTL, the library with which Cray MPICH reads and writes GPU memory. Cray MPICH aborts a job that asks for
messages in GPU memory but has no GTL."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

GTL = re.compile(r"libmpi_gtl_\w+\.so")
"""Pattern of the beginnings of the names of GTL's files."""
WANTED = "MPICH_GPU_SUPPORT_ENABLED"
"""Environment variable that asks Cray MPICH for messages in GPU memory."""
FAULT = f"{WANTED}=1, but GTL is not linked, so Cray MPICH would abort the job"
REMEDY = (
    "set LD_PRELOAD to the GTL library (`ls $CRAY_MPICH_DIR/../../../gtl/lib/`: libmpi_gtl_cuda.so), or set "
    f"{WANTED}=0; mpi4py's wheels are not linked with GTL"
)


def is_cray(library: str) -> bool:
    """Return whether ``library``, the name that an MPI library gives itself, is of Cray MPICH."""
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
    """Return the reason why MPI_Init of Cray MPICH would abort the job, with the remedy. Return None if MPI_Init would
    not abort the job.

    ``files`` are the loaded files of GTL, by default the files of GTL that are loaded in this process.
    """
    if not is_cray(library) or not wants_gpu(environment) or (loaded() if files is None else files):
        return None
    return f"{FAULT}: {REMEDY}"


def without_gpu_memory(library: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the reason why Cray MPICH, after its start, cannot send messages from GPU memory, with the remedy. Return
    None if Cray MPICH can send such messages."""
    if wants_gpu(environment):
        return None
    return f"{library}: {WANTED}=1 is not set, with which GTL must be linked, too: {REMEDY.partition(', or')[0]}"
