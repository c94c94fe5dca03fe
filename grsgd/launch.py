"""Starting and ending a job: MPI, its launcher, and one message when something is wrong."""

import os
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

from grsgd.comm.communicator import LostRank
from grsgd.comm.driver import Driver, WaitTimeout, back_off

LAUNCHERS = ("mpiexec", "mpirun", "prterun", "hydra", "srun", "orterun")

EXPLAINED = (LostRank, WaitTimeout)
"""Errors that say all there is to say: no traceback."""

SETTLING_SECONDS = 1.0
"""Under Slurm, between the start of MPI and the first message. Tasks leave MPI_Init one after the other, and Open MPI 5
ends with a segmentation fault where a message arrives before (open-mpi/ompi#12495)."""


class UsageError(ValueError):
    """Something the user can mend; one line."""


def world():
    """MPI_COMM_WORLD. MPI starts here, not on import.

    Raises UsageError under ``srun`` without MPI support, where every task would silently train alone.
    """
    starts = "mpi4py.MPI" not in sys.modules
    from mpi4py import MPI

    tasks = int(os.environ.get("SLURM_NTASKS") or 1)
    if tasks > 1 and MPI.COMM_WORLD.size == 1:
        raise UsageError(
            f"Slurm started {tasks} tasks (SLURM_NTASKS), but MPI sees only 1 rank: start with `srun --mpi=pmix` "
            "(`srun --mpi=list` shows what your Slurm offers) or with `mpiexec`; unset SLURM_NTASKS to train alone"
        )
    if tasks > 1 and starts:
        time.sleep(SETTLING_SECONDS)
    return MPI.COMM_WORLD


def ranks_on_cores(mpi) -> int:
    """How many ranks of the job, this one included, share cores with this one; collective."""
    from mpi4py import MPI

    host = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    count = sum(bool(mine & theirs) for theirs in host.allgather(mine))
    host.Free()
    return count


def local_rank(mpi) -> int:
    """The number of this rank among those of its host; collective."""
    from mpi4py import MPI

    host = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    number = host.rank
    host.Free()
    return number


def driver(mpi, timeout: float, progress: str, **options) -> Driver:
    """The driver of this rank; collective. ``progress`` and further ``options`` as for `Driver`.

    Raises UsageError if a thread is asked for and the MPI library does not allow calls from two threads.
    """
    from mpi4py import MPI

    thread_allowed = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    if not thread_allowed:
        if progress == "thread":
            raise UsageError("comm.progress = 'thread': this MPI library was started without MPI_THREAD_MULTIPLE")
        progress = "inline"
    return Driver(mpi.rank, timeout, progress, ranks_on_cores(mpi), thread_allowed=thread_allowed, **options)


def abort_on_error(mpi):
    """From now on an uncaught exception on any rank ends the whole job, with its traceback printed once.

    Without this the other ranks would wait for ever: MPI does not notice that a Python program has failed.
    """

    def end(kind, value, trace, thread=None):
        if issubclass(kind, SystemExit):
            return
        # When all ranks fail alike, the first one to report ends the others before they repeat it.
        time.sleep(0.05 * min(mpi.rank, 40))
        where = f"rank {mpi.rank} of {mpi.size}" + (f", thread {thread}" if thread else "")
        if issubclass(kind, EXPLAINED):
            print(f"\ngrsgd: {where}: {value}", file=sys.stderr)
        else:
            print(f"\ngrsgd: {where} failed:", file=sys.stderr)
            traceback.print_exception(kind, value, trace)
        abort(mpi)

    sys.excepthook = end
    threading.excepthook = lambda args: end(args.exc_type, args.exc_value, args.exc_traceback, args.thread.name)


def abort(mpi):
    """End the whole job with exit code 1, after the launcher has had time to pass on what was printed."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(0.3)
    mpi.Abort(1)


def meet(mpi, seconds: float = 600.0):
    """Wait until all ranks of ``mpi`` have come here; raises WaitTimeout."""
    everybody, begin = mpi.Ibarrier(), time.perf_counter()
    while not everybody.Test():
        waited = time.perf_counter() - begin
        if waited > seconds:
            raise WaitTimeout(f"rank {mpi.rank} waited {seconds:g} s for all {mpi.size} ranks to come as far as it")
        back_off(waited)


@contextmanager
def together(mpi, errors: tuple[type[Exception], ...], seconds: float = 600.0):
    """Set-up that must succeed on all ranks: if ``errors`` are raised on some, all leave with UsageError.

    The message is the lowest rank's; it names the rank unless all failed. Raises WaitTimeout if some do not come.
    """
    message = None
    try:
        yield
    except errors as error:
        message = str(error)
    meet(mpi, seconds)
    messages = mpi.allgather(message)
    failed = [rank for rank, text in enumerate(messages) if text is not None]
    if failed:
        first = messages[failed[0]]
        everywhere = len(failed) == mpi.size
        raise UsageError(first if everywhere else f"rank {failed[0]}: {first}")


def at_terminal() -> bool:
    """Whether what this rank prints to stderr is seen on a terminal.

    A launcher puts pipes (Open MPI: a pseudo terminal) between its own output and that of its ranks, so it is the
    launcher's stderr that counts.
    """
    terminal = sys.stderr.isatty()
    pid = os.getppid()
    while pid > 1:
        try:
            name = Path(f"/proc/{pid}/comm").read_text()
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if name.startswith(LAUNCHERS):
                terminal = os.readlink(f"/proc/{pid}/fd/2").startswith(("/dev/pts/", "/dev/tty"))
        except (OSError, ValueError):
            break
        pid = parent
    return terminal


def hosts(mpi) -> list[str]:
    """The host name of every rank; collective."""
    from mpi4py import MPI

    return mpi.allgather(MPI.Get_processor_name())


def library() -> str:
    """Name and version of the MPI library."""
    from mpi4py import MPI

    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip(" \0")


def wait_for_the_end(seconds: float = 3600.0):
    """Of a rank that the others have left behind: they end the whole job when they are done."""
    time.sleep(seconds)
    os._exit(1)


def leave(mpi, code: int, complete: bool = True):
    """End this process after an early end, on all ranks: messages may still be under way, so MPI is not finalised.

    Not ``complete``: there are ranks besides those of ``mpi``, which do not answer and must be ended with the job.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    mpi.Barrier()
    if not complete:
        if mpi.rank == 0:
            time.sleep(0.3)  # until the launcher has passed on what was printed
            mpi.Abort(code)
        time.sleep(3)  # until the launcher ends this process too; a fault-tolerant one leaves that to itself
    os._exit(code)
