"""Detection of launchers that have started several processes without connecting them by MPI. Processes that MPI does
not connect would each train alone."""

import multiprocessing
import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from grsgd.errors import SetupError


class ForeignLauncher(NamedTuple):
    """A launcher, recognised by the environment variables that it sets for the processes which it starts."""

    size: str
    """Name of the environment variable with the number of processes. For a launcher that sets no variable with the
    number of processes, ``size`` equals ``number``, because a process number above 0 shows that several processes were
    started."""
    number: str
    """Name of the environment variable with the number of this process, counted from 0."""
    name: str
    starts_jobs: bool = False
    """Whether the launcher belongs to a batch system. A launcher of a batch system may start a second launcher, which
    starts the processes of MPI, so the numbers of processes may differ."""
    needs_number: bool = False
    """Whether only ``size`` and ``number`` together show the launcher, because users set the variable ``size`` for
    other programs, too."""

    def has_started(self, environment: Mapping[str, str]) -> bool:
        """Return whether the variables of this launcher are set in ``environment``."""
        return self.size in environment and (self.number in environment or not self.needs_number)

    def started(self, environment: Mapping[str, str]) -> int:
        """Return the number of processes that this launcher has started; 1 if its variables are not set."""
        text = environment.get(self.size, "")
        if not text.isdecimal() or not self.has_started(environment):
            return 1
        return int(text) + 1 if self.size == self.number else int(text)

    def is_first(self, environment: Mapping[str, str]) -> bool:
        """Return whether this process is the launcher's process number 0. If process 0 cannot know of other processes,
        return whether this process has number 1."""
        return environment.get(self.number, "0") == ("1" if self.size == self.number else "0")


