"""Environment variables and launcher of the MPI jobs that this program starts."""

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from grsgd.errors import ConfigError

DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "^ofi",  # without this component of Open MPI, jobs start a second sooner
    "OMPI_MCA_mpi_yield_when_idle": "1",  # waiting ranks leave the cores to computing ranks
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""Environment variables by which Open MPI may start more ranks than the machine has cores, and may start as root. With
these variables each rank has one thread. The Makefile sets the same variables."""

WORDS = "GRSGD_WORDS"
"""Environment variable with the path of a folder into which ranks write files. These files tell the process that has
started the job how the job ended."""

HEARTS = "GRSGD_HEARTS"
"""Environment variable by which each rank starts a heart process, which tells `grsgd run` or `grsgd testbed` that the
rank's host is alive."""

RESTARTS = "GRSGD_RESTARTS"
"""Environment variable that tells the ranks after which losses of hosts the job was started again."""

JOB = "GRSGD_JOB"
"""Environment variable with the id of a job that `grsgd run --restarts` starts; the id is the same after restarts."""

SPARES = "GRSGD_SPARES"
"""Environment variable with the number of spare processes of a script. The spare processes are the last ones of the
job, and replace processes that die."""

LAUNCHER_VARIABLES = (
    WORDS,
    HEARTS,
    RESTARTS,
    JOB,
    SPARES,
    "FLUX_JOB_SIZE",
    "FLUX_TASK_",
    "HYDI_",
    "HYDRA_",
    "JSM_",
    "MPIR_",
    "MPI_LOCAL",
    "MV2_COMM_WORLD_",
    "OMPI_APP",
    "OMPI_COMM_WORLD_",
    "OMPI_FILE",
    "OMPI_UNIVERSE",
    "PALS_",
    "PMI",
    "PRTE_LAUNCHED",
    "PRRTE",
    "SLURM",
)
"""Beginnings of the names of environment variables that a launcher sets to make a process a rank of a job."""

RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
)
"""Environment variables in which launchers tell a process its rank."""


def rank() -> str | None:
    """Return this process's rank according to the launcher's environment variables; None without such variables. This
    function works before MPI has been initialised, too."""
    return next((os.environ[name] for name in RANK_VARIABLES if os.environ.get(name)), None)


def fault_tolerant() -> bool:
    """Return whether Open MPI was started with ``--with-ft ulfm``. With this option, MPI_Abort ends only the calling
    process. The other ranks do not learn that the calling process, or a rank with an exit code other than 0, has
    ended."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable", "0").lower() in ("1", "true", "yes")


PIDFD_GETFD = 438
"""Number of Linux's system call pidfd_getfd, which copies a file descriptor of another process. All architectures
except Alpha have this number."""

LAUNCHERS = ("mpiexec", "mpirun", "prterun", "hydra", "srun", "orterun")
"""Beginnings of the names of processes that are launchers of MPI jobs."""


def job_environment() -> dict[str, str]:
    """Return the environment variables for an MPI job: the variables of this process, and those `DEFAULTS` that this
    process does not set."""
    return DEFAULTS | os.environ


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` without the variables of a launcher, so that a process with these variables can start
    another job, or run alone."""
    return {key: value for key, value in environment.items() if not key.startswith(LAUNCHER_VARIABLES)}


def module(name: str) -> list[str]:
    """Return the command line that runs the module ``name`` of this program. The command imports no modules from the
    working directory."""
    return [sys.executable, "-P", "-m", name]


def flush():
    """Flush stdout and stderr. Skip a stream that is None, because this process was started without the stream."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def find_mpiexec() -> str:
    """Return the path of the ``mpiexec`` in the folder of this Python or, if that folder has none, on PATH. Raises
    ConfigError if no ``mpiexec`` is found."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None:
        raise ConfigError(f"no mpiexec in {beside.parent} or on PATH")
    return found


def launcher() -> int | None:
    """Return the process number of the outermost launcher of this job; None if the launcher runs on another host."""
    found, pid = None, os.getppid()
    while pid > 1:
        try:
            name = Path(f"/proc/{pid}/comm").read_text()
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            break
        found, pid = pid if name.startswith(LAUNCHERS) else found, parent
    return found or srun()


def srun() -> int | None:
    """Return the process number of the ``srun`` that has launched this process; None if ``srun`` runs on another host.
    ``srun`` is no ancestor of this process, because Slurm's daemon has started this process. ``srun`` is therefore
    found by the port on which it listens, whose number is in this process's environment."""
    port = os.environ.get("SLURM_STEP_LAUNCHER_PORT", "")
    if not port.isdecimal():
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            if (process / "comm").read_text() != "srun\n":
                continue
            sockets = [line.split() for line in (process / "net" / "tcp").read_text().splitlines()[1:]]
            inodes = {fields[9] for fields in sockets if fields[1].endswith(f":{int(port):04X}")}
            if inodes & {os.readlink(file).strip("socket:[]") for file in (process / "fd").iterdir()}:
                return int(process.name)
    return None


def say(line: str):
    """Print ``line`` for the user after a signal has arrived."""
    speaker()(line)


@cache
def speaker() -> Callable[[str], None]:
    """Return a function that prints a line after a signal has arrived. Programs call `speaker` before any signal,
    because `speaker` does all preparation.

    After a signal, Open MPI's launcher does not print the output of ranks any more. The returned function therefore
    prints to the launcher's own stderr, if the launcher is on this host.
    """
    outermost = launcher() if "OMPI_COMM_WORLD_RANK" in os.environ else None
    try:
        stderr = stderr_of(outermost)
    except OSError:
        return lambda line: print(f"\ngrsgd: {line}", file=sys.stderr, flush=True)

    def say(line: str):
        with suppress(OSError):  # a pipe may be full or have no reader
            os.write(stderr, f"\ngrsgd: {line}\n".encode())

    return say


def stderr_of(process: int | None) -> int:
    """Return a file descriptor of the stderr of ``process``. Raises OSError if this stream cannot be copied or opened.

    The returned descriptor is a copy of the process's own descriptor, if the system allows copies. On other systems the
    stream is opened anew, to append. Without appending, a newly opened file would have its own position, and new output
    would overwrite the output of ``process``.
    """
    try:
        return copied_descriptor(process, 2)
    except OSError:
        return os.open(f"/proc/{process}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)


def copied_descriptor(process: int | None, descriptor: int) -> int:
    """Return a copy of the file descriptor ``descriptor`` of the process ``process``. Raises OSError, for example if
    this system cannot copy descriptors of other processes."""
    if process is None or not hasattr(os, "pidfd_open"):
        raise OSError("there is no such process or no such call")
    handle = os.pidfd_open(process)
    try:
        copied = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, handle, descriptor, 0)
        if copied < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        return copied
    finally:
        os.close(handle)
