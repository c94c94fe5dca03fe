"""Detection of launchers that have started several processes without connecting them by MPI, so that each process would
train alone."""

import multiprocessing
import os
import shlex
import sys
import time
from pathlib import Path

from grsgd.errors import SetupError

FOREIGN_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": ("Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK"),
    "PMI_SIZE": ("mpiexec", "PMI_RANK"),
    "HOROVOD_SIZE": ("horovodrun", "HOROVOD_RANK"),
    "WORLD_SIZE": ("torchrun", "RANK"),
    "SLURM_NTASKS": ("Slurm", "SLURM_PROCID"),
}
"""Environment variables with the number of processes that a launcher has started. For each: the launcher's name, and
the variable with the number of this process."""
FIRST_SPEAKS_SECONDS = 3.0
"""Seconds that all processes except the first wait before they end. torchrun kills all processes as soon as one process
has ended. So the first process must print the error before the others end."""


def check_launcher(ranks: int, library: str):
    """Raise SetupError if a launcher has started more processes than the ``ranks`` that MPI connects.

    ``library`` has name and version of the MPI library.
    """
    for variable, (launcher, number) in FOREIGN_LAUNCHERS.items():
        text = os.environ.get(variable) or "1"
        count = int(text) if text.isdecimal() else 1
        # SLURM_NTASKS counts the tasks of the whole allocation, not of one job step
        if count <= ranks or (variable == "SLURM_NTASKS" and ranks > 1):
            continue
        if variable == "SLURM_NTASKS":
            instead = (
                "start with `srun --mpi=pmix` (`srun --mpi=list` shows what your Slurm offers) or with `mpiexec`; "
                "unset SLURM_NTASKS to train alone"
            )
        elif launcher.endswith("mpiexec"):
            instead = f"mpi4py uses {library}, whose mpiexec this is not: type `{instead_of_it(count)}`"
        else:
            instead = f"type `{instead_of_it(count)}`, or unset {variable}"
        is_first = os.environ.get(number, "0") == "0"
        if not is_first:
            time.sleep(FIRST_SPEAKS_SECONDS)
        seen = f"{ranks} rank{'s' if ranks > 1 else ''}"
        processes = "tasks" if launcher == "Slurm" else "processes"
        raise SetupError(
            f"{launcher} started {count} {processes} ({variable}), but MPI sees only {seen}: {instead}",
            is_printed=is_first,
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