FOREIGN_LAUNCHERS = (
    ForeignLauncher("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI's mpiexec"),
    ForeignLauncher("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MVAPICH's launcher"),
    ForeignLauncher("PMI_SIZE", "PMI_RANK", "mpiexec"),
    ForeignLauncher("MPI_LOCALNRANKS", "MPI_LOCALRANKID", "mpiexec"),
    ForeignLauncher("HOROVOD_SIZE", "HOROVOD_RANK", "horovodrun"),
    ForeignLauncher("WORLD_SIZE", "RANK", "torchrun", needs_number=True),
    ForeignLauncher("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun", starts_jobs=True),
    ForeignLauncher("FLUX_JOB_SIZE", "FLUX_TASK_RANK", "Flux", starts_jobs=True),
    ForeignLauncher("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "jsrun", starts_jobs=True),
    ForeignLauncher("PALS_LOCAL_SIZE", "PALS_RANKID", "mpiexec of PALS", starts_jobs=True),
    ForeignLauncher("PALS_RANKID", "PALS_RANKID", "mpiexec of PALS", starts_jobs=True),
)
"""All launchers that `unconnected` recognises. ``SLURM_NTASKS`` is not used, because it counts the tasks that a user
may start in an allocation. ``SLURM_STEP_NUM_TASKS`` counts the tasks that ``srun`` has started. Variables of the
launchers PALS (``PALS_LOCAL_SIZE``) and Hydra (``MPI_LOCALNRANKS``) count the processes of this host only."""
WITHOUT_MPI = ("horovodrun", "torchrun")
"""Names of the launchers that never connect processes by MPI."""
FIRST_SPEAKS_SECONDS = 3.0
"""Seconds that the processes of a launcher, except the first process, wait before they end after an error. torchrun
kills all processes as soon as one process has ended. The launcher's first process must print the error before any other
process ends."""

TERMINAL = Path("/dev/tty")
"""Path of this process's terminal. A process without a terminal cannot open this path."""
SHELL_VARIABLES = ("SLURM_STEP_NUM_TASKS", "PMI_SIZE")
"""Variables in which ``srun`` gives the number of its tasks. PMI_SIZE is set by srun's plug-in pmi2."""

SRUN_PLUGINS = {"Open MPI": "pmix", "CRAY MPICH": "cray_shasta", "MVAPICH": "pmi2", "MPICH": "pmi2", "Intel": "pmi2"}
"""Dictionary from a part of an MPI library's name to the plug-in of ``srun`` that usually connects the library's
ranks."""


def check_launcher(ranks: int, library: str):
    """Raise SetupError if a launcher has started more processes than the ``ranks`` that MPI connects.

    ``library`` is a text with the name and version of the MPI library.
    """
    found = unconnected(ranks, os.environ)
    if found is not None:
        refuse(f"{disagreement(found, ranks)}: {remedy(found, library)}", found.is_first(os.environ))


def unconnected(ranks: int, environment: Mapping[str, str]) -> ForeignLauncher | None:
    """Return the launcher that has started more processes than the ``ranks`` that MPI connects; None if no launcher
    has.

    A batch system's launcher is returned only for a process that MPI connects with no other process. A batch system's
    launcher is not returned if a second launcher has started this process as a job of one rank. ``srun`` is not
    returned in the shell of ``srun --pty bash``.
    """
    if in_shell_of_srun(environment):
        environment = {key: value for key, value in environment.items() if key not in SHELL_VARIABLES}
    is_job_of_its_own = ranks > 1 or any(
        launcher.size in environment and launcher.number in environment and launcher.started(environment) == 1
        for launcher in FOREIGN_LAUNCHERS
        if launcher.name not in WITHOUT_MPI and not launcher.starts_jobs
    )
    found = [
        launcher
        for launcher in FOREIGN_LAUNCHERS
        if launcher.started(environment) > ranks and not (launcher.starts_jobs and is_job_of_its_own)
    ]
    # srun, Flux and PALS also set the variables of PMI, by which mpiexec is recognised, so batch systems come first
    return next((launcher for launcher in found if launcher.starts_jobs), found[0] if found else None)


def in_shell_of_srun(environment: Mapping[str, str]) -> bool:
    """Return whether this process belongs to the shell of ``srun -n4 --pty bash``. Slurm gives a terminal to only one
    of the four tasks of ``srun -n4 --pty bash``.

    A task of a second ``srun``, typed in the shell of ``srun --pty bash``, inherits the shell's variables but not its
    `TERMINAL`. A program that ``srun`` starts without a shell, as in ``srun -n4 --pty python train.py``, belongs to no
    shell.
    """
    if "SLURM_PTY_PORT" not in environment or environment.get("SLURM_TASK_PID") == str(os.getpid()):
        return False
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def disagreement(launcher: ForeignLauncher, ranks: int) -> str:
    """Return the part of an error message which says that ``launcher`` started more processes than the ``ranks`` that
    MPI connects."""
    processes = "tasks" if launcher.name == "srun" else "processes"
    count, seen = launcher.started(os.environ), f"{ranks} rank{'s' if ranks > 1 else ''}"
    return f"{launcher.name} started {count} {processes} ({launcher.size}), but MPI sees only {seen}"


def remedy(launcher: ForeignLauncher, library: str) -> str:
    """Return the advice to a user whose ``launcher`` does not connect the ranks. ``library`` is the MPI library's name
    and version."""
    count, alone = launcher.started(os.environ), f"unset {launcher.size} to train alone"
    if launcher.name == "srun":
        plugin = next((name for part, name in SRUN_PLUGINS.items() if part in library), "pmix")
        intel = ", and I_MPI_PMI_LIBRARY set to Slurm's libpmi2.so" if "Intel" in library else ""
        return (
            f"start with `srun --mpi={plugin}`{intel} (`srun --mpi=list` shows what your Slurm offers) or with "
            f"`mpiexec`; {alone}"
        )
    if launcher.starts_jobs:
        rebuild = "`pip install --no-binary=mpi4py --force-reinstall mpi4py`"
        return (
            f"mpi4py uses {library}, which {launcher.name} does not connect: build mpi4py with this system's MPI "
            f"library ({rebuild}), or type `{instead_of_it(count)}`; {alone}"
        )
    if launcher.name in WITHOUT_MPI:
        return f"type `{instead_of_it(count)}`, or unset {launcher.size}"
    return f"mpi4py uses {library}, whose launcher this is not: type `{instead_of_it(count)}`"


def refuse(message: str, is_first: bool):
    """Raise SetupError with ``message``. Only the launcher's first process (``is_first``) prints the message."""
    if not is_first:
        time.sleep(FIRST_SPEAKS_SECONDS)
    raise SetupError(message, is_printed=is_first)


def check_alone(command: str):
    """Raise SetupError if a launcher has started several processes of the grsgd command ``command``, which itself
    starts the ranks."""
    launcher = unconnected(1, os.environ)
    if launcher is not None:
        refuse(
            f"{command}: {launcher.name} has started {launcher.started(os.environ)} processes of this command, which "
            f"starts the ranks itself: start it once, without {launcher.name}; if this is the only process, unset "
            f"{launcher.size}",
            launcher.is_first(os.environ),
        )


def instead_of_it(ranks: int) -> str:
    """Return the command that starts the program of this process on ``ranks`` ranks."""
    program, *arguments = sys.argv
    if Path(program).name not in ("grsgd", "__main__.py"):
        return shlex.join(["grsgd", "run", "-n", str(ranks), program, *arguments])
    if arguments[:1] == ["train"]:
        return shlex.join(["grsgd", "run", "-n", str(ranks), *arguments[1:]])
    return shlex.join(["mpiexec", "-n", str(ranks), "python", "-m", "grsgd", *arguments])


def check_is_no_worker():
    """Raise SetupError in a process that imports the main module again, such as a worker of a DataLoader."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SetupError('a worker process imports this script again: put its training below if __name__ == "__main__"')
