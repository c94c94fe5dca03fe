"""Launchers that have started several processes which do not see each other, and launchers without a fault."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grsgd.errors import SetupError
from grsgd.job.foreign_launchers import FOREIGN_LAUNCHERS, check_alone, check_launcher
from grsgd.mpi_environment import without_launcher

OPEN_MPI = "Open MPI v5"


@pytest.fixture(autouse=True)
def started_by(monkeypatch):
    """``started_by(variables)``: this process has these variables of launchers, and no others."""
    monkeypatch.setattr("grsgd.job.foreign_launchers.FIRST_SPEAKS_SECONDS", 0.0)
    monkeypatch.setattr("grsgd.job.foreign_launchers.TERMINAL", Path(os.devnull))
    others = {name for launcher in FOREIGN_LAUNCHERS for name in launcher[:2]}
    for name in {*os.environ} - {*without_launcher(os.environ)} | others:
        monkeypatch.delenv(name, raising=False)

    def started_by(variables: str):
        for word in variables.split():
            monkeypatch.setenv(*word.split("="))

    return started_by


@pytest.mark.parametrize(
    "variables, ranks, library, message",
    [
        ("WORLD_SIZE=2 RANK=0", 1, OPEN_MPI, "torchrun started 2 processes (WORLD_SIZE), but MPI sees only 1 rank: "),
        ("HOROVOD_SIZE=4", 2, OPEN_MPI, "horovodrun started 4 processes (HOROVOD_SIZE), but MPI sees only 2 ranks"),
        ("PMI_SIZE=3 PMI_RANK=0", 1, OPEN_MPI, "mpi4py uses Open MPI v5, whose launcher this is not"),
        ("OMPI_COMM_WORLD_SIZE=3", 1, "MPICH 5", "Open MPI's mpiexec started 3 processes (OMPI_COMM_WORLD_SIZE)"),
        ("MPI_LOCALNRANKS=3", 1, OPEN_MPI, "mpiexec started 3 processes (MPI_LOCALNRANKS)"),
        ("MV2_COMM_WORLD_SIZE=3", 1, OPEN_MPI, "MVAPICH's launcher started 3 processes (MV2_COMM_WORLD_SIZE)"),
        ("SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4", 1, OPEN_MPI, "srun started 4 tasks (SLURM_STEP_NUM_TASKS)"),
        ("SLURM_STEP_NUM_TASKS=4", 1, OPEN_MPI, "`srun --mpi=pmix` (`srun --mpi=list`"),
        ("SLURM_STEP_NUM_TASKS=4 PMI_SIZE=4 PMI_RANK=0", 1, OPEN_MPI, "`srun --mpi=pmix`"),
        ("SLURM_STEP_NUM_TASKS=4", 1, "MPICH Version: 5.0", "`srun --mpi=pmi2`"),
        ("SLURM_STEP_NUM_TASKS=4", 1, "MPI VERSION : CRAY MPICH version 8.1", "`srun --mpi=cray_shasta`"),
        ("SLURM_STEP_NUM_TASKS=4", 1, "Intel(R) MPI Library 2021.9", "I_MPI_PMI_LIBRARY"),
        ("SLURM_STEP_NUM_TASKS=4 PMI_SIZE=1", 1, OPEN_MPI, "srun started 4 tasks"),  # set for Accelerate
        ("SLURM_STEP_NUM_TASKS=4 WORLD_SIZE=1 RANK=0", 1, OPEN_MPI, "srun started 4 tasks"),
        ("FLUX_JOB_SIZE=4 FLUX_TASK_RANK=0", 1, OPEN_MPI, "Open MPI v5, which Flux does not connect: build mpi4py"),
        ("JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_RANK=0", 1, OPEN_MPI, "jsrun started 4 processes (JSM_NAMESPACE_SIZE)"),
        ("PALS_LOCAL_SIZE=4 PALS_RANKID=0", 1, OPEN_MPI, "mpiexec of PALS started 4 processes (PALS_LOCAL_SIZE)"),
        ("PALS_RANKID=1", 1, OPEN_MPI, "mpiexec of PALS started 2 processes (PALS_RANKID), but MPI sees only 1 rank"),
        ("PMI_SIZE=8 PMI_RANK=0 PALS_RANKID=0", 1, OPEN_MPI, "mpiexec started 8 processes (PMI_SIZE)"),
    ],
)
def test_processes_that_do_not_see_each_other_are_refused(variables, ranks, library, message, started_by):
    started_by(variables)
    with pytest.raises(SetupError) as error:
        check_launcher(ranks, library)
    assert message in str(error.value) and "\n" not in str(error.value) and error.value.is_printed


@pytest.mark.parametrize(
    "what, variables, ranks",
    [
        ("no launcher", "", 1),
        ("one process", "WORLD_SIZE=1", 1),
        ("all ranks", "WORLD_SIZE=2", 2),
        ("a script that is started once in an allocation", "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0", 1),
        ("mpiexec in a batch script", "SLURM_NTASKS=4 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1", 4),
        ("mpiexec of fewer ranks than hosts", "SLURM_STEP_NUM_TASKS=4 OMPI_COMM_WORLD_SIZE=2", 2),
        ("mpiexec of one rank", "SLURM_STEP_NUM_TASKS=3 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0", 1),
        ("mpiexec within a step of one task", "SLURM_STEP_NUM_TASKS=1 PMI_SIZE=4 PMI_RANK=2", 4),
        ("a job of one rank in each task", "SLURM_STEP_NUM_TASKS=4 PMI_SIZE=1 PMI_RANK=0", 1),
        ("srun with PMIx", "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 PMIX_RANK=3", 4),
        ("Accelerate's variable", "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 PMI_SIZE=1", 4),
        ("MPICH on two hosts", "PMI_SIZE=4 PMI_RANK=3 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1", 4),
        ("Flux", "FLUX_JOB_SIZE=4 FLUX_TASK_RANK=3", 4),
        ("PALS", "PALS_LOCAL_SIZE=4 PALS_RANKID=7 PMI_SIZE=8 PMI_RANK=7", 8),
        ("PALS, one process", "PALS_LOCAL_SIZE=1 PALS_RANKID=0", 1),
        ("no number", "SLURM_STEP_NUM_TASKS=x", 1),
        ("a variable of the user's shell, for scripts of torch", "WORLD_SIZE=8", 1),
        ("srun -n4 --pty bash", "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_PTY_PORT=4711", 1),
        ("the same with pmi2", "SLURM_STEP_NUM_TASKS=4 SLURM_PTY_PORT=4711 PMI_SIZE=4 PMI_RANK=0", 1),
    ],
)
def test_no_false_alarm(what, variables, ranks, started_by):
    started_by(variables)
    check_launcher(ranks, OPEN_MPI)


@pytest.mark.parametrize(
    "arguments, instead",
    [
        (["/x/grsgd/__main__.py", "train", "run.toml", "--out", "a b.h5"], "grsgd run -n 2 run.toml --out 'a b.h5'"),
        (["own.py", "--lr", "1"], "grsgd run -n 2 own.py --lr 1"),
        (["/x/bin/grsgd", "calibrate", "run.toml"], "mpiexec -n 2 python -m grsgd calibrate run.toml"),
    ],
)
def test_the_refusal_says_what_to_type(arguments, instead, started_by, monkeypatch):
    monkeypatch.setattr(sys, "argv", arguments)
    started_by("WORLD_SIZE=2 RANK=0")
    with pytest.raises(SetupError) as error:
        check_launcher(1, OPEN_MPI)
    assert f"`{instead}`" in str(error.value)


@pytest.mark.parametrize(
    "first, second",
    [
        ("WORLD_SIZE=2 RANK=0", "WORLD_SIZE=2 RANK=1"),
        ("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1"),
        ("PALS_LOCAL_SIZE=2 PALS_RANKID=0", "PALS_LOCAL_SIZE=2 PALS_RANKID=1"),
        ("PALS_LOCAL_SIZE=1 PALS_RANKID=1", "PALS_LOCAL_SIZE=1 PALS_RANKID=2"),
    ],
)
def test_one_process_prints(first, second, started_by):
    for variables, prints in ((first, True), (second, False)):
        started_by(variables)
        with pytest.raises(SetupError) as error:
            check_launcher(1, OPEN_MPI)
        assert error.value.is_printed == prints


def test_a_command_that_starts_ranks_is_started_once(started_by):
    check_alone("sweep")
    started_by("SLURM_NTASKS=4 SLURM_PROCID=0")
    check_alone("sweep")
    started_by("SLURM_STEP_NUM_TASKS=4")
    with pytest.raises(SetupError, match="sweep: srun has started 4 processes of this command, ") as error:
        check_alone("sweep")
    assert "start it once, without srun" in str(error.value) and "unset SLURM_STEP_NUM_TASKS" in str(error.value)


def test_only_the_shell_of_srun_is_alone(started_by, monkeypatch, tmp_path):
    """A second ``srun``, typed in this shell, starts tasks with the shell's variables and without a terminal."""
    started_by("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_PTY_PORT=4711")
    check_alone("run")
    started_by(f"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_PTY_PORT=4711 SLURM_TASK_PID={os.getpid()}")
    with pytest.raises(SetupError, match="srun started 4 tasks"):
        check_launcher(1, OPEN_MPI)  # the task itself, as in srun --pty python train.py
    started_by("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_PTY_PORT=4711")
    monkeypatch.setattr("grsgd.job.foreign_launchers.TERMINAL", tmp_path / "none")
    with pytest.raises(SetupError, match="srun started 4 tasks"):
        check_launcher(1, OPEN_MPI)


