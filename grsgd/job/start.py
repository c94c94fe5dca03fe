"""Start of a job of several ranks with an available launcher, for ``grsgd run``. After a signal the job can still save
its results."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grsgd.errors import ConfigError, UsageError
from grsgd.job.binding import srun_options
from grsgd.job.ending import adopt_orphans, with_parent
from grsgd.job.foreign_launchers import check_alone
from grsgd.job.hearing import LOOK_SECONDS, Hearing
from grsgd.job.hosts import Host, in_allocation, options
from grsgd.job.signals import CHECKPOINTED, EXIT_CODE
from grsgd.machine.binding import BIND, computing_threads
from grsgd.mpi_environment import DEFAULTS, HEARTS, JOB, RESTARTS, SPARES, WORDS, find_mpiexec, module

LAUNCHERS = ("auto", "srun", "mpiexec")
"""Allowed values of the option ``--launcher``."""

ENDING_SECONDS = 600.0
"""Seconds in which a job that was asked to stop can compute accuracies and save its results before it is killed."""
KILLING_SECONDS = 5.0
"""Seconds that the launcher has to end the job at once, after a second signal or `ENDING_SECONDS`, before the launcher
is killed."""
LOST_SECONDS = 1.5
"""Seconds that the launcher has to end a job that has lost a host, before the launcher is killed."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals to the process of ``grsgd run`` that end the job."""
GENTLE = signal.SIGUSR1
"""Signal that is sent to the launcher in place of the signals `ENDING`. After a signal of `ENDING` a launcher would
soon kill its ranks. After the signal `GENTLE`, each launcher passes `GENTLE` on to the ranks and goes on running.
`GENTLE` also ends a training if it is sent to the process of ``grsgd run``."""

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals to the process of ``grsgd run`` that are passed on to the launcher, which passes them on to the ranks. A run
with checkpoints takes a checkpoint after SIGUSR2, and goes on."""

KILLED_BY_IT = (-GENTLE, GENTLE, 128 + GENTLE)
"""Exit codes of launchers whose ranks were killed by the signal `GENTLE` before the ranks had a handler for this
signal."""

ALONE = {"PMI_SIZE": "1"}
"""Environment variable that makes Hugging Face Accelerate treat each rank as a single process, without a process group
in addition to MPI. Open MPI does not read PMI_SIZE."""

class JobCommand(NamedTuple):
    """Command line of a job, and the environment variables that must be set for it in addition to the present
    environment."""

    variables: dict[str, str]
    command: list[str]

    def __str__(self) -> str:
        """Return the job's environment variables and command as one line for a shell."""
        variables = (f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        return " ".join([*variables, self.short()])

    def short(self) -> str:
        """Return the job's command line for a shell, without the environment variables."""
        words = list(self.command)
        for place, name in ((0, Path(words[0]).name), (words.index(sys.executable), "python")):
            found = shutil.which(name)
            if found and words[place] != name and os.path.samefile(found, words[place]):
                words[place] = name
        return shlex.join(words)


def job(
    target: str,
    arguments: list[str],
    ranks: int | None,
    launcher: str = "auto",
    spares: int | None = None,
    bind: str | None = None,
    hosts: Sequence[Host] = (),
) -> JobCommand:
    """Return the command of a job that trains a configuration, or runs a script, on ``ranks`` ranks.

    ``target`` is the file of a configuration, a script, a folder with a script, or ``python``. ``arguments`` are the
    arguments of ``grsgd train``, of the script, or of ``python``. With ``ranks=None`` the job has as many ranks as the
    Slurm allocation has tasks. ``bind`` is the value of GRSGD_BIND for the ranks; None keeps the value in the present
    environment. ``hosts`` are the hosts of the ranks. If ``hosts`` is empty, the launcher chooses the hosts.

    Raises UsageError or ConfigError for wrong arguments, and SetupError if a launcher has started several processes of
    this command.
    """
    check_alone("run")
    if ranks is None and not {"-n", "-np"}.isdisjoint(arguments):
        raise UsageError(f"run: -n stands before {target}: grsgd run -n 4 {target}")
    ranks = ranks if ranks is not None else tasks_of_allocation()
    if ranks < 1:
        raise ConfigError(f"run: -n {ranks}: must be 1 or more")
    trains = is_configuration(target)
    if is_python(target):
        if not arguments:
            raise UsageError(f"run: {target}: names no script: grsgd run -n {ranks} SCRIPT.py")
        program = [sys.executable, "-u"]
    elif trains:
        check_file(target)
        program = [*module("grsgd"), "train", target]
        program.insert(1, "-u")
    else:
        check_file(target)
        program = [sys.executable, "-u", target]
    variables, command = start_command(launcher, ranks)
    if command[0] == "srun":
        command[1:1] = srun_options(trains, bind)
    if hosts:
        command[1:1] = placing(command[0], hosts)
    if "--spares" in arguments and library_of(command[0]) == "Open MPI":
        command[1:1] = ["--with-ft", "ulfm"]
    if spares is not None and not trains:
        if library_of(command[0]) != "Open MPI":
            raise ConfigError(f"run: --spares {spares}: only with Open MPI's mpiexec, which can survive deaths")
        command[1:1] = ["--with-ft", "ulfm", "-x", f"{SPARES}={spares}"]
    # Open MPI passes on only variables that an option -x names
    if bind is not None and library_of(command[0]) == "Open MPI":
        command[1:1] = ["-x", f"{BIND}={bind}"]
    if not trains and sys.stderr.isatty() and AT_ONCE in version_of(command[0]):
        # with this option mpiexec passes on incomplete lines, such as progress bars
        command[1:1] = ["--output", ":raw"]
    if "OMPI_MCA_btl" in variables and not trains:
        variables |= ALONE
    missing = {name: value for name, value in variables.items() if name not in os.environ}
    if bind is not None and library_of(command[0]) != "Open MPI":
        missing[BIND] = bind
    return JobCommand(missing, [*command, *program, *arguments])


def placing(launcher: str, hosts: Sequence[Host]) -> list[str]:
    """Return the options by which ``launcher`` starts ranks on ``hosts``, with the environment variables that `grsgd
    run` sets."""
    library = "srun" if launcher == "srun" else library_of(launcher)
    # launchers other than Open MPI's pass all variables on
    passed = (WORDS, HEARTS, RESTARTS, JOB, "OMP_NUM_THREADS") if library == "Open MPI" else ()
    return [*options(library, hosts), *(word for name in passed for word in ("-x", name))]


def is_python(target: str) -> bool:
    """Return whether ``target`` names the Python interpreter, for example ``python3``. Arguments after the name of the
    interpreter are arguments of Python."""
    return re.fullmatch(r"python3?(\.\d+)?", Path(target).name) is not None and not target.endswith(".py")


def is_configuration(target: str) -> bool:
    """Return whether ``target`` is a configuration, not a script: its name ends in .toml, or its content is TOML."""
    path = Path(target)
    if is_python(target) or path.suffix == ".py" or path.is_dir():
        return False
    if path.suffix == ".toml":
        return True
    try:
        return "algorithm" in tomllib.loads(path.read_text())
    except (OSError, ValueError):
        return False


def check_file(target: str):
    """Raise UsageError if ``target`` is neither a file nor a folder that Python can run."""
    path = Path(target)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(f"run: {target}: a folder without __main__.py: name the script in it, or -m MODULE")
    if not path.exists():
        raise UsageError(f"run: {target}: no such file: must be a configuration (.toml), a script, or -m MODULE")


def tasks_of_allocation() -> int:
    """Return the number of tasks of Slurm's allocation; raises UsageError outside of an allocation."""
    if not os.environ.get("SLURM_NTASKS"):
        raise UsageError("run: how many ranks? grsgd run -n 4 CONFIG.toml")
    return int(os.environ["SLURM_NTASKS"])


def start_command(launcher: str, ranks: int) -> tuple[dict[str, str], list[str]]:
    """Return the environment variables that a launcher needs, and the launcher's part of the job's command line."""
    is_allocated = in_allocation()
    cores = int(os.environ.get("SLURM_CPUS_PER_TASK") or 0)
    threads = {"OMP_NUM_THREADS": str(computing_threads(cores)) if cores else DEFAULTS["OMP_NUM_THREADS"]}
    mpiexec = None if launcher == "srun" else mpiexec_if_any() if is_allocated else find_mpiexec()
    library = library_of(mpiexec) if mpiexec else None
    if launcher == "srun" or (launcher == "auto" and is_allocated and library != "MPICH" and srun_starts()):
        plugin = os.environ.get("SLURM_MPI_TYPE") or "pmix"
        # srun does not inherit SLURM_CPUS_PER_TASK from sbatch
        variables = threads | ({"SRUN_CPUS_PER_TASK": str(cores)} if cores else {})
        return variables, ["srun", f"--mpi={plugin}", f"--ntasks={ranks}", "--kill-on-bad-exit=1"]
    command = [mpiexec or find_mpiexec(), "-n", str(ranks)]
    if library != "Open MPI":
        return threads, command
    variables = DEFAULTS | threads
    if os.geteuid() != 0:
        variables = {name: value for name, value in variables.items() if "AS_ROOT" not in name}
    if is_allocated and os.environ.get("SLURM_GPUS_PER_TASK") and os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        raise ConfigError(
            "run: mpiexec: with --gpus-per-task, all ranks of a further node would share its first GPUs: ask Slurm for "
            "--gpus-per-node, or use --launcher srun"
        )
    if is_allocated:  # Slurm's allocation decides the hosts of the ranks, and the ranks bind themselves
        for name in ("PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_rmaps_base_oversubscribe"):
            variables.pop(name)
        # idle ranks need not yield, because in an allocation no other program needs the cores
        variables.pop("OMPI_MCA_mpi_yield_when_idle")
        variables |= {"PRTE_MCA_hwloc_default_binding_policy": "none", "OMPI_MCA_hwloc_base_binding_policy": "none"}
    return variables, command


def mpiexec_if_any() -> str | None:
    """Return the path of the ``mpiexec`` that `grsgd run` would use; None if no ``mpiexec`` is found."""
    try:
        return find_mpiexec()
    except ConfigError:
        return None


def library_of(mpiexec: str) -> str | None:
    """Return the MPI library to which an ``mpiexec`` belongs, "Open MPI" or "MPICH"; None for any other library."""
    text = version_of(mpiexec)
    return next((name for word, name in MARKS.items() if word in text), None)


def version_of(program: str, seconds: float = 60.0) -> str:
    """Return the text that a launcher prints with ``--version``; "" if it prints no text within ``seconds``."""
    try:
        return subprocess.run([program, "--version"], capture_output=True, text=True, timeout=seconds).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


AT_ONCE = "Open MPI) 5"
"""Text in the output of ``mpiexec --version`` if this ``mpiexec`` can pass on incomplete lines of its ranks' output."""
MARKS = {"Open MPI": "Open MPI", "OpenRTE": "Open MPI", "HYDRA": "MPICH"}
"""Dictionary from a text in the output of ``mpiexec --version`` to the MPI library that this text shows."""


def srun_starts() -> bool:
    """Return whether ``srun`` with its PMI plug-in can start a program, tested with ``true``. Some plug-ins that
    ``srun`` lists do not work."""
    plugin = os.environ.get("SLURM_MPI_TYPE") or "pmix"
    trial = ["srun", f"--mpi={plugin}", "--nodes=1", "--ntasks=1", "true"]
    try:
        return subprocess.run(trial, capture_output=True, stdin=subprocess.DEVNULL, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def run(job: JobCommand, gently: bool, hearing: Hearing | None = None) -> int:
    """Run ``job``, and return its exit code, or 128 plus the number of the signal that killed its launcher.

    If a signal to this process has asked for the end of the job, 130 is returned in place of any exit code other than 0
    and 75. Exit code 75 says that the job took a checkpoint.

    ``hearing`` notices if a host of the job is lost. If a host is lost, the job is ended.

    Use ``gently`` for a job that trains, so that the job can save its measurements after Ctrl-C or another signal. With
    ``gently`` the launcher does not get the terminal's signals and input. Without ``gently`` the job behaves as if its
    launcher had been started directly.
    """
    # signals that this process ignores, such as SIGHUP under nohup, remain ignored
    ending = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    watched = {*ending, signal.SIGCHLD, *PASSED_ON, *((signal.SIGTSTP, signal.SIGCONT) if gently else ())}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    die_with_parent = with_parent()
    if hearing is not None:
        adopt_orphans()

    def prepare():
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        process = subprocess.Popen(
            job.command,
            env=os.environ | job.variables,
            stdin=subprocess.DEVNULL if gently else None,
            start_new_session=gently,
            preexec_fn=prepare,
        )
        ended = attend(process, watched, gently, hearing)
    except OSError as error:
        raise ConfigError(f"run: {job.command[0]}: {error.strerror}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    if hearing is not None and hearing.lost:
        code = code or 1  # Open MPI's launcher may return 0 although a host was lost
    if ended and gently and process.returncode in KILLED_BY_IT:
        tell("interrupted before training began: there is no run file")
    return EXIT_CODE if ended and code not in (0, CHECKPOINTED) else code


def tell(line: str):
    print(f"\ngrsgd: {line}", file=sys.stderr, flush=True)


def attend(
    process: subprocess.Popen, watched: set[signal.Signals], gently: bool, hearing: Hearing | None = None
) -> bool:
    """Wait until the launcher ``process`` ends, and handle the blocked signals ``watched``. End the job if a host is
    lost. Return whether a signal has asked for the end of the job."""
    ending, is_lost, deadline = 0, False, None
    while process.poll() is None:
        if hearing is not None and (lost := hearing.look()):
            tell(f"{hearing.why(lost)}: the job is ended")
            process.send_signal(signal.SIGTERM)
            is_lost, deadline = True, time.monotonic() + LOST_SECONDS
        left = LOOK_SECONDS if deadline is None else max(deadline - time.monotonic(), 0.0)
        # waits are short because another thread of this process may have received SIGCHLD
        info = signal.sigtimedwait(watched, min(left, LOOK_SECONDS))
        number = None if info is None else info.si_signo
        is_overdue = deadline is not None and time.monotonic() >= deadline
        # after the signal GENTLE a script may go on, so GENTLE asks only a training to end
        asks = number in ENDING or (number == GENTLE and gently and not ending)
        if asks and hearing is not None:
            hearing.asked = number
        if number == signal.SIGTSTP:
            if hearing is not None:
                hearing.pause()
            process.send_signal(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number == signal.SIGCONT or (number in PASSED_ON and not asks):
            process.send_signal(number)
        elif is_lost and (is_overdue or asks):
            process.kill()
            deadline = time.monotonic() + KILLING_SECONDS
        elif asks or (number is None and is_overdue):
            ending += 1
            is_from_terminal = info is not None and info.si_code > 0
            deadline = time.monotonic() + end(process, number or signal.SIGTERM, ending, gently, is_from_terminal)
    return ending > 0


def end(process: subprocess.Popen, number: int, attempt: int, gently: bool, is_from_terminal: bool) -> float:
    """Ask a job to end after the signal ``number``. From the second ``attempt`` on, force the job to end. Return the
    seconds in which the job must end."""
    if attempt > 2:
        process.kill()  # killing the launcher also ends the ranks
        return KILLING_SECONDS
    if not gently:
        if not is_from_terminal:  # a signal from the terminal has reached the launcher, too
            process.send_signal(number)
        return ENDING_SECONDS
    if attempt == 2:
        process.send_signal(signal.SIGTERM)
        return KILLING_SECONDS
    tell("stopping: the measurements are evaluated and saved; Ctrl-C again ends the job at once")
    process.send_signal(GENTLE)
    return ENDING_SECONDS