def test_another_mpiexec_in_the_shell_of_srun_is_refused(started_by):
    started_by("SLURM_STEP_NUM_TASKS=4 SLURM_PTY_PORT=4711 PMI_SIZE=2 PMI_RANK=0 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0")
    with pytest.raises(SetupError, match="mpiexec started 2 processes"):
        check_launcher(1, OPEN_MPI)


SWEEP = ["sweep", "-n", "2", "--vary", "seed=0,1", "run.toml"]


@pytest.mark.parametrize("command", [["demo"], SWEEP, ["run", "run.toml"]])
def test_commands_that_start_ranks_refuse_several_processes(command, started_by, capsys):
    from grsgd.cli import main

    started_by("FLUX_JOB_SIZE=2 FLUX_TASK_RANK=0")
    assert main(command) == 2
    assert f"{command[0]}: Flux has started 2 processes of this command" in capsys.readouterr().err


def test_a_launcher_that_connects_nothing_ends_at_once_with_one_line(tmp_path):
    """Two processes of a script, as ``srun`` without PMI starts them; the second waits until the first has printed."""
    (tmp_path / "own.py").write_text("import grsgd\nprint('trains alone', grsgd.size())\n")
    variables = without_launcher(os.environ) | {"SLURM_STEP_NUM_TASKS": "2"}
    command = [sys.executable, tmp_path / "own.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    tasks = [subprocess.Popen(command, env=variables | {"SLURM_PROCID": str(task)}, **pipes) for task in range(2)]
    said = [task.communicate(timeout=120)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [2, 2], said
    assert said[0].startswith("grsgd: srun started 2 tasks") and said[0].count("\n") == 1 and said[1] == ""
